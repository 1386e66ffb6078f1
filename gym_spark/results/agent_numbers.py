"""Numbers over all tasks of a label, and over each repeat: from what the partitions' passes yielded.

In: frames of `PASS_SCHEMA`. Out: small rows, one per label and column. No rollout is collected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.results.describe import STATISTICS, Statistic, describe
from gym_spark.results.partition_pass import (
    PERF_FIELDS,
    LabelSums,
    sums_of,
)
from gym_spark.results.pass_majority import Score
from gym_spark.results.perf import perf_summary
from gym_spark.results.repeats import repeat_statistics

#: What the second pass yields: one row per label and column.
_COLUMN_SCHEMA: Final = pa.schema(
    [
        pa.field("label", pa.string()),
        pa.field("column", pa.string()),
        pa.field("count", pa.int64()),
        # JSON: {statistic: value}, and {repeat: {statistic: value}}
        pa.field("overall", pa.string()),
        pa.field("by_repeat", pa.string()),
    ]
)


_PERF_SCHEMA: Final = pa.schema([pa.field("label", pa.string()), pa.field("summary", pa.string())])


@dataclass(frozen=True, slots=True)
class LabelNumbers:
    """The numbers of one label.

    Attributes:
        sums: What was counted.
        statistics: statistic -> column -> value.
        by_repeat: repeat -> column -> statistic -> value.
    """

    sums: LabelSums
    statistics: dict[str, dict[str, float]]
    by_repeat: dict[int, dict[str, dict[str, float]]]


def label_numbers(passes: DataFrame) -> dict[str | None, LabelNumbers]:
    """Return the numbers of each label, and under None what has no label; collects a row per label and column.

    Args:
        passes: Rows of `PASS_SCHEMA`.
    """
    partials = passes.where("kind = 'sums'").select("label", "sums").collect()
    sums = sums_of((row.label, bytes(row.sums)) for row in partials)
    blobs = passes.where("kind = 'column'").select("label", "column", "values", "repeats")
    columns = blobs.groupBy("label", "column").applyInArrow(_column_numbers, from_arrow_schema(_COLUMN_SCHEMA))
    found: dict[str | None, LabelNumbers] = {
        label: LabelNumbers(own, {name: {} for name in STATISTICS}, {}) for label, own in sums.items()
    }
    for row in sorted(columns.collect(), key=lambda row: row.column):
        numbers = found[row.label]
        for name, value in json.loads(row.overall).items():
            # Of one value among several rows there is no deviation.
            if name != "std" or row["count"] > 1 or numbers.sums.rows == 1:
                numbers.statistics[name][row.column] = value
        for repeat, statistics in json.loads(row.by_repeat).items():
            numbers.by_repeat.setdefault(int(repeat), {})[row.column] = statistics
    return found


def perf_numbers(passes: DataFrame, numbers: Mapping[str | None, LabelNumbers]) -> dict[str | None, dict[str, float]]:
    """Return what was observed of tokens, turns and times, for labels of which something was; a row per label.

    Args:
        passes: Rows of `PASS_SCHEMA`.
        numbers: Of :func:`label_numbers`.
    """
    blobs = passes.where("kind = 'perf'").select("label", "values")
    rows = blobs.groupBy("label").applyInArrow(_perf_numbers, from_arrow_schema(_PERF_SCHEMA)).collect()
    found = {}
    for row in rows:
        if row.summary is not None:
            results = numbers[row.label].sums.rows + numbers[row.label].sums.masked
            found[row.label] = {
                name: value / results if name.endswith("_coverage") else value
                for name, value in json.loads(row.summary).items()
            }
    return found


def _perf_numbers(table: pa.Table) -> pa.Table:
    told = np.concatenate([np.frombuffer(blob, np.float64) for blob in table["values"].to_pylist()])
    told = told.reshape(-1, len(PERF_FIELDS))
    fields = {name: Score(told[:, place], ~np.isnan(told[:, place])) for place, name in enumerate(PERF_FIELDS)}
    # Of one rollout: the shares are divided by their number where it is known.
    summary = perf_summary(1, len(told), fields)
    text = None if summary is None else json.dumps(summary)
    label = pa.array([table["label"][0].as_py()], pa.string())
    return pa.table({"label": label, "summary": pa.array([text], pa.string())}, schema=_PERF_SCHEMA)


def _column_numbers(table: pa.Table) -> pa.Table:
    """Describe one column of one label, over all and in each repeat."""
    values = np.concatenate([np.frombuffer(blob, np.float64) for blob in table["values"].to_pylist()])
    repeats = np.concatenate([np.frombuffer(blob, np.int32) for blob in table["repeats"].to_pylist()])
    known, codes = np.unique(repeats, return_inverse=True)
    everything = np.ones(len(values), bool)
    overall = describe(np.zeros(len(values), np.int64), 1, values, everything).statistics
    by_repeat = repeat_statistics(values, everything, codes, len(known))
    return pa.table(
        {
            "label": pa.array([table["label"][0].as_py()], pa.string()),
            "column": [table["column"][0].as_py()],
            "count": [len(values)],
            "overall": [json.dumps(_at(overall, 0))],
            "by_repeat": [json.dumps({int(repeat): _at(by_repeat, place) for place, repeat in enumerate(known)})],
        },
        schema=_COLUMN_SCHEMA,
    )


def _at(statistics: Mapping[str, Statistic], place: int) -> dict[str, float]:
    return {name: float(one.values[place]) for name, one in statistics.items() if one.defined[place]}
