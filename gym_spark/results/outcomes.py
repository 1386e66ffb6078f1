"""What became of every planned rollout: the frame that all numbers are computed over. Narrow: no transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.config import ExceptionPolicy
from gym_spark.results.assembly import OUTCOMES_SCHEMA, assembled
from gym_spark.tables.keys import ROLLOUT_KEY

#: Longer extracted answers are known by their digest.
ANSWER_CHARS: Final = 1000
#: Rollouts that one partition holds in memory at once.
ROWS_PER_PARTITION: Final = 125_000
_USAGE: Final = ("input_tokens", "output_tokens", "total_tokens")


def outcomes(
    planned: DataFrame,
    rollouts: DataFrame,
    verifications: DataFrame,
    *,
    count: int = 0,
    graded_with_exception: ExceptionPolicy = "count",
) -> DataFrame:
    """Join the plan with what is stored. The plan is the denominator: a rollout that is missing has a row here.

    Args:
        planned: `task_id`, `task_index`, `shard`, `rollout_index`, and `label` if there are labels; one row per
            planned rollout.
        rollouts: The run's stored rollouts, every attempt.
        verifications: The verdicts of one verification of the run.
        count: About how many rollouts are planned: many take more partitions.
        graded_with_exception: What a scored rollout counts as that an exception cut short.

    Returns:
        The columns of `results.assembly.OUTCOMES_SCHEMA`, one row per planned rollout, whole tasks in a partition.
    """
    label = F.col("label") if "label" in planned.columns else F.lit(None).cast("string")
    plan = F.struct("task_index", "shard", label.alias("label"))
    usage = F.create_map(*(item for name in _USAGE for item in (F.lit(name), F.col(f"usage.{name}").cast("double"))))
    rollout = F.struct(
        *("attempt", "state", "failure_kind", "exception_kind", "answer_state", "latency_ms"),
        F.when(F.col("state") == "completed", F.coalesce("measures", usage)).alias("measures"),
        *("usage.input_tokens", "usage.output_tokens", "started_at"),
    )
    reason = F.when(F.col("state") != "scored", F.get_json_object("detail", "$.reason")).alias("reason")
    # Votes only ask which are equal, and an answer may be a whole text of megabytes.
    answer = F.when(
        F.length("extracted_answer") > ANSWER_CHARS, F.concat(F.lit("sha256:"), F.sha2("extracted_answer", 256))
    )
    answer = F.coalesce(answer, "extracted_answer").alias("extracted_answer")
    verdict = F.struct("attempt", F.col("state").alias("verdict"), "reward", reason, "scores", answer, "verified_at")
    sources = {"plan": planned.select(*ROLLOUT_KEY, plan.alias("plan"))}
    sources["rollout"] = rollouts.select(*ROLLOUT_KEY, rollout.alias("rollout"))
    sources["judgement"] = verifications.select(*ROLLOUT_KEY, verdict.alias("judgement"))
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), sources.values())

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from assembled(batches, graded_with_exception)

    return rows.repartition(partitions_for(count), "task_id").mapInArrow(work, from_arrow_schema(OUTCOMES_SCHEMA))


def partitions_for(count: int) -> int:
    """Return over how many partitions so many rollouts go, whole tasks each."""
    return max(2, -(-count // ROWS_PER_PARTITION))


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame while it is used several times."""
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()


def breakdown(frame: DataFrame) -> DataFrame:
    """Count rollouts by what became of them.

    Returns:
        One row per combination seen: `state`, `failure_kind`, `exception_kind`, `answer_state`, `verdict`, `is_scored`,
        `missing_shard` (null unless missing), `rollouts`, `rewards` (sum), `reason` (one of them; null if scored),
        `input_tokens`, `output_tokens` (sums; null where none is known).
    """
    return frame.groupBy(
        "state",
        "failure_kind",
        "exception_kind",
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
