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
#: Characters of one, above which it ends.
_LINE_CHARS: Final = 16 << 20
_TEXT: Final = pa.large_string()
_PIECES: Final = pa.schema(
    [("kind", pa.string()), ("label", pa.string()), ("bucket", pa.int64()), ("values", pa.binary())]
)
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
        _glued('"rollout_infos":[', pc.binary_join(infos, pa.scalar(",", _TEXT)), "]"),
    ]
    entry = _glued("{", _joined(members, len(kept)), "}")
    return _pieces(pa.table({"task_index": rows.tasks[firsts], "label": label, "entry": entry}))


def merged(pieces: Iterable[bytes], *, between: str) -> Iterator[pa.Table]:
    """Bring the entries of some pieces into order; rows of `LINES_SCHEMA`, each of many entries."""
    tables = [pa.ipc.open_stream(piece).read_all() for piece in pieces]
    if not tables:
        return
    table = pa.concat_tables(tables)
    keys = pa.table({"task_index": table["task_index"], "label": pc.fill_null(table["label"], "")})
    entries = table["entry"].take(pc.sort_indices(keys, _ORDER)).combine_chunks()
    for start, end in itertools.pairwise(_cuts(entries, most=_ENTRIES)):
        line = pc.binary_join(
            pa.LargeListArray.from_arrays([0, end - start], entries[start:end]), pa.scalar(between, _TEXT)
        )
        yield pa.table({"line": line.cast(pa.string())}, schema=LINES_SCHEMA)


def _cuts(entries: pa.Array, *, most: int) -> list[int]:
    """Return where entries are cut into runs of at most so many, and of little text unless one alone has more."""
    length = np.asarray(pc.binary_length(entries), dtype=np.int64)
    changes = np.diff(np.arange(len(length)) // most) != 0
    changes |= np.diff(np.cumsum(length) // _LINE_CHARS) != 0
    return [0, *(np.flatnonzero(changes) + 1).tolist(), len(length)]


def _pieces(entries: pa.Table) -> pa.Table:
    """Cut entries by label and by ranges of tasks; what of a range lies on other partitions meets it in a shuffle."""
    bucket = np.asarray(entries["task_index"]) // TASKS_PER_PIECE
    labels = entries["label"].combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(labels.indices, -1))
    kinds, which = np.unique(np.stack([codes, bucket], axis=1), axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    edges = np.searchsorted(which.ravel()[order], np.arange(len(kinds) + 1))
    sorted_entries = entries.take(pa.array(order))
    names = labels.dictionary.to_pylist()
    found = []
    for (code, place), (start, end) in zip(kinds.tolist(), itertools.pairwise(edges), strict=True):
        run = sorted_entries.slice(start, end - start)
        for first, last in itertools.pairwise(_cuts(run["entry"].combine_chunks(), most=TASKS_PER_PIECE)):
            blob = _compressed(run.slice(first, last - first))
            found.append({"kind": "lines", "label": None if code < 0 else names[code], "bucket": place, "values": blob})
    return pa.Table.from_pylist(found, schema=_PIECES)


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
    return _glued(json.dumps(name) + ":", values)


def _glued(*parts: pa.Array | str) -> pa.Array:
    """Join the parts of each row; null where one is.

    As large texts: the samples of a partition may be more than the 2 GB that offsets of 32 bits reach.
    """
    large = [pa.scalar(part, _TEXT) if isinstance(part, str) else pc.cast(part, _TEXT) for part in parts]
    return pc.binary_join_element_wise(*large, pa.scalar("", _TEXT))


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
    repeat = table["rollout_index"].combine_chunks()
    # A text without its quotes: what is escaped in it stays so.
    bare = pc.if_else(pc.starts_with(task, '"'), pc.utf8_slice_codeunits(task, 1, -1), task)
    key = _glued('{"rollout_id":"', bare, ":", repeat, '","_ng_task_index":', task)
    pieces = [_glued(key, ',"_ng_rollout_index":', repeat)]
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
    return _glued(_joined(pieces, len(at)), "}")


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
    large = [pc.cast(piece, _TEXT) for piece in (pa.repeat("", count), *pieces)]
    joined = pc.binary_join_element_wise(*large, pa.scalar(",", _TEXT), null_handling="skip")
    return pc.utf8_slice_codeunits(joined, 1)
