"""One pass over a run's tasks as frames: everything that a profile and NeMo Gym's files need, from one scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.config import ExceptionPolicy
from gym_spark.results.assembly import arrived, assembled
from gym_spark.results.outcomes import BATCH_ROWS
from gym_spark.results.partition_pass import PASS_SCHEMA, pass_over, whole
from gym_spark.results.partition_rows import MEASURED_SCHEMA, measured
from gym_spark.results.summary import Counts, counted, summaries


@dataclass(frozen=True, slots=True)
class Groups:
    """How the field's metrics group rollouts.

    Attributes:
        fan_out: Per task and label, not per task.
        text_ids: Some task is known by a text; it is shown as that.
    """

    fan_out: bool
    text_ids: bool


def passed(sources: DataFrame, graded_with_exception: ExceptionPolicy, groups: Groups | None = None) -> DataFrame:
    """Pass over a run's tasks, a partition at a time. Persist what is returned: its kinds of rows are read apart.

    Args:
        sources: Of `results.outcomes.sources`; the rows of a partition are in memory at once.
        graded_with_exception: What a scored rollout counts as that an exception cut short.
        groups: Also what the field's metrics are made of.

    Returns:
        The columns of `PASS_SCHEMA`.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        outcomes = assembled(batches, graded_with_exception)
        if outcomes is not None:
            yield from summaries(outcomes)
            if groups is not None:
                yield from pass_over(measured(outcomes), fan_out=groups.fan_out, text_ids=groups.text_ids)

    return _mapped(sources, work, PASS_SCHEMA)


def measured_rows(sources: DataFrame, graded_with_exception: ExceptionPolicy) -> DataFrame:
    """Return what the field's metrics are made of, one row per planned rollout: the columns of `MEASURED_SCHEMA`."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        outcomes = assembled(batches, graded_with_exception)
        if outcomes is not None:
            yield measured(outcomes)

    return _mapped(sources, work, MEASURED_SCHEMA)


def passed_over(rows: DataFrame, groups: Groups) -> DataFrame:
    """Do as :func:`passed`, for the field's metrics alone, over `measured_rows`: whole tasks in a partition."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        table = arrived(batches, MEASURED_SCHEMA)
        if table is not None:
            yield from pass_over(table, fan_out=groups.fan_out, text_ids=groups.text_ids)

    return _mapped(rows.select(*MEASURED_SCHEMA.names), work, PASS_SCHEMA)


def profiles_of(passes: DataFrame) -> DataFrame:
    """Return the rewards of each planned task: `task_id`, `task_index` and the fields of `results.summary.PROFILE`."""
    return passes.where("kind = 'task'").select("task_id", "task_index", "profile.*")


def counts_of(passes: DataFrame) -> Counts:
    """Return what became of the planned rollouts; collects one row per partition."""
    rows = passes.where("kind = 'counts'").select("sums").collect()
    return counted(bytes(row["sums"]) for row in rows)


def _mapped(
    frame: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]], schema: pa.Schema
) -> DataFrame:
    def batches(arriving: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in work(arriving):
            yield from whole(table, schema).to_batches(max_chunksize=BATCH_ROWS)

    return frame.mapInArrow(batches, from_arrow_schema(schema))
