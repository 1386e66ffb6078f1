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
from gym_spark.results.assembly import OUTCOMES_SCHEMA, TEXTS, assembled
from gym_spark.results.summary import PASS
from gym_spark.tables.keys import ROLLOUT_KEY

#: Longer extracted answers are known by their digest.
ANSWER_CHARS: Final = 1000
#: Rollouts that one partition holds in memory at once.
ROWS_PER_PARTITION: Final = 125_000
#: Rows of one Arrow batch that leaves a worker.
BATCH_ROWS: Final = 4096


def sources(planned: DataFrame, rollouts: DataFrame, verifications: DataFrame, *, count: int = 0) -> DataFrame:
    """Bring the plan together with what is stored, whole tasks in a partition, for `results.assembly` to join.

    Args:
        planned: `task_id`, `task_index`, `shard`, `rollout_index`, `label` if there are labels, and `repeats` where a
            row stands for so many rollouts, from its `rollout_index` on; `sample` and `own` (`assembly.TEXTS`) where
            NeMo Gym's group entries are to be made.
        rollouts: The run's stored rollouts, every attempt.
        verifications: The verdicts of one verification of the run.
        count: About how many rollouts are planned: many take more partitions.

    Returns:
        The columns of `results.assembly.SOURCES_SCHEMA`, one row per row of the three.
    """
    texts = ("label", *(field.name for field in TEXTS))
    told = [F.col(name) if name in planned.columns else F.lit(None).cast("string").alias(name) for name in texts]
    repeats = F.col("repeats") if "repeats" in planned.columns else F.lit(1)
    plan = F.struct("task_index", "shard", told[0], repeats.cast("int").alias("repeats"), *told[1:])
    rollout = F.struct(
        *("attempt", "state", "failure_kind", "exception_kind", "answer_state", "latency_ms", "measures"),
        *("usage.input_tokens", "usage.output_tokens", "usage.total_tokens", "started_at"),
    )
    reason = F.when(F.col("state") != "scored", F.get_json_object("detail", "$.reason")).alias("reason")
    # Votes only ask which are equal, and an answer may be a whole text of megabytes.
    answer = F.when(
        F.length("extracted_answer") > ANSWER_CHARS, F.concat(F.lit("sha256:"), F.sha2("extracted_answer", 256))
    )
    answer = F.coalesce(answer, "extracted_answer").alias("extracted_answer")
    verdict = F.struct("attempt", F.col("state").alias("verdict"), "reward", reason, "scores", answer, "verified_at")
    parts = {"plan": planned.select(*ROLLOUT_KEY, plan.alias("plan"))}
    parts["rollout"] = rollouts.select(*ROLLOUT_KEY, rollout.alias("rollout"))
    parts["judgement"] = verifications.select(*ROLLOUT_KEY, verdict.alias("judgement"))
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts.values())
    return rows.repartition(partitions_for(count), "task_id")


def outcomes(sources: DataFrame, graded_with_exception: ExceptionPolicy = "count") -> DataFrame:
    """Join the plan with what is stored. The plan is the denominator: a rollout that is missing has a row here.

    Args:
        sources: Of :func:`sources`.
        graded_with_exception: What a scored rollout counts as that an exception cut short.

    Returns:
        The columns of `results.assembly.OUTCOMES_SCHEMA`, one row per planned rollout, whole tasks in a partition.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        found = assembled(batches, graded_with_exception)
        return () if found is None else found.outcomes.to_batches(max_chunksize=BATCH_ROWS)

    return sources.mapInArrow(work, from_arrow_schema(OUTCOMES_SCHEMA))


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


def is_pass(reward: Column) -> Column:
    """Tell whether a reward counts as a pass."""
    return reward >= F.lit(PASS)
