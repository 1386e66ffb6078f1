"""The collect stage as a frame. Its one action calls the model.

Staged: pending rollouts in, one summary row per worker out; finished rollouts go to the job's folder. Direct, where
workers reach no such folder: pending rollouts in, finished rollouts out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.rollout.records import PENDING_SCHEMA
from gym_spark.rollout.retake import Earlier
from gym_spark.rollout.worker import SUMMARY_SCHEMA, CollectJob, collect_partition, finished_batches
from gym_spark.tables.schemas import ROLLOUTS

#: More partitions than any cluster has slots: Spark makes as many as it has slots of a small range.
_MANY = 1000


def collected(pending: DataFrame, job: CollectJob) -> DataFrame:
    """Return the frame whose action collects the pending rollouts into the job's staging folder.

    Run exactly one action on it: every action calls the model again.

    Args:
        pending: The columns of `PENDING_SCHEMA`, one row per rollout to do.
        job: What the workers need.

    Returns:
        The columns of `SUMMARY_SCHEMA`: one row per worker.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield collect_partition(iter(batches), job, _context().partitionId())

    return _spread(pending, job.workers).mapInArrow(work, from_arrow_schema(SUMMARY_SCHEMA))


def streamed(pending: DataFrame, job: CollectJob, *, workers: Sequence[int]) -> DataFrame:
    """Return the frame of finished rollouts, of the columns of `ROLLOUTS`. Its one action is the write.

    Args:
        pending: The columns of `PENDING_SCHEMA`, one row per rollout to do.
        job: What the workers need.
        workers: Which of the `job.workers` this frame has, from 0.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from finished_batches(iter(batches), job, workers[_context().partitionId()], Earlier())

    return _spread(pending, len(workers)).mapInArrow(work, from_arrow_schema(ROLLOUTS.schema))


def task_slots(spark: SparkSession) -> int:
    """Return how many Spark tasks run at once."""
    with contextlib.suppress(PySparkException):  # Spark Connect has no context to ask
        return int(spark.sparkContext.defaultParallelism)
    slots = spark.range(_MANY).select(F.spark_partition_id().alias("slot"))
    last = slots.agg(F.max("slot").alias("slot")).first()
    return 1 if last is None else int(last["slot"]) + 1


def _spread(pending: DataFrame, workers: int) -> DataFrame:
    # Round robin: shares that differ by one row at most, so that all workers end at about the same time.
    return pending.select(*PENDING_SCHEMA.names).repartition(workers)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise AssertionError("Spark gives every task a context")
    return context
