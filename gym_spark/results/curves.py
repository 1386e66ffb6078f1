"""NeMo Gym's pass@k and majority@k over any scores, of all tasks or of each subset of them, for metrics of one's own.

In: rollouts as `results.custom.metric_rows` gives them. Out: named values. Partitions of whole tasks yield sums; one
small row per partition is collected.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gym_spark.errors import ConfigError
from gym_spark.results.describe import Ints
from gym_spark.results.group_scores import MOST, task_field
from gym_spark.results.pass_majority import (
    Answers,
    Partial,
    Score,
    finish,
    finish_subsets,
    merge,
    partial_sums,
    subset_sums,
)

_SCHEMA: Final = pa.schema([pa.field("sums", pa.binary())])
#: Of a partition: whether there are answers, and the sums by subset; under None those of all tasks.
_Part = tuple[bool, dict[str | None, Partial]]


def pass_majority(
    rollouts: DataFrame,
    *,
    scores: Mapping[str, str | Column] | None = None,
    answer: str | Column | None = "extracted_answer",
    subset: str | Column | None = None,
) -> DataFrame:
    """Return what `results.pass_majority.finish` tells, as a metrics hook may return it.

    Masked rollouts and those without any of the scores do not count.

    Args:
        rollouts: One row per planned rollout, as a hook is given them.
        scores: Numbers or booleans by name; None: ``{"accuracy": "reward"}``.
        answer: What rollouts vote on; None, or no answer anywhere: there is no majority@k.
        subset: Tell the same of each subset in its place, as ``subset/metric``: the first of a task's rollouts that
            has a text here decides to which one the task belongs.

    Returns:
        `name`, `value` in percent and `position`: not null for what NeMo Gym lists by place in a task.
    """
    found = _sums(rollouts, scores or {"accuracy": "reward"}, answer, subset)
    if subset is not None:
        metrics = finish_subsets({name: own for name, own in found.items() if name is not None})
    else:
        metrics = finish(merge(found.values()))
    listed = metrics.pop("per_sample_aggregate", {})
    rows: list[tuple[str, float, int | None]] = [
        (name, value, None) for name, value in metrics.items() if isinstance(value, float)
    ]
    if isinstance(listed, dict):
        rows += [(name, value, place) for name, values in listed.items() for place, value in enumerate(values)]
    return rollouts.sparkSession.createDataFrame(rows, "name string, value double, position int")


def subsets_by(rollouts: DataFrame, field: str) -> dict[str, float]:
    """Return ``VALUE/metric`` of the rewards for every value of a field of the tasks.

    Args:
        rollouts: As a metrics hook is given them.
        field: Name of the field; a task without it, or with an empty text, is in no subset.

    Raises:
        ConfigError: the field has more values than groups can be.
    """
    found = _sums(rollouts, {"accuracy": "reward"}, "extracted_answer", task_field(field))
    named = {name: own for name, own in sorted(found.items(), key=lambda item: item[0] or "") if name is not None}
    if len(named) > MOST:
        raise ConfigError(f"The field '{field}' has more than {MOST} values; --by takes one that makes groups.")
    return {name: value for name, value in finish_subsets(named).items() if isinstance(value, float)}


def _sums(
    rollouts: DataFrame,
    scores: Mapping[str, str | Column],
    answer: str | Column | None,
    subset: str | Column | None,
) -> dict[str | None, Partial]:
    """Add up what the partitions yield, by subset; under None where there are none."""
    names = sorted(scores)
    given = [_column(scores[name]).cast("double").alias(f"score_{place}") for place, name in enumerate(names)]
    rows = rollouts.where("verdict is distinct from 'masked'").select(
        "task_id",
        "rollout_index",
        *given,
        _column(answer).cast("string").alias("answer"),
        F.nullif(_column(subset).cast("string"), F.lit("")).alias("subset"),
    )
    scored = reduce(Column.__or__, (F.col(f"score_{place}").isNotNull() for place in range(len(names))))

    # Columns themselves cannot go to the workers.
    voted, split = answer is not None, subset is not None

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if arrived := [batch for batch in batches if batch.num_rows]:
            part = _part(pa.Table.from_batches(arrived), names, voted=voted, split=split)
            yield pa.RecordBatch.from_pydict({"sums": [pickle.dumps(part)]}, schema=_SCHEMA)

    passed = rows.where(scored).repartition("task_id").mapInArrow(work, from_arrow_schema(_SCHEMA))
    parts: list[_Part] = [pickle.loads(bytes(row.sums)) for row in passed.collect()]
    any_answers = any(has for has, _ in parts)
    found = {
        name: merge(sums[name] for _, sums in parts if name in sums)
        for name in {name for _, own in parts for name in own}
    }
    return found if any_answers or not voted else {name: own.without_votes() for name, own in found.items()}


def _column(given: str | Column | None) -> Column:
    return F.lit(None) if given is None else F.col(given) if isinstance(given, str) else given


def _part(table: pa.Table, names: list[str], *, voted: bool, split: bool) -> _Part:
    tasks, order = _codes(table["task_id"]), np.asarray(table["rollout_index"], dtype=np.int64)
    scores = {}
    for place, name in enumerate(names):
        column = table[f"score_{place}"]
        scores[name] = Score(np.asarray(pc.fill_null(column, 0.0)), np.asarray(pc.is_valid(column)))
    answers = Answers(_codes(table["answer"]), np.asarray(pc.is_valid(table["answer"]))) if voted else None
    has = answers is not None and bool(answers.present.any())
    if not split:
        return has, {None: partial_sums(tasks, order, scores, answers)}
    values = table["subset"].combine_chunks().dictionary_encode()
    subsets = Answers(_codes(table["subset"]), np.asarray(pc.is_valid(table["subset"])))
    found = subset_sums(tasks, order, scores, answers, subsets)
    return has, {values.dictionary[code].as_py(): own for code, own in found.items()}


def _codes(column: pa.ChunkedArray) -> Ints:
    """Return equal integers for equal texts; -1 for null."""
    indices = column.combine_chunks().dictionary_encode().indices
    return np.asarray(pc.fill_null(indices, -1)).astype(np.int64)
