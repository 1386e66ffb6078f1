"""The rows of a partition of whole tasks as numpy columns: maps of numbers become a column per name. No pyspark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.assembly import EXCLUDED
from gym_spark.results.describe import Bools, Ints
from gym_spark.results.pass_majority import Answers, Score
from gym_spark.tables.schemas import MEASURES

#: What enters: one row per planned rollout, the rows of a task in one partition.
MEASURED_SCHEMA: Final = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_index", pa.int64(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("rollout_index", pa.int32(), nullable=False),
        # measured, masked, or nothing (no result)
        pa.field("standing", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("scores", MEASURES),
        pa.field("measures", MEASURES),
        pa.field("answer", pa.string()),
    ]
)

#: Measures that are no columns: `ng_perf` of a rollout that was observed, and `ng_perf.FIELD`.
PERF: Final = "ng_perf"


def measured(outcomes: pa.Table) -> pa.Table:
    """Return what the field's metrics are made of: rows of `MEASURED_SCHEMA`, one per planned rollout.

    An answer without a verdict is no result: where its judge or verifier fails, NeMo Gym has the row among failures.
    What does not count for an exception is masked.

    Args:
        outcomes: Rows of `results.assembly.OUTCOMES_SCHEMA`.
    """
    is_masked = pc.is_in(outcomes["verdict"], pa.array(["masked", EXCLUDED]))
    is_judged = pc.is_in(outcomes["verdict"], pa.array(["scored", "not_scored"]))
    is_result = pc.and_(pc.equal(outcomes["state"], "completed"), is_judged)
    standing = pc.if_else(is_masked, "masked", pc.if_else(is_result, "measured", None))
    known = {"standing": standing, "answer": outcomes["extracted_answer"]}
    return pa.table(
        {name: known[name] if name in known else outcomes[name] for name in MEASURED_SCHEMA.names},
        schema=MEASURED_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """A partition's rows as numpy columns, in the order of tasks, labels and repeats."""

    tasks: Ints
    repeats: npt.NDArray[np.int32]
    measured: Bools
    masked: Bools
    #: Numbers by name, as metrics take them, and as a rollout shows them.
    columns: dict[str, Score]
    shown: dict[str, Score]
    perf: dict[str, Score]
    answers: Answers

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        """Read rows of `MEASURED_SCHEMA`; their order stays."""
        count = table.num_rows
        measured = np.asarray(pc.fill_null(pc.equal(table["standing"], "measured"), False))
        masked = np.asarray(pc.fill_null(pc.equal(table["standing"], "masked"), False))
        scores = _of_map(table["scores"], count)
        every = _of_map(table["measures"], count)
        measures = {name: score for name, score in every.items() if not name.startswith(PERF)}
        reward = table["reward"]
        columns = {"reward": Score(floats(reward), np.asarray(pc.is_valid(reward)))}
        for name, score in (scores | measures).items():
            if name != "reward":
                columns[name] = _over(score, scores.get(name))
        shown = {name: _over(score, measures.get(name)) for name, score in (measures | scores).items()}
        # A reward that was no plain number is shown as it stood; the others are shown as they count.
        shown["reward"] = scores.get("reward", Score(np.zeros(count), np.zeros(count, bool)))
        codes = pc.dictionary_encode(table["answer"].combine_chunks())
        voted = np.asarray(pc.is_valid(table["answer"]))
        return cls(
            tasks=np.asarray(table["task_index"]),
            repeats=np.asarray(table["rollout_index"]),
            measured=measured,
            masked=masked,
            columns={name: Score(one.values, one.present & measured) for name, one in columns.items()},
            shown=shown,
            perf={name: score for name, score in every.items() if name.startswith(PERF)},
            answers=Answers(np.asarray(pc.fill_null(codes.indices, -1)).astype(np.int64), voted),
        )


def floats(array: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return a column of numbers, 0 where it is null."""
    return np.asarray(pc.fill_null(array, 0.0))


def _over(first: Score, second: Score | None) -> Score:
    """Lay one column over another."""
    if second is None:
        return first
    return Score(np.where(first.present, first.values, second.values), first.present | second.present)


def _of_map(column: pa.ChunkedArray, count: int) -> dict[str, Score]:
    """Split a column of maps into one column per name; a null item counts as absent."""
    maps = column.combine_chunks()
    maps = maps if isinstance(maps, pa.MapArray) else pa.concat_arrays(maps.chunks)
    starts = np.asarray(maps.offsets)
    lengths = np.where(np.asarray(pc.is_valid(maps)), np.diff(starts), 0)
    rows = np.repeat(np.arange(count), lengths)
    inside = slice(int(starts[0]), int(starts[-1])) if count else slice(0, 0)
    names = maps.keys[inside].dictionary_encode()
    items = maps.items[inside]
    codes, values, known = np.asarray(names.indices), floats(items), np.asarray(pc.is_valid(items))
    found = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        chosen = codes == code
        column_values, present = np.zeros(count), np.zeros(count, bool)
        column_values[rows[chosen]] = values[chosen]
        present[rows[chosen]] = known[chosen]
        found[name] = Score(column_values, present)
    return found
