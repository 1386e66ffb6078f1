"""Plan, rollouts and verdicts of whole tasks become one row per planned rollout, on a worker. No pyspark.

A join by numpy in place of Spark's: the three meet in one shuffle of narrow rows, and finding a rollout's newest
verdict or standing attempt takes no aggregate over structs, for which Spark sorts. Nothing loops over rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.describe import Bools, Ints
from gym_spark.tables.schemas import MEASURES

#: `source` of a row that enters.
PLAN, ROLLOUT, VERDICT = range(3)

_KEY: Final = [
    pa.field("task_id", pa.string(), nullable=False),
    pa.field("rollout_index", pa.int32(), nullable=False),
]
_PLANNED: Final = [
    pa.field("task_index", pa.int64()),
    pa.field("shard", pa.int32()),
    pa.field("label", pa.string()),
]
#: Of the attempt that stands: the completed one, else the newest.
_STANDING: Final = [
    pa.field("state", pa.string()),
    pa.field("failure_kind", pa.string()),
    pa.field("answer_state", pa.string()),
    pa.field("latency_ms", pa.float64()),
    pa.field("measures", MEASURES),
]
#: Over all attempts: sums, and the first start.
_SUMMED: Final = ["input_tokens", "output_tokens"]
_JUDGED: Final = [
    pa.field("verdict", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("reason", pa.string()),
    pa.field("scores", MEASURES),
    pa.field("extracted_answer", pa.string()),
]

#: What leaves: one row per planned rollout.
OUTCOMES_SCHEMA: Final = pa.schema(
    [
        *_KEY,
        *_PLANNED,
        # completed, failed, missing
        *_STANDING,
        *(pa.field(name, pa.int64()) for name in _SUMMED),
        pa.field("started_at", pa.timestamp("us", tz="UTC")),
        # scored, ...; null without a verdict. The reward is null unless scored.
        *_JUDGED,
    ]
)

#: What enters: the rows of all three, each with its own columns.
SOURCES_SCHEMA: Final = pa.schema(
    [
        pa.field("source", pa.int32(), nullable=False),
        *OUTCOMES_SCHEMA,
        pa.field("attempt", pa.int32()),
        pa.field("verified_at", pa.timestamp("us", tz="UTC")),
    ]
)


def assembled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join what one partition holds.

    Args:
        batches: Rows of `SOURCES_SCHEMA`, of whole tasks, in any order.

    Yields:
        Rows of `OUTCOMES_SCHEMA`, in the order of tasks and repeats.
    """
    arrived = [batch for batch in batches if batch.num_rows]
    if not arrived:
        return
    table = pa.Table.from_batches(arrived).cast(SOURCES_SCHEMA).combine_chunks()
    codes = np.asarray(table["task_id"].combine_chunks().dictionary_encode().indices, dtype=np.int64)
    keys = (codes << 32) | np.asarray(table["rollout_index"], dtype=np.int64)
    source = np.asarray(table["source"])
    plan, stored, judged = (np.flatnonzero(source == kind) for kind in (PLAN, ROLLOUT, VERDICT))
    plan = plan[np.lexsort((keys[plan], np.asarray(table["task_index"].take(pa.array(plan)))))]

    rollouts = _Rollouts(table, keys, stored)
    standing, attempts = rollouts.of(keys[plan])
    verdicts = _newest_verdicts(table, keys, judged, keys[plan], attempts)
    columns = [table[field.name].take(pa.array(plan)) for field in (*_KEY, *_PLANNED)]
    columns += [_taken(table[field.name], standing) for field in _STANDING]
    columns[len(_KEY) + len(_PLANNED)] = pc.fill_null(columns[len(_KEY) + len(_PLANNED)], "missing")
    columns += [rollouts.total(name, keys[plan]) for name in _SUMMED]
    columns.append(rollouts.first_start(keys[plan]))
    taken = {field.name: _taken(table[field.name], verdicts) for field in _JUDGED}
    scored = pc.fill_null(pc.equal(taken["verdict"], "scored"), False)
    taken["reward"] = pc.if_else(scored, taken["reward"], pa.scalar(None, pa.float64()))
    columns += taken.values()
    yield from pa.Table.from_arrays(columns, schema=OUTCOMES_SCHEMA).to_batches(max_chunksize=4096)


def _taken(column: pa.ChunkedArray, places: Ints) -> pa.ChunkedArray:
    """Return the values at `places`, null where a place is -1."""
    return column.take(pa.array(places, mask=places < 0))


def _find(sorted_keys: Ints, wanted: Ints) -> Ints:
    """Return where each wanted key stands among sorted distinct keys, -1 where it does not."""
    if not len(sorted_keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == wanted, at, -1)


class _Rollouts:
    """The stored attempts, by rollout."""

    def __init__(self, table: pa.Table, keys: Ints, stored: Ints) -> None:
        completed = np.asarray(pc.fill_null(pc.equal(table["state"], "completed"), False))[stored]
        attempts = _numbers(table["attempt"], stored)
        order = np.lexsort((attempts, completed, keys[stored]))
        self._table, self._places, ordered = table, stored[order], keys[stored][order]
        self._attempts = attempts[order]
        self._keys, self._starts = np.unique(ordered, return_index=True)

    def of(self, wanted: Ints) -> tuple[Ints, Ints]:
        """Return the row of each rollout's attempt that stands, and its number; -1 where nothing is stored."""
        found = _find(self._keys, wanted)
        if not len(self._keys):
            return found, found
        last = np.append(self._starts[1:], len(self._places))[found] - 1
        return np.where(found < 0, -1, self._places[last]), np.where(found < 0, -1, self._attempts[last])

    def total(self, name: str, wanted: Ints) -> pa.Array:
        """Return a column's sum over each rollout's attempts, null where none tells it."""
        known, values = self._values(name)
        found = _find(self._keys, wanted)
        if not len(self._keys):
            return pa.nulls(len(wanted), pa.int64())
        told = np.logical_or.reduceat(known, self._starts)[found] & (found >= 0)
        return pa.array(np.add.reduceat(np.where(known, values, 0), self._starts)[found], mask=~told)

    def first_start(self, wanted: Ints) -> pa.Array:
        """Return when each rollout's first attempt began."""
        known, values = self._values("started_at")
        found = _find(self._keys, wanted)
        kind = OUTCOMES_SCHEMA.field("started_at").type
        if not len(self._keys):
            return pa.nulls(len(wanted), kind)
        told = np.logical_or.reduceat(known, self._starts)[found] & (found >= 0)
        first = np.minimum.reduceat(np.where(known, values, np.iinfo(np.int64).max), self._starts)[found]
        return pa.array(first, pa.int64(), mask=~told).cast(kind)

    def _values(self, name: str) -> tuple[Bools, Ints]:
        column = self._table[name].take(pa.array(self._places)).cast(pa.int64())
        return np.asarray(pc.is_valid(column)), np.asarray(pc.fill_null(column, 0))


def _newest_verdicts(table: pa.Table, keys: Ints, judged: Ints, wanted: Ints, attempts: Ints) -> Ints:
    """Return the row of the newest verdict on each wanted attempt, -1 where there is none.

    Two verify jobs at once may both have judged a rollout; the newest verdict stands, and it counts once.
    """
    if not len(judged):
        return np.full(len(wanted), -1, np.int64)
    tries, at = _numbers(table["attempt"], judged), _numbers(table["verified_at"].cast(pa.int64()), judged)
    order = np.lexsort((at, tries, keys[judged]))
    rollout, tries, places = keys[judged][order], tries[order], judged[order]
    last = np.append((rollout[1:] != rollout[:-1]) | (tries[1:] != tries[:-1]), True)
    rollout, tries, places = rollout[last], tries[last], places[last]
    # Key and attempt as one number: few attempts per rollout, so the rank of a rollout leaves room for them.
    known, ranks = np.unique(rollout, return_inverse=True)
    room = max(int(tries.max()), int(attempts.max(initial=0))) + 2
    rank = _find(known, wanted)
    found = _find(ranks * room + tries, np.where((rank < 0) | (attempts < 0), -1, rank * room + attempts))
    return np.where(found < 0, -1, places[found])


def _numbers(column: pa.ChunkedArray, places: npt.NDArray[np.int64]) -> Ints:
    return np.asarray(column.take(pa.array(places)), dtype=np.int64)
