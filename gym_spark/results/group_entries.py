"""NeMo Gym's group entries as JSON texts, made by Arrow's kernels on a worker: nothing loops over rows. No pyspark.

What leaves are compressed pieces of some thousand entries, for Spark to bring into order and the driver to write.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.describe import STATISTICS, Bools, Ints, describe
from gym_spark.results.partition_rows import Rows

LINES_SCHEMA: Final = pa.schema([pa.field("line", pa.string(), nullable=False)])
#: Tasks whose entries, of some KB each, are one piece: the driver takes as many at once.
TASKS_PER_PIECE: Final = 5_000
#: Entries of one merged line.
_ENTRIES: Final = 1_000
_ORDER: Final = [("task_index", "ascending"), ("label", "ascending")]


@dataclass(frozen=True, slots=True)
class Groups:
    """How the field's metrics group rollouts.

    Attributes:
        fan_out: Per task and label, not per task.
        text_ids: Some task is known by a text; it is shown as that.
        sample: Of an aggregate's entries: JSON of the sample that stands in each. An aggregate's groups are complete,
            and name no label.
    """

    fan_out: bool
    text_ids: bool
    sample: str | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """What is told of each row's input.

    Attributes:
        texts: `sample` and `own`, JSON of an input row, and members without braces; or some of them.
        rows: Row of `texts` of each rollout.
    """

    texts: pa.Table
    rows: Ints

    def take(self, order: Ints) -> Texts:
        """Return them in the order of other rows."""
        return Texts(self.texts, self.rows[order])

    def column(self, name: str, places: Ints) -> pa.Array:
        """Return a column, of the rollouts at some places; nulls if there is none of the name."""
        if name not in self.texts.column_names:
            return pa.nulls(len(places), pa.string())
        return self.texts[name].take(pa.array(self.rows[places])).combine_chunks()


def lines_of(table: pa.Table, rows: Rows, groups: Groups, texts: Texts) -> pa.Table:
    """Return the entries of all groups with a measured rollout, in pieces of neighbouring tasks of one label.

    Args:
        table: Rows of `MEASURED_SCHEMA`, in the order of tasks, labels and repeats.
        rows: The same.
        groups: How they are grouped.
        texts: Of the same rows.

    Returns:
        `kind`, `label`, `bucket`, `values`: a piece, for :func:`merged`.
    """
    starts = rows.tasks[1:] != rows.tasks[:-1]
    if groups.fan_out:
        codes = np.asarray(pc.fill_null(table["label"].combine_chunks().dictionary_encode().indices, -1))
        starts |= codes[1:] != codes[:-1]
    codes = np.concatenate([[0], np.cumsum(starts)])
    count = int(codes[-1]) + 1
    measured = np.bincount(codes[rows.measured], minlength=count)
    kept = np.flatnonzero(measured)
    at = np.flatnonzero(rows.measured)
    firsts = at[np.searchsorted(codes[at], kept)]
    done = measured[kept]
    task = _task_json(table.take(at), text_ids=groups.text_ids)
    offsets = np.concatenate([[0], np.cumsum(done)])
    infos = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _infos(table.take(at), task, rows, at))
    label = (
        table["label"].take(pa.array(firsts)).combine_chunks() if groups.fan_out else pa.nulls(len(kept), pa.string())
    )
    statistics = _statistics(rows, codes, count, kept)
    if groups.sample is not None:
        expected, agent, sample = done, pa.nulls(len(kept), pa.string()), pa.repeat(groups.sample, len(kept))
    else:
        expected, agent = np.bincount(codes[~rows.masked], minlength=count)[kept], _agents(label)
        sample = pc.fill_null(texts.column("sample", firsts), "{}")
    members = [
        _named("_ng_task_index", task.take(pa.array(offsets[:-1]))),
        pc.if_else(pc.equal(statistics, ""), None, statistics),
        texts.column("own", firsts),
        _named("agent_ref", agent),
        _named("sample", sample),
        _named("num_rollouts", pa.array(done)),
        _named("expected_num_rollouts", pa.array(expected)),
        _named("missing_num_rollouts", pa.array(expected - done)),
        _named("reward_profile_completion_pct", pa.array(100.0 * done / np.maximum(expected, 1))),
        pc.binary_join_element_wise('"rollout_infos":[', pc.binary_join(infos, ","), "]", ""),
    ]
    entry = pc.binary_join_element_wise("{", _joined(members, len(kept)), "}", "")
    return _pieces(pa.table({"task_index": rows.tasks[firsts], "label": label, "entry": entry}))


def merged(pieces: Iterable[bytes], *, between: str) -> Iterator[pa.Table]:
    """Bring the entries of some pieces into order; rows of `LINES_SCHEMA`, each of many entries."""
    tables = [pa.ipc.open_stream(piece).read_all() for piece in pieces]
    if not tables:
        return
    table = pa.concat_tables(tables)
    keys = pa.table({"task_index": table["task_index"], "label": pc.fill_null(table["label"], "")})
    entries = table["entry"].take(pc.sort_indices(keys, _ORDER)).combine_chunks()
    ends = [*range(0, len(entries), _ENTRIES), len(entries)]
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries)
    yield pa.table({"line": pc.binary_join(lists, between)}, schema=LINES_SCHEMA)


def _pieces(entries: pa.Table) -> pa.Table:
    """Cut entries by label and by ranges of tasks; what of a range lies on other partitions meets it in a shuffle."""
    bucket = pc.floor(pc.divide(entries["task_index"].cast(pa.float64()), TASKS_PER_PIECE)).cast(pa.int64())
    labels = entries["label"].combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(labels.indices, -1))
    kinds, which = np.unique(np.stack([codes, np.asarray(bucket)], axis=1), axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    edges = np.searchsorted(which.ravel()[order], np.arange(len(kinds) + 1))
    sorted_entries = entries.take(pa.array(order))
    blobs = [_compressed(sorted_entries.slice(start, end - start)) for start, end in itertools.pairwise(edges)]
    names = labels.dictionary.to_pylist()
    return pa.table(
        {
            "kind": pa.array(["lines"] * len(blobs), pa.string()),
            "label": pa.array([None if code < 0 else names[code] for code, _ in kinds.tolist()], pa.string()),
            "bucket": pa.array([place for _, place in kinds.tolist()], pa.int64()),
            "values": pa.array(blobs, pa.binary()),
        }
    )


def _compressed(entries: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, entries.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(entries)
    return bytes(sink.getvalue())


def _agents(labels: pa.Array) -> pa.Array:
    codes = labels.dictionary_encode()
    shown = [json.dumps({"name": name}) for name in codes.dictionary.to_pylist()]
    return pa.array(shown, pa.string()).take(codes.indices)


def _named(name: str, values: pa.Array) -> pa.Array:
    """Return ``"name":value`` texts of values that are JSON, null where they are."""
    return pc.binary_join_element_wise(json.dumps(name) + ":", pc.cast(values, pa.string()), "")


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
    return _named(name, pa.array(values, pa.float64(), mask=~defined))


def _fixed(text: str, where: Bools) -> pa.Array:
    return pc.if_else(pa.array(where), text, pa.scalar(None, pa.string()))


def _joined(pieces: list[pa.Array], count: int) -> pa.Array:
    # Begun with a text that is never null: pyarrow gives too few rows where all pieces of all rows are.
    joined = pc.binary_join_element_wise(pa.repeat("", count), *pieces, ",", null_handling="skip")
    return pc.utf8_slice_codeunits(joined, 1)
