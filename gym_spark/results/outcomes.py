"""What became of every planned rollout: the frame that all numbers are computed over. Narrow: no transcripts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.tables.keys import ATTEMPT_KEY, ROLLOUT_KEY


def outcomes(planned: DataFrame, rollouts: DataFrame, verifications: DataFrame) -> DataFrame:
    """Join the plan with what is stored. The plan is the denominator: a rollout that is missing has a row here.

    Args:
        planned: `task_id`, `task_index`, `shard`, `rollout_index`: one row per planned rollout.
        rollouts: The run's stored rollouts, every attempt.
        verifications: The verdicts of one verification of the run.

    Returns:
        One row per planned rollout: its key, `task_index`, `shard`, `state` (completed, failed, missing),
        `failure_kind`, `answer_state`, `verdict` (scored, ...; null without one), `reward` (null unless scored),
        `reason` (why not), `scores`, `extracted_answer`, `latency_ms`, `input_tokens` and `output_tokens` (summed over
        attempts), `started_at` (of the first attempt).
    """
    key = list(ROLLOUT_KEY)
    standing = F.max_by(
        F.struct("attempt", "state", "failure_kind", "answer_state", "latency_ms"),
        F.struct((F.col("state") == "completed").alias("completed"), "attempt"),
    )
    stored = rollouts.groupBy(*key).agg(
        standing.alias("standing"),
        F.sum("usage.input_tokens").alias("input_tokens"),
        F.sum("usage.output_tokens").alias("output_tokens"),
        F.min("started_at").alias("started_at"),
    )
    stored = stored.select(*key, "standing.*", "input_tokens", "output_tokens", "started_at")
    # Two verify jobs at once may both have judged a rollout; the newest verdict stands, and it counts once.
    reason = F.get_json_object("detail", "$.reason").alias("reason")
    verdict = F.struct(F.col("state").alias("verdict"), "reward", reason, "scores", "extracted_answer")
    newest = F.max_by(verdict, "verified_at")
    judged = verifications.groupBy(*ATTEMPT_KEY).agg(newest.alias("newest")).select(*ATTEMPT_KEY, "newest.*")
    return (
        planned.select(*key, "task_index", "shard")
        .join(stored, on=key, how="left")
        .join(judged, on=list(ATTEMPT_KEY), how="left")
        .withColumn("state", F.coalesce("state", F.lit("missing")))
        .withColumn("reward", F.when(F.col("verdict") == "scored", F.col("reward")))
    )


def breakdown(frame: DataFrame) -> DataFrame:
    """Count rollouts by what became of them.

    Returns:
        One row per combination seen: `state`, `failure_kind`, `answer_state`, `verdict`, `is_scored`,
        `missing_shard` (null unless missing), `rollouts`, `rewards` (sum), `reason` (one of them; null if scored),
        `input_tokens`, `output_tokens` (sums; null where none is known).
    """
    return frame.groupBy(
        "state",
        "failure_kind",
        "answer_state",
        "verdict",
        F.col("reward").isNotNull().alias("is_scored"),
        F.when(F.col("state") == "missing", F.col("shard")).alias("missing_shard"),
    ).agg(
        F.count("*").alias("rollouts"),
        F.sum("reward").alias("rewards"),
        F.min("reason").alias("reason"),
        F.sum("input_tokens").alias("input_tokens"),
        F.sum("output_tokens").alias("output_tokens"),
    )


def is_pass(reward: Column) -> Column:
    """Tell whether a reward counts as a pass: full marks, 1 or above."""
    return reward >= F.lit(1.0)
