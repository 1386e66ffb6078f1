"""One pass over whole tasks, on a worker: statistics of each group, and what the numbers over all tasks are made of.

Rows of some tasks enter as one Arrow table; columns of numbers are numpy arrays from then on, and texts are made by
Arrow's kernels: nothing loops over rows or tasks. No pyspark.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.describe import Bools
from gym_spark.results.group_entries import Groups, Texts, lines_of
from gym_spark.results.partition_rows import PERF, Rows
from gym_spark.results.pass_majority import Answers, Partial, Score, merge, partial_sums
from gym_spark.results.repeats import samples_per_repeat
from gym_spark.results.summary import PROFILE

#: What leaves; `kind` says which columns a row has.
PASS_SCHEMA: Final = pa.schema(
    [
        # task: task_id, task_index, profile · counts: sums (`results.summary`) · lines: label, bucket, values
        # (`results.group_entries`) · column: label, column, values, repeats · perf: label, values · sums: label, sums
        pa.field("kind", pa.string(), nullable=False),
        pa.field("task_id", pa.string()),
        pa.field("task_index", pa.int64()),
        pa.field("label", pa.string()),
        pa.field("column", pa.string()),
        pa.field("bucket", pa.int64()),
        # Of a column: float64 and int32, native order, the present values and the repeat of each. Of perf: a row of
        # `PERF_FIELDS` for each observed rollout, NaN where it does not tell.
        pa.field("values", pa.binary()),
        pa.field("repeats", pa.binary()),
        pa.field("sums", pa.binary()),
        pa.field("profile", PROFILE),
    ]
)

#: Fields of an observation that are summed up.
PERF_FIELDS: Final = (
    "token_observability_coverage",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "num_turns",
    "total_latency_ms",
)


@dataclass(slots=True)
class LabelSums:
    """What adds up over partitions, for one label."""

    #: Measured rollouts.
    rows: int = 0
    masked: int = 0
    #: Distinct tasks with a measured rollout, in all, and by repeat.
    tasks: int = 0
    tasks_by_repeat: dict[int, int] = field(default_factory=dict)
    #: Tasks whose results are all masked.
    masked_tasks: int = 0
    #: Repeats that have a result, masked ones included.
    all_repeats: frozenset[int] = frozenset()
    #: Of the rewards, with votes on answers, whether there are any: another partition may have some.
    votes: Partial = field(default_factory=lambda: merge([]))
    answers: int = 0

    @property
    def curves(self) -> Partial:
        """Sums of pass@k, its averages and, where there are answers, majority@k."""
        return self.votes if self.answers else self.votes.without_votes()

    def plus(self, other: LabelSums) -> LabelSums:
        """Add the sums of other tasks."""
        repeats = self.tasks_by_repeat.keys() | other.tasks_by_repeat.keys()
        return LabelSums(
            rows=self.rows + other.rows,
            masked=self.masked + other.masked,
            tasks=self.tasks + other.tasks,
            tasks_by_repeat={
                repeat: self.tasks_by_repeat.get(repeat, 0) + other.tasks_by_repeat.get(repeat, 0)
                for repeat in sorted(repeats)
            },
            masked_tasks=self.masked_tasks + other.masked_tasks,
            all_repeats=self.all_repeats | other.all_repeats,
            votes=merge([self.votes, other.votes]),
            answers=self.answers + other.answers,
        )


def pass_over(table: pa.Table, groups: Groups, texts: Texts) -> Iterator[pa.Table]:
    """Compute what one partition contributes to the field's metrics.

    Args:
        table: Rows of `MEASURED_SCHEMA`, of whole tasks.
        groups: How they are grouped.
        texts: What a group's entry says of its input.

    Yields:
        Some columns of `PASS_SCHEMA`: the entries of some thousand groups in a row, a row per label and column, and
        per label.
    """
    keys = [("task_index", "ascending"), ("label", "ascending"), ("rollout_index", "ascending")]
    order = pc.sort_indices(table, keys)
    table = table.take(order).combine_chunks()
    rows = Rows.of(table)
    yield lines_of(table, rows, groups, texts.take(np.asarray(order)))
    for label in pc.unique(table["label"]).to_pylist():
        labels = table["label"]
        chosen = pc.is_null(labels) if label is None else pc.fill_null(pc.equal(labels, label), False)
        own = np.asarray(chosen.combine_chunks())
        yield _columns(rows, own, label)
        yield _perf(rows, own, label)
        sums = pickle.dumps(_sums(rows, own))
        yield pa.table({"kind": ["sums"], "label": pa.array([label], pa.string()), "sums": [sums]})


def sums_of(blobs: Iterable[tuple[str | None, bytes]]) -> dict[str | None, LabelSums]:
    """Add up what partitions have yielded for each label."""
    found: dict[str | None, LabelSums] = {}
    for label, blob in blobs:
        found[label] = found.get(label, LabelSums()).plus(pickle.loads(blob))
    return found


def _columns(rows: Rows, own: Bools, label: str | None) -> pa.Table:
    names, values, repeats = [], [], []
    for name, score in rows.columns.items():
        chosen = own & score.present
        if chosen.any():
            names.append(name)
            values.append(score.values[chosen].tobytes())
            repeats.append(rows.repeats[chosen].tobytes())
    return pa.table(
        {
            "kind": pa.repeat("column", len(names)),
            "label": pa.array([label] * len(names), pa.string()),
            "column": pa.array(names, pa.string()),
            "values": pa.array(values, pa.binary()),
            "repeats": pa.array(repeats, pa.binary()),
        }
    )


def _perf(rows: Rows, own: Bools, label: str | None) -> pa.Table:
    observed = rows.perf.get(PERF)
    if observed is None:
        return pa.table({"kind": pa.array([], pa.string())})
    chosen = observed.present & own & (rows.measured | rows.masked)
    told = np.full((int(chosen.sum()), len(PERF_FIELDS)), np.nan)
    for place, name in enumerate(PERF_FIELDS):
        if (field := rows.perf.get(f"{PERF}.{name}")) is not None:
            told[:, place] = np.where(field.present[chosen], field.values[chosen], np.nan)
    blob = pa.array([told.tobytes()], pa.binary())
    return pa.table({"kind": ["perf"], "label": pa.array([label], pa.string()), "values": blob})


def _sums(rows: Rows, own: Bools) -> LabelSums:
    measured, masked = rows.measured & own, rows.masked & own
    tasks = np.unique(rows.tasks[measured])
    repeats, codes = np.unique(rows.repeats[measured], return_inverse=True)
    by_repeat, distinct = samples_per_repeat(rows.tasks[measured], codes, len(repeats))
    reward = rows.columns["reward"]
    scored = measured & reward.present
    answers = Answers(rows.answers.codes[scored], rows.answers.present[scored])
    votes = partial_sums(
        rows.tasks[scored],
        rows.repeats[scored],
        {"accuracy": Score(reward.values[scored], np.ones(int(scored.sum()), bool))},
        answers,
    )
    return LabelSums(
        rows=int(measured.sum()),
        masked=int(masked.sum()),
        tasks=distinct,
        tasks_by_repeat=dict(zip(repeats.tolist(), by_repeat.tolist(), strict=True)),
        masked_tasks=len(np.setdiff1d(np.unique(rows.tasks[masked]), tasks)),
        all_repeats=frozenset(np.unique(rows.repeats[measured | masked]).tolist()),
        votes=votes,
        answers=int(answers.present.sum()),
    )


def whole(table: pa.Table, schema: pa.Schema = PASS_SCHEMA) -> pa.Table:
    """Give a table that has some columns of a schema all of them."""
    given: Mapping[str, Any] = dict(zip(table.column_names, table.columns, strict=True))
    columns = [
        given[one.name].cast(one.type) if one.name in given else pa.nulls(table.num_rows, one.type) for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
