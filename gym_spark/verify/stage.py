"""The verify stage as frames: stored rollouts in, verdicts out. First verdicts and re-verification alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.config import EndpointSpec, PartSpec
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.schemas import VERIFICATIONS
from gym_spark.verify.base import check_judge, check_sandbox, load_verifier
from gym_spark.verify.judging import JudgeVerifier, workers_for
from gym_spark.verify.sandbox.choice import OFF
from gym_spark.verify.worker import COLUMNS_IN, columns_in, judge_batches

#: Score by which NeMo Gym marks a reward that came with an invalid reply of its judge, and counts all the same.
INVALID_JUDGE: Final = "invalid_judge_response"
#: Verdicts that judging again may change though verifier and answer stay the same.
RETRIED: Final = ("judge_failed", "verify_timeout", "verifier_error", INVALID_JUDGE)


def unverified(
    rollouts: DataFrame, asked: DataFrame, verifications: DataFrame | None, *, chosen: DataFrame | None = None
) -> DataFrame:
    """Return what a verifier needs of the stored rollouts that have no verdict yet.

    Failed rollouts are among them: they get a row too, `not_scored` with the reason.

    Args:
        rollouts: The run's stored rollouts.
        asked: `task_id` (and `rollout_index`, where rollouts of a task have inputs of their own), `verifier_inputs`,
            `responses_create_params`.
        verifications: The verdicts of this verification of the run; None if there are none.
        chosen: Keys of the attempts that are to be judged; None for all.

    Returns:
        The columns of `verify.worker.COLUMNS_IN`, one row per attempt without verdict.
    """
    key = list(ATTEMPT_KEY)
    fresh = rollouts
    if verifications is not None or chosen is not None:
        # Which are to do is worked out on keys: no shuffle shall carry the answers that were judged long ago.
        keys = rollouts.select(*key)
        if chosen is not None:
            keys = keys.join(chosen.select(*key), on=key, how="left_semi")
        if verifications is not None:
            keys = keys.join(verifications.select(*key), on=key, how="left_anti")
        fresh = rollouts.join(F.broadcast(keys), on=key, how="left_semi")
    inputs = [name for name in asked.columns if name in key]
    return fresh.join(asked, on=inputs).select(*COLUMNS_IN)


def newest(verifications: DataFrame, *columns: str) -> DataFrame:
    """Return the verdicts that stand, one per attempt: a judge may have been asked again, or two jobs have judged.

    Args:
        verifications: The verdicts of one verification of a run.
        columns: What is wanted of a verdict.

    Returns:
        The attempt's key, and `columns`.
    """
    last = F.max_by(F.struct(*columns), "verified_at").alias("newest")
    return verifications.groupBy(*ATTEMPT_KEY).agg(last).select(*ATTEMPT_KEY, "newest.*")


def standing(verifications: DataFrame, retry: Collection[str]) -> DataFrame:
    """Return which attempts have a verdict that stands, and which of them are to be judged again.

    Args:
        verifications: The verdicts of one verification of a run.
        retry: Some of `RETRIED`.

    Returns:
        The attempt's key, and `again`: its newest verdict is one of `retry`.
    """
    return newest(verifications, "state", "scores").select(*ATTEMPT_KEY, is_retried(retry).alias("again"))


def is_retried(retry: Collection[str]) -> Column:
    """Return the condition that a verdict is one of `RETRIED` that are named."""
    condition = F.col("state").isin(*retry)
    if INVALID_JUDGE in retry:
        condition |= F.coalesce(F.col("scores")[INVALID_JUDGE], F.lit(0.0)) != 0.0
    return condition


def verdicts(
    frame: DataFrame,
    *,
    run_id: str,
    verification_id: str,
    verifier: PartSpec,
    limit_s: float,
    sandbox: str = OFF,
    judge: EndpointSpec | None = None,
    workers: int = 1,
) -> DataFrame:
    """Return one row of the `verifications` table per row of :func:`unverified`.

    Args:
        frame: What :func:`unverified` returns.
        run_id: The run.
        verification_id: Name of this verification.
        verifier: Which verifier, with which parameters.
        limit_s: Wall-clock limit of one verdict, for verifiers that run in a child process.
        sandbox: Where a verifier may run code that a model wrote (``RunSpec.sandbox``).
        judge: Endpoint of the model that a verifier asks (``RunSpec.judge``), with its addresses.
        workers: Spark tasks that run at once; a verifier that asks a server is spread over as many as its requests in
            flight are enough for, which share its limits out.

    Raises:
        ConfigError: the verifier cannot be built, or wants a sandbox that is off or does not hold here.
    """
    loaded = load_verifier(verifier.name, verifier.params)
    check_sandbox(verifier.name, loaded, sandbox)
    check_judge(verifier.name, loaded, judge)
    rows = frame.select(*columns_in(loaded))
    if isinstance(loaded, JudgeVerifier):
        workers = workers_for(loaded, judge, workers)
        # Exactly so many tasks share the judge's limits; round robin, so that they end at about the same time.
        rows = rows.repartition(workers)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return judge_batches(
            iter(batches),
            run_id=run_id,
            verification_id=verification_id,
            verifier_name=verifier.name,
            params=verifier.params,
            limit_s=limit_s,
            sandbox=sandbox,
            judge=judge,
            workers=workers,
        )

    return rows.mapInArrow(work, from_arrow_schema(VERIFICATIONS.schema))
