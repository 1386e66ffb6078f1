"""One pass over whole tasks, on a worker: statistics of each group, and what the numbers over all tasks are made of.

Rows of some tasks enter as one Arrow table; columns of numbers are numpy arrays from then on, and texts are made by
Arrow's kernels: nothing loops over rows or tasks. No pyspark.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.describe import STATISTICS, Bools, Ints, describe
from gym_spark.results.partition_rows import MEASURED_SCHEMA, PERF, Rows
from gym_spark.results.pass_majority import Answers, Partial, Score, merge, partial_sums
from gym_spark.results.repeats import samples_per_repeat

#: What leaves; `kind` says which columns a row has.
PASS_SCHEMA: Final = pa.schema(
    [
        # group: task to infos · column: label to repeats · perf: label, values · sums: label, sums
        pa.field("kind", pa.string(), nullable=False),
        # JSON: the task's own id, a number or a text
        pa.field("task", pa.string()),
        pa.field("task_id", pa.string()),
        pa.field("task_index", pa.int64()),
        pa.field("label", pa.string()),
        # repeat of the first measured rollout
        pa.field("first", pa.int32()),
        pa.field("rollouts", pa.int64()),
        pa.field("expected", pa.int64()),
        # JSON: members of an object, and of an array
        pa.field("statistics", pa.string()),
        pa.field("infos", pa.string()),
        pa.field("column", pa.string()),
        # float64 and int32, native order: the present values, and the repeat of each. Of perf: a row of `PERF_FIELDS`
        # for each observed rollout, NaN where it does not tell.
        pa.field("values", pa.binary()),
        pa.field("repeats", pa.binary()),
        pa.field("sums", pa.binary()),
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


def pass_over(batches: Iterable[pa.RecordBatch], *, fan_out: bool, text_ids: bool) -> Iterator[pa.RecordBatch]:
    """Compute what one partition contributes.

    Args:
        batches: Rows of `MEASURED_SCHEMA`, of whole tasks.
        fan_out: Groups are per task and label, not per task.
        text_ids: Some task is known by a text; it is shown as that.

    Yields:
        Rows of `PASS_SCHEMA`: one per group with a measured rollout, one per label and column, one per label.
    """
    arrived = [batch for batch in batches if batch.num_rows]
    if not arrived:
        return
    # Spark tells of nulls in columns as it derives them, not as the schema has them.
    table = pa.Table.from_batches(arrived).cast(MEASURED_SCHEMA)
    keys = [("task_index", "ascending"), ("label", "ascending"), ("rollout_index", "ascending")]
    table = table.sort_by(keys).combine_chunks()
    rows = Rows.of(table)
    yield from _made(_groups(table, rows, fan_out=fan_out, text_ids=text_ids))
    for label in pc.unique(table["label"]).to_pylist():
        chosen = pc.equal(table["label"], label) if label is not None else pc.is_null(table["label"])
        own = np.asarray(chosen.combine_chunks())
        yield from _made(_columns(rows, own, label))
        yield from _made(_perf(rows, own, label))
        sums = pickle.dumps(_sums(rows, own))
        yield from _made(pa.table({"kind": ["sums"], "label": pa.array([label], pa.string()), "sums": [sums]}))


def sums_of(blobs: Iterable[tuple[str | None, bytes]]) -> dict[str | None, LabelSums]:
    """Add up what partitions have yielded for each label."""
    found: dict[str | None, LabelSums] = {}
    for label, blob in blobs:
        found[label] = found.get(label, LabelSums()).plus(pickle.loads(blob))
    return found


def _groups(table: pa.Table, rows: Rows, *, fan_out: bool, text_ids: bool) -> pa.Table:
    changes = rows.tasks[1:] != rows.tasks[:-1]
    if fan_out:
        labels = np.asarray(pc.fill_null(table["label"].combine_chunks().dictionary_encode().indices, -1))
        changes |= labels[1:] != labels[:-1]
    codes = np.concatenate([[0], np.cumsum(changes)])
    count = int(codes[-1]) + 1
    measured = np.bincount(codes[rows.measured], minlength=count)
    expected = np.bincount(codes[~rows.masked], minlength=count)
    kept = np.flatnonzero(measured)
    at = np.flatnonzero(rows.measured)
    firsts = at[np.searchsorted(codes[at], kept)]
    first = table.select(["task_id", "task_index", "label", "rollout_index"]).take(firsts)
    task = _task_json(table.take(at), text_ids=text_ids)
    infos = _infos(table.take(at), task, rows, at)
    offsets = np.concatenate([[0], np.cumsum(measured[kept])])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), infos)
    return pa.table(
        {
            "kind": pa.repeat("group", len(kept)),
            "task": task.take(pa.array(offsets[:-1])),
            "task_id": first["task_id"],
            "task_index": first["task_index"],
            "label": first["label"] if fan_out else pa.nulls(len(kept), pa.string()),
            "first": first["rollout_index"],
            "rollouts": measured[kept],
            "expected": expected[kept],
            "statistics": _statistics(rows, codes, count, kept),
            "infos": pc.binary_join(lists, ","),
        }
    )


def _statistics(rows: Rows, codes: Ints, count: int, kept: Ints) -> pa.Array:
    measured = rows.measured
    described = {
        name: describe(codes[measured], count, score.values[measured], score.present[measured]).statistics
        for name, score in rows.columns.items()
    }
    pieces = []
    for statistic in STATISTICS:
        for name, found in described.items():
            one = found[statistic]
            pieces.append(_member(f"{statistic}/{name}", one.values[kept], one.defined[kept]))
    return _joined(pieces, len(kept))


def _task_json(table: pa.Table, *, text_ids: bool) -> pa.Array:
    if not text_ids:
        return pc.cast(table["task_index"], pa.string()).combine_chunks()
    codes = table["task_id"].combine_chunks().dictionary_encode()
    index = dict(zip(table["task_id"].to_pylist(), table["task_index"].to_pylist(), strict=True))
    shown = [json.dumps(shown_id(text, index[text])) for text in codes.dictionary.to_pylist()]
    return pa.array(shown, pa.string()).take(codes.indices)


def _infos(table: pa.Table, task: pa.Array, rows: Rows, at: Ints) -> pa.Array:
    repeat = pc.cast(table["rollout_index"], pa.string()).combine_chunks()
    bare = pc.utf8_trim(task, '"')
    key = pc.binary_join_element_wise('{"rollout_id":"', bare, ":", repeat, '","_ng_task_index":', task, "")
    pieces = [pc.binary_join_element_wise(key, ',"_ng_rollout_index":', repeat, "")]
    reward, odd = rows.columns["reward"], rows.shown["reward"]
    finite = np.isfinite(reward.values[at])
    plain = reward.present[at] & ~odd.present[at]
    pieces.append(_member("reward", reward.values[at], plain & finite))
    pieces.append(_fixed('"reward":null', plain & ~finite))
    pieces.append(_fixed('"reward":true', odd.present[at] & (odd.values[at] != 0)))
    pieces.append(_fixed('"reward":false', odd.present[at] & (odd.values[at] == 0)))
    pieces.append(_fixed('"reward":null', _null_rewards(table)))
    for name, score in rows.shown.items():
        if name != "reward":
            pieces.append(_member(name, score.values[at], score.present[at] & np.isfinite(score.values[at])))
    return pc.binary_join_element_wise(_joined(pieces, len(at)), "}", "")


def shown_id(text: str, index: int) -> int | str:
    """Return a task's own id: a number, or the text that it was imported with."""
    if text == str(index):
        return index
    return text[1:-1] if text.startswith('"') else text


def _null_rewards(table: pa.Table) -> Bools:
    """Tell where the reward was there and null: the scores name it, without a value."""
    scores = table["scores"].combine_chunks()
    if not len(scores):
        return np.zeros(0, bool)
    items = scores.items
    named = np.asarray(pc.and_(pc.equal(scores.keys, "reward"), pc.is_null(items)))
    starts = np.asarray(scores.offsets)
    total = np.concatenate([[0], np.cumsum(named)])
    some: Bools = total[starts[1:]] > total[starts[:-1]]
    return some


def _member(name: str, values: npt.NDArray[np.float64], defined: Bools) -> pa.Array:
    """Return ``"name":value`` texts, null where undefined."""
    texts = pc.cast(pa.array(values, pa.float64(), mask=~defined), pa.string())
    return pc.binary_join_element_wise(json.dumps(name) + ":", texts, "")


def _fixed(text: str, where: Bools) -> pa.Array:
    return pc.if_else(pa.array(where), text, pa.scalar(None, pa.string()))


def _joined(pieces: list[pa.Array], count: int) -> pa.Array:
    # Begun with a text that is never null: pyarrow gives too few rows where all pieces of all rows are.
    joined = pc.binary_join_element_wise(pa.repeat("", count), *pieces, ",", null_handling="skip")
    return pc.utf8_slice_codeunits(joined, 1)


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


def _made(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Give a table all columns of `PASS_SCHEMA`."""
    given: Mapping[str, Any] = dict(zip(table.column_names, table.columns, strict=True))
    columns = [
        given[one.name].cast(one.type) if one.name in given else pa.nulls(table.num_rows, one.type)
        for one in PASS_SCHEMA
    ]
    yield from pa.Table.from_arrays(columns, schema=PASS_SCHEMA).to_batches(max_chunksize=4096)
