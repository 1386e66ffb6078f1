"""Plan, rollouts and verdicts of whole tasks become one row per planned rollout, on a worker. No pyspark.

A join by numpy in place of Spark's: the three meet in one shuffle of narrow rows, and finding a rollout's newest
verdict or standing attempt takes no aggregate over structs, for which Spark sorts. Nothing loops over rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.config import ExceptionPolicy
from gym_spark.results.describe import Ints
from gym_spark.tables.schemas import MEASURES

_KEY: Final = [
    pa.field("task_id", pa.string(), nullable=False),
    pa.field("rollout_index", pa.int32(), nullable=False),
]
_PLANNED: Final = [
    pa.field("task_index", pa.int64()),
    pa.field("shard", pa.int32()),
    pa.field("label", pa.string()),
]
#: How many rollouts a row of the plan stands for, from its `rollout_index` on.
_REPEATS: Final = pa.field("repeats", pa.int32())
#: Of NeMo Gym's group entry, as JSON: the input row, and members of the benchmark's own. Null where none is written.
TEXTS: Final = [pa.field("sample", pa.large_string()), pa.field("own", pa.large_string())]
#: Of the attempt that stands: the completed one, else the newest.
_STANDING: Final = [
    pa.field("state", pa.string()),
    pa.field("failure_kind", pa.string()),
    pa.field("exception_kind", pa.string()),
    pa.field("answer_state", pa.string()),
    pa.field("latency_ms", pa.float64()),
    pa.field("measures", MEASURES),
]
#: Measures of a completed attempt that has no others, where it tells them.
_USAGE: Final = ("input_tokens", "output_tokens", "total_tokens")
#: Over all attempts: sums, and the first start.
_SUMMED: Final = [pa.field("input_tokens", pa.int64()), pa.field("output_tokens", pa.int64())]
_STARTED: Final = pa.field("started_at", pa.timestamp("us", tz="UTC"))
_JUDGED: Final = [
    pa.field("verdict", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("reason", pa.string()),
    pa.field("scores", MEASURES),
    pa.field("extracted_answer", pa.string()),
]
_ATTEMPT: Final = pa.field("attempt", pa.int32())
#: A rollout is known by the code of its task above these bits, and its repeat in them.
_LOW: Final = (1 << 32) - 1

#: Verdict on a scored rollout that an exception cut short, where the run lets such not count.
EXCLUDED: Final = "excluded"

#: What leaves, one row per planned rollout: `state` is completed, failed or missing, `verdict` null without one, and
#: `reward` null unless scored.
OUTCOMES_SCHEMA: Final = pa.schema([*_KEY, *_PLANNED, *_STANDING, *_SUMMED, _STARTED, *_JUDGED])

#: What enters: the rows of all three; each has one of the structs.
SOURCES_SCHEMA: Final = pa.schema(
    [
        *_KEY,
        pa.field("plan", pa.struct([*_PLANNED, _REPEATS, *TEXTS])),
        pa.field(
            "rollout", pa.struct([_ATTEMPT, *_STANDING, *(pa.field(name, pa.int64()) for name in _USAGE), _STARTED])
        ),
        pa.field("judgement", pa.struct([_ATTEMPT, *_JUDGED, pa.field("verified_at", pa.timestamp("us", tz="UTC"))])),
    ]
)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A partition's rollouts.

    Attributes:
        outcomes: Rows of `OUTCOMES_SCHEMA`, in the order of tasks and repeats.
        texts: Columns `TEXTS`, a row per row of the plan.
        text_of: Row of `texts` of each outcome.
    """

    outcomes: pa.Table
    texts: pa.Table
    text_of: Ints


def assembled(batches: Iterable[pa.RecordBatch], graded_with_exception: ExceptionPolicy = "count") -> Assembled | None:
    """Join what one partition holds; None where nothing arrived.

    Args:
        batches: Rows of `SOURCES_SCHEMA`, of whole tasks, in any order.
        graded_with_exception: What a scored rollout counts as that an exception cut short.
    """
    table = arrived(batches, SOURCES_SCHEMA)
    if table is None:
        return None
    codes = np.asarray(table["task_id"].combine_chunks().dictionary_encode().indices, dtype=np.int64)
    keys = (codes << 32) | np.asarray(table["rollout_index"], dtype=np.int64)
    plan, first, places = _part(table, "plan", keys)
    rows, wanted = _expanded(plan, first)
    planned, places = plan.select([field.name for field in _PLANNED]).take(pa.array(rows)), places[rows]

    rollouts = _Rollouts(*_part(table, "rollout", keys)[:2], wanted)
    standing, attempts = rollouts.standing()
    judgements, judged, _ = _part(table, "judgement", keys)
    verdicts = _newest(judgements, judged, wanted, attempts)
    taken = {"task_id": table["task_id"].take(pa.array(places)), "rollout_index": pa.array(wanted & _LOW, pa.int32())}
    taken |= {field.name: planned[field.name] for field in _PLANNED}
    taken |= {field.name: _taken(rollouts.table[field.name], standing) for field in _STANDING}
    taken["measures"] = _with_usage(taken, {name: _taken(rollouts.table[name], standing) for name in _USAGE})
    taken["state"] = pc.fill_null(taken["state"], "missing")
    taken |= {field.name: rollouts.total(field.name) for field in _SUMMED}
    taken["started_at"] = rollouts.first_start()
    taken |= {field.name: _taken(judgements[field.name], verdicts) for field in _JUDGED}
    scored = pc.fill_null(pc.equal(taken["verdict"], "scored"), False)
    taken["reward"] = pc.if_else(scored, taken["reward"], pa.scalar(None, pa.float64()))
    if graded_with_exception != "count":
        taken |= _without_exceptions(taken, scored, zero=graded_with_exception == "zero")
    texts = plan.select([field.name for field in TEXTS])
    return Assembled(pa.table(taken, schema=OUTCOMES_SCHEMA), texts, rows)


def arrived(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table | None:
    """Return all rows that Spark hands over as one table, each column in one piece; None where there are none."""
    some = [batch for batch in batches if batch.num_rows]
    # Spark tells of nulls in columns as it derives them, not as the schema has them.
    return pa.Table.from_batches(some).cast(schema).combine_chunks() if some else None


def _expanded(plan: pa.Table, first: Ints) -> tuple[Ints, Ints]:
    """Return the plan's row of each planned rollout, and its key; in the order of tasks and repeats.

    Args:
        plan: Rows of the plan.
        first: Key of the first rollout that each stands for.
    """
    repeats = _numbers(plan["repeats"])
    rows = np.repeat(np.arange(len(first)), repeats)
    ends = np.cumsum(repeats)
    wanted = first[rows] + np.arange(len(rows)) - (ends - repeats)[rows]
    order = np.lexsort((wanted, np.asarray(plan["task_index"])[rows]))
    return rows[order], wanted[order]


def _with_usage(taken: Mapping[str, pa.ChunkedArray], usage: Mapping[str, pa.ChunkedArray]) -> pa.Array:
    """Return the measures of completed rollouts: their own, else their usage; null of others."""
    completed = np.asarray(pc.fill_null(pc.equal(taken["state"], "completed"), False))
    own = taken["measures"].combine_chunks()
    bare = completed & np.asarray(pc.is_null(own))
    told = {name: column.combine_chunks() for name, column in usage.items()}
    known = np.stack([np.asarray(pc.is_valid(column)) & bare for column in told.values()], axis=1)
    values = np.stack([np.asarray(pc.fill_null(column, 0), dtype=float) for column in told.values()], axis=1)
    names = pa.array(list(told), pa.string()).take(pa.array(np.nonzero(known)[1]))
    offsets = pa.array(np.concatenate([[0], np.cumsum(known.sum(axis=1))]), pa.int32(), mask=np.append(~bare, False))
    made = pa.MapArray.from_arrays(offsets, names, pa.array(values[known]))
    return pc.if_else(pa.array(completed & ~bare), own, made.cast(MEASURES))


def _without_exceptions(
    taken: Mapping[str, pa.ChunkedArray], scored: pa.ChunkedArray, *, zero: bool
) -> dict[str, pa.ChunkedArray]:
    """Return what a verdict says, where the score of a rollout that was cut short is zero or does not count.

    Its named scores and its answer are gone in both cases: nobody knows what a zero would be of them, and no vote
    shall be won by what does not count.
    """
    cut = pc.and_(scored, pc.is_valid(taken["exception_kind"]))
    stands_for: dict[str, Any] = {"reward": 0.0 if zero else None, "scores": None, "extracted_answer": None}
    if not zero:
        stands_for["verdict"] = EXCLUDED
        stands_for["reason"] = "an exception cut the rollout short, and the run excludes such (graded_with_exception)"
    return {
        name: pc.if_else(cut, pa.scalar(value, taken[name].type), taken[name]) for name, value in stands_for.items()
    }


def _part(table: pa.Table, name: str, keys: Ints) -> tuple[pa.Table, Ints, Ints]:
    """Return the rows that have one of the structs as a table of its fields, with their keys and places."""
    structs = table[name].combine_chunks()
    places = np.flatnonzero(np.asarray(pc.is_valid(structs)))
    return pa.Table.from_struct_array(structs.take(pa.array(places))), keys[places], places


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
    """The stored attempts, in the order of rollouts; of each rollout, the one that stands last.

    Args:
        table: The attempts.
        keys: Rollout of each.
        wanted: The rollouts that are asked about.
    """

    def __init__(self, table: pa.Table, keys: Ints, wanted: Ints) -> None:
        completed = np.asarray(pc.fill_null(pc.equal(table["state"], "completed"), False))
        order = np.lexsort((_numbers(table["attempt"]), completed, keys))
        self.table = table.take(pa.array(order))
        known, self._starts = np.unique(keys[order], return_index=True)
        self._found = _find(known, wanted)

    def standing(self) -> tuple[Ints, Ints]:
        """Return the row of each rollout's attempt that stands, and its number; -1 where nothing is stored."""
        found = self._found
        if not len(self._starts):
            return found, found
        last = np.append(self._starts[1:], self.table.num_rows)[found] - 1
        return np.where(found < 0, -1, last), np.where(found < 0, -1, _numbers(self.table["attempt"])[last])

    def total(self, name: str) -> pa.Array:
        """Return a column's sum over each rollout's attempts, null where none tells it."""
        return self._over_attempts(name, np.add, 0)

    def first_start(self) -> pa.Array:
        """Return when each rollout's first attempt began."""
        return self._over_attempts("started_at", np.minimum, np.iinfo(np.int64).max).cast(_STARTED.type)

    def _over_attempts(self, name: str, how: np.ufunc, neutral: int) -> pa.Array:
        found = self._found
        if not len(self._starts):
            return pa.nulls(len(found), pa.int64())
        column = self.table[name].cast(pa.int64())
        known, values = np.asarray(pc.is_valid(column)), np.asarray(pc.fill_null(column, neutral))
        told = np.logical_or.reduceat(known, self._starts)[found] & (found >= 0)
        return pa.array(how.reduceat(values, self._starts)[found], pa.int64(), mask=~told)


def _newest(judgements: pa.Table, keys: Ints, wanted: Ints, attempts: Ints) -> Ints:
    """Return the row of the newest verdict on each wanted attempt, -1 where there is none.

    Two verify jobs at once may both have judged a rollout; the newest verdict stands, and it counts once.
    """
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    tries, at = _numbers(judgements["attempt"]), _numbers(judgements["verified_at"].cast(pa.int64()))
    order = np.lexsort((at, tries, keys))
    rollout, tries = keys[order], tries[order]
    last = np.append((rollout[1:] != rollout[:-1]) | (tries[1:] != tries[:-1]), True)
    rollout, tries, places = rollout[last], tries[last], order[last]
    # Key and attempt as one number: few attempts per rollout, so the rank of a rollout leaves room for them.
    known, ranks = np.unique(rollout, return_inverse=True)
    room = max(int(tries.max()), int(attempts.max(initial=0))) + 2
    rank = _find(known, wanted)
    found = _find(ranks * room + tries, np.where((rank < 0) | (attempts < 0), -1, rank * room + attempts))
    return np.where(found < 0, -1, places[found])


def _numbers(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column, dtype=np.int64)
