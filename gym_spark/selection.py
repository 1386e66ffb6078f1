"""Which stored rollouts `eval reverify` judges."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError, StorageError, did_you_mean
from gym_spark.planning import asked, tasks_of
from gym_spark.rollout.share import Share
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import SPARK_ERRORS, Lake, first_line
from gym_spark.tables.runs import RunRecord
from gym_spark.tables.schemas import ROLLOUTS, VERIFICATIONS
from gym_spark.verify.stage import RETRIED, standing, unverified


@dataclass(frozen=True, slots=True)
class Selection:
    """Which stored rollouts are judged.

    Attributes:
        tasks: Ids; none means all.
        where: A condition in SQL over the columns of `rollouts` and the tasks' `metadata`.
        retry: Those with a verdict, of which the newest is one of these (`verify.stage.RETRIED`); it counts that of the
            verification, and of the run's own where the verification has none.
    """

    tasks: tuple[str, ...] = ()
    where: str | None = None
    retry: tuple[str, ...] = ()


def parse_retry(text: str | None) -> tuple[str, ...]:
    """Return the verdicts that ``--retry`` names, by commas; none without it.

    Raises:
        ConfigError: it names none, or one that judging again cannot change.
    """
    if text is None:
        return ()
    named = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    odd = [name for name in named if name not in RETRIED]
    if odd or not named:
        wrong = odd[0] if odd else text
        raise ConfigError(f"--retry takes verdicts by commas, not '{wrong}'{did_you_mean(wrong, RETRIED)}")
    return named


def to_judge(
    lake: Lake, record: RunRecord, selection: Selection, share: Share, name: str | None, *, resume: bool
) -> DataFrame:
    """Return the rollouts to judge (`verify.stage.unverified`).

    Args:
        lake: The lake.
        record: The run.
        selection: Which.
        share: This job's part of the tasks.
        name: The verification that the verdicts are added to; None: it begins.
        resume: With `selection.retry`, also what has no verdict in the verification.

    Raises:
        ConfigError: the run has no such task, or the condition is wrong.
    """
    run_id = record.spec.run_id
    rollouts = lake.read(ROLLOUTS, run_id=run_id).where(_in_share(share))
    chosen = _chosen(lake, rollouts, tasks_of(lake, record), selection)
    known = None if name is None else lake.read(VERIFICATIONS, run_id=run_id, verification_id=name)
    if selection.retry and not resume:
        own = lake.read(VERIFICATIONS, run_id=run_id, verification_id=record.verification_id)
        again = _again(None if name == record.verification_id else known, own, selection.retry)
        chosen = again if chosen is None else chosen.join(again, on=list(ATTEMPT_KEY), how="left_semi")
        known = None
    elif selection.retry and known is not None:
        known = standing(known, selection.retry).where("NOT again")
    return unverified(rollouts, asked(lake, record), known, chosen=chosen)


def _again(known: DataFrame | None, own: DataFrame, retry: tuple[str, ...]) -> DataFrame:
    """Return the keys of what is judged again: by `known` where that has a verdict, else by the run's own."""
    stands = standing(own, retry)
    if known is not None:
        first = standing(known, retry)
        stands = first.unionByName(stands.join(first, on=list(ATTEMPT_KEY), how="left_anti"))
    return stands.where("again").select(*ATTEMPT_KEY)


def counted(todo: DataFrame, selection: Selection) -> int:
    """Count what is to be judged.

    Raises:
        ConfigError: a row does not go with the condition.
        StorageError: Spark cannot read it.
    """
    try:
        return todo.count()
    except SPARK_ERRORS as error:
        if selection.where is not None:  # such as a text that is no number where the condition wants one
            raise ConfigError(f"--where '{selection.where}' cannot be used: {first_line(error)}") from error
        raise StorageError(f"Spark could not read what is to be judged: {first_line(error)}") from error


def _in_share(share: Share) -> Column:
    """Return the condition that a rollout belongs to a share of the run.

    By task and not by shard: any run can then be shared out over any number of jobs, a small or imported one too, whose
    tasks are all in one shard. No claim is kept: two jobs on one share cost verdicts that were there, and the newest of
    a rollout stands.
    """
    return F.pmod(F.xxhash64("task_id"), F.lit(share.of)) == share.index - 1


def _chosen(lake: Lake, rollouts: DataFrame, tasks: DataFrame, selection: Selection) -> DataFrame | None:
    """Return the keys of the rollouts of the selected tasks, for which the condition holds; None for all.

    Raises:
        ConfigError: the run has no such task, or the condition is wrong.
    """
    if selection.where is None and not selection.tasks:
        return None
    rows = rollouts
    if selection.where is not None:
        try:
            rows = rows.join(tasks.select("task_id", "metadata"), on="task_id").where(F.expr(selection.where))
            _ = rows.schema  # under Spark Connect a mistake shows only here
        except SPARK_ERRORS as error:
            raise ConfigError(f"--where '{selection.where}' cannot be used: {first_line(error)}") from error
    rows = rows.select(*ATTEMPT_KEY)
    if selection.tasks:
        # A frame of them, not a condition: they may be very many.
        named = lake.spark.createDataFrame(pa.table({"task_id": sorted(set(selection.tasks))}))
        missing = named.join(tasks, on="task_id", how="left_anti").orderBy("task_id").first()
        if missing is not None:
            raise ConfigError(
                f"The run has no task '{missing['task_id']}'; --tasks takes ids as `eval export` shows them."
            )
        rows = rows.join(F.broadcast(named), on="task_id", how="left_semi")
    return rows
