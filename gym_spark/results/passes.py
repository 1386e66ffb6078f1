"""One pass over a run's tasks as frames: everything that a profile and NeMo Gym's files need, from one scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.config import ExceptionPolicy
from gym_spark.results.assembly import OUTCOMES_SCHEMA, TEXTS, arrived, assembled
from gym_spark.results.group_entries import LINES_SCHEMA, Groups, Texts, merged
from gym_spark.results.outcomes import BATCH_ROWS
from gym_spark.results.partition_pass import PASS_SCHEMA, pass_over, whole
from gym_spark.results.partition_rows import MEASURED_SCHEMA, measured
from gym_spark.results.summary import Counts, counted, summaries


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
        found = assembled(batches, graded_with_exception)
        if found is not None:
            yield from summaries(found.outcomes)
            if groups is not None:
                yield from pass_over(measured(found.outcomes), groups, Texts(found.texts, found.text_of))

    return _mapped(sources, work, PASS_SCHEMA)


def measured_rows(sources: DataFrame, graded_with_exception: ExceptionPolicy, *more: str) -> DataFrame:
    """Return what the field's metrics are made of, one row per planned rollout: the columns of `MEASURED_SCHEMA`.

    And `more` columns of `results.assembly.OUTCOMES_SCHEMA`.
    """
    added = [OUTCOMES_SCHEMA.field(name) for name in more if name not in MEASURED_SCHEMA.names]
    schema = pa.schema([*MEASURED_SCHEMA, *added])

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        found = assembled(batches, graded_with_exception)
        if found is not None:
            rows = measured(found.outcomes)
            for field in added:
                rows = rows.append_column(field, found.outcomes[field.name])
            yield rows

    return _mapped(sources, work, schema)


def passed_over(rows: DataFrame, groups: Groups) -> DataFrame:
    """Do as :func:`passed`, for the field's metrics alone, over `measured_rows`: whole tasks in a partition.

    A column `own` is what a group's entry tells besides (`results.assembly.TEXTS`).
    """
    known = [field for field in TEXTS if field.name in rows.columns]
    schema = pa.schema([*MEASURED_SCHEMA, *known])

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        table = arrived(batches, schema)
        if table is not None:
            texts = Texts(table.select([field.name for field in known]), np.arange(table.num_rows))
            yield from pass_over(table.select(MEASURED_SCHEMA.names), groups, texts)

    return _mapped(rows.select(*schema.names), work, PASS_SCHEMA)


def profiles_of(passes: DataFrame) -> DataFrame:
    """Return the rewards of each planned task: `task_id`, `task_index` and the fields of `results.summary.PROFILE`."""
    return passes.where("kind = 'task'").select("task_id", "task_index", "profile.*")


def counts_of(passes: DataFrame) -> Counts:
    """Return what became of the planned rollouts; collects one row per partition."""
    rows = passes.where("kind = 'counts'").select("sums").collect()
    return counted(bytes(row["sums"]) for row in rows)


def group_lines(passes: DataFrame, *, between: str, partitions: int) -> DataFrame:
    """Return NeMo Gym's group entries, in the order of tasks and labels: `line`, many entries in each.

    Args:
        passes: Rows of `PASS_SCHEMA`.
        between: What stands between two entries of a `line`.
        partitions: Over how many the lines go.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        blobs = [blob for batch in batches for blob in batch["values"].to_pylist()]
        yield from merged(blobs, between=between)

    rows = passes.where("kind = 'lines'").select("bucket", "values")
    # Compressed pieces of some thousand entries each: this is all that is shuffled, and no text is seen by the JVM.
    return _mapped(rows.repartitionByRange(partitions, "bucket"), work, LINES_SCHEMA)


def _mapped(
    frame: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]], schema: pa.Schema
) -> DataFrame:
    def batches(arriving: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in work(arriving):
            yield from whole(table, schema).to_batches(max_chunksize=BATCH_ROWS)

    return frame.mapInArrow(batches, from_arrow_schema(schema))
