"""The collect stage as a frame: pending rollouts in, one summary row per worker out. Its one action calls the model."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.rollout.records import PENDING_SCHEMA
from gym_spark.rollout.worker import SUMMARY_SCHEMA, CollectJob, collect_partition


def collected(pending: DataFrame, job: CollectJob) -> DataFrame:
    """Return the frame whose action collects the pending rollouts into the job's staging folder.

    Run exactly one action on it: every action calls the model again.

    Args:
        pending: The columns of `PENDING_SCHEMA`, one row per rollout to do.
        job: What the workers need.

    Returns:
        `partition`, `rollouts`: one row per worker.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise AssertionError("Spark gives every task a context")
        yield collect_partition(iter(batches), job, context.partitionId(), context.attemptNumber())

    # Round robin: shares that differ by one row at most, so that all workers end at about the same time.
    spread = pending.select(*PENDING_SCHEMA.names).repartition(job.workers)
    return spread.mapInArrow(work, from_arrow_schema(SUMMARY_SCHEMA))
