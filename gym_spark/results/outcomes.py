"""What became of every planned rollout: the frame that all numbers are computed over. Narrow: no transcripts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.tables.keys import ATTEMPT_KEY, ROLLOUT_KEY


def outcomes(planned: DataFrame, rollouts: DataFrame, verifications: DataFrame) -> DataFrame:
    """Join the plan with what is stored. The plan is the denominator: a rollout that is missing has a row here.

    Args:
        planned: `task_id`, `task_index`, `rollout_index`: one row per planned rollout.
        rollouts: The run's stored rollouts, every attempt.
        verifications: The verdicts of one verification of the run.

    Returns:
        One row per planned rollout: its key, `task_index`, `state` (completed, failed, missing), `failure_kind`,
        `answer_state`, `verdict` (scored, ...; null without one), `reward` (null unless scored), `input_tokens`,
        `output_tokens` (both summed over attempts).
    """
    key = list(ROLLOUT_KEY)
    standing = F.max_by(
        F.struct("attempt", "state", "failure_kind", "answer_state"),
        F.struct((F.col("state") == "completed").alias("completed"), "attempt"),
    )
    stored = rollouts.groupBy(*key).agg(
        standing.alias("standing"),
        F.sum("usage.input_tokens").alias("input_tokens"),
        F.sum("usage.output_tokens").alias("output_tokens"),
    )
    stored = stored.select(*key, "standing.*", "input_tokens", "output_tokens")
    judged = verifications.select(*ATTEMPT_KEY, F.col("state").alias("verdict"), "reward")
    return (
        planned.select(*key, "task_index")
        .join(stored, on=key, how="left")
        .join(judged, on=list(ATTEMPT_KEY), how="left")
        .withColumn("state", F.coalesce("state", F.lit("missing")))
        .withColumn("reward", F.when(F.col("verdict") == "scored", F.col("reward")))
    )


def coverage_row(frame: DataFrame) -> DataFrame:
    """Count the outcomes.

    Returns:
        One row: `planned_tasks`, `planned`, `completed`, `failed`, `missing`, `scored`, `unscored` (completed without
        a reward), `tasks_without_score`, `input_tokens`, `output_tokens`.
    """
    is_scored = F.col("reward").isNotNull()
    completed = F.col("state") == "completed"
    per_task = F.countDistinct(F.when(is_scored, F.col("task_id")))
    return frame.agg(
        F.countDistinct("task_id").alias("planned_tasks"),
        F.count("*").alias("planned"),
        F.count_if(completed).alias("completed"),
        F.count_if(F.col("state") == "failed").alias("failed"),
        F.count_if(F.col("state") == "missing").alias("missing"),
        F.count_if(is_scored).alias("scored"),
        F.count_if(completed & ~is_scored).alias("unscored"),
        (F.countDistinct("task_id") - per_task).alias("tasks_without_score"),
        F.sum("input_tokens").alias("input_tokens"),
        F.sum("output_tokens").alias("output_tokens"),
    )


def breakdown(frame: DataFrame) -> DataFrame:
    """Count rollouts by failure kind, answer state and verdict.

    Returns:
        One row per combination seen: `failure_kind`, `answer_state`, `verdict`, `rollouts`.
    """
    return frame.groupBy("failure_kind", "answer_state", "verdict").agg(F.count("*").alias("rollouts"))


def is_pass(reward: Column) -> Column:
    """Tell whether a reward counts as a pass: full marks, 1 or above."""
    return reward >= F.lit(1.0)
