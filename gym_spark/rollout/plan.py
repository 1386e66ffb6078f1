"""The plan: tasks x repeats, minus what is stored. Pure DataFrame functions; nothing is listed on the driver."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.tables.keys import ROLLOUT_KEY

#: Executions of one rollout over all resumes, after which a failure that might pass is left alone; those that sent no
#: request, as in an outage, cost nothing and do not count.
MAX_ATTEMPTS: Final = 5


def chosen_tasks(tasks: DataFrame, *, count: int, seed: int) -> DataFrame:
    """Pick tasks by a seeded hash of their id: the same ones for any partitioning, row order or larger set of columns.

    A larger `count` with the same seed contains every smaller one, so a run can be extended.

    Args:
        tasks: One row per task, with `task_id`.
        count: How many.
        seed: Seed of the pick.

    Returns:
        The rows picked, columns unchanged.
    """
    return tasks.orderBy(F.xxhash64(F.lit(seed), F.col("task_id")), "task_id").limit(count)


def planned_rollouts(tasks: DataFrame, *, num_repeats: int) -> DataFrame:
    """Return one row per planned rollout: every column of `tasks`, and `rollout_index` from 0."""
    repeats = F.sequence(F.lit(0), F.lit(num_repeats - 1))  # of int, as the column is
    return tasks.select("*", F.explode(repeats).alias("rollout_index"))


def first_attempts(planned: DataFrame) -> DataFrame:
    """Return all planned rollouts as ones to do, where none is stored.

    Returns:
        The columns of `planned`, and `attempt`, which is 1.
    """
    return planned.withColumn("attempt", F.lit(1))


def latest_attempts(rollouts: DataFrame) -> DataFrame:
    """Reduce stored attempts to the one that stands: the completed one, else the newest.

    Returns:
        One row per (task_id, rollout_index): `attempt` (highest), `is_completed`, `is_terminal`, `tries` (attempts that
        sent a request).
    """
    return rollouts.groupBy(*ROLLOUT_KEY).agg(
        F.max("attempt").alias("attempt"),
        F.count_if(F.col("requests") > 0).alias("tries"),
        F.max(F.col("state") == "completed").alias("is_completed"),
        F.max(F.coalesce("failure_terminal", F.lit(False))).alias("is_terminal"),
    )


def pending_rollouts(planned: DataFrame, rollouts: DataFrame) -> DataFrame:
    """Return the planned rollouts that are still to do, with the number of their next attempt.

    Completed ones and failures that would repeat themselves are never done again; others up to `MAX_ATTEMPTS`.

    Args:
        planned: One row per planned rollout.
        rollouts: The run's stored rollouts.

    Returns:
        The columns of `planned`, and `attempt` from 1.
    """
    stored = latest_attempts(rollouts)
    done = F.col("is_completed") | F.col("is_terminal") | (F.col("tries") >= MAX_ATTEMPTS)
    return (
        planned.join(stored, on=list(ROLLOUT_KEY), how="left")
        .where(F.col("attempt").isNull() | ~done)
        .withColumn("attempt", F.coalesce("attempt", F.lit(0)) + F.lit(1))
        .drop("is_completed", "is_terminal", "tries")
    )
