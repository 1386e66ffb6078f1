"""The verify stage on a lake: first verdicts and later ones are made and stored in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec, PartSpec
from gym_spark.errors import StorageError
from gym_spark.results.outcomes import kept
from gym_spark.rollout.share import Share
from gym_spark.rollout.spending import shared_out
from gym_spark.rollout.stage import task_slots
from gym_spark.tables.lake import SPARK_ERRORS, Lake, first_line
from gym_spark.tables.schemas import VERIFICATIONS
from gym_spark.verdict_units import first_unit, in_units, is_slow
from gym_spark.verify.base import load_verifier
from gym_spark.verify.stage import verdicts

#: Wall-clock limit of one verdict in a child process.
VERIFY_LIMIT_S: Final = 10.0


def judge_and_store(
    lake: Lake,
    todo: DataFrame,
    *,
    run_id: str,
    verification_id: str,
    verifier: PartSpec,
    sandbox: str,
    judge: EndpointSpec | None,
    share: Share,
    unsafe: bool = False,
    count: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Judge rollouts and add the verdicts to `verifications`; returns in how many commits.

    A verifier that asks a model, or takes long, judges before the table's turn is taken, so that nobody waits for it
    and no conflict makes it judge twice.

    Args:
        lake: The lake.
        todo: What `verify.stage.unverified` returns.
        run_id: The run.
        verification_id: Name of the verification.
        verifier: Which verifier, with which parameters.
        sandbox: Where model-written code may run (`RunSpec.sandbox`).
        judge: Endpoint of the model that the verifier asks (`RunSpec.judge`), with its addresses.
        share: This job's share of the run, and so of the judge's limits.
        unsafe: Mark the verdicts so.
        count: How many rollouts, if it is known.
        say: Told how far it is, where it goes on in parts.

    Raises:
        ConfigError: the verifier cannot be built, or lacks a sandbox or a judge that it needs.
        StorageError: Spark or the storage gave up; finished units are stored.
    """
    loaded, slots = load_verifier(verifier.name, verifier.params), task_slots(lake.spark)
    slow = is_slow(loaded)
    if count is None:
        count = todo.count() if slow else 1
    judge = judge and shared_out(judge, share)
    spread = slots if loaded.isolated or loaded.wants_sandbox else 1

    def store(part: DataFrame) -> None:
        rows = verdicts(
            # What is stored may lie in one small file, and a slow verifier shall have every core all the same.
            part.repartition(spread) if spread > 1 else part,
            run_id=run_id,
            verification_id=verification_id,
            verifier=verifier,
            limit_s=VERIFY_LIMIT_S,
            sandbox=sandbox,
            judge=judge,
            workers=slots,
        )
        rows = rows.withColumn("unsafe", F.lit(True)) if unsafe else rows
        if slow:
            with kept(rows) as judged:
                try:
                    judged.count()
                except SPARK_ERRORS as error:
                    raise StorageError(f"Judging failed: {first_line(error)}") from error
                lake.append(VERIFICATIONS, judged)
        else:
            lake.append(VERIFICATIONS, rows)

    return in_units(todo, store, count=count, first_rows=first_unit(loaded, slots, judge), say=say)
