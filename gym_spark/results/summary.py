"""What a profile needs of the rollouts, on a worker: rewards of each task, and counts that add up. No pyspark."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gym_spark.results.describe import Floats, Ints

#: A reward that counts as a pass: full marks, or above.
PASS: Final = 1.0
#: Rewards of a task (`task_profiles`), without its key.
PROFILE: Final = pa.struct(
    [
        pa.field("planned", pa.int64(), nullable=False),
        pa.field("completed", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("passes", pa.int64(), nullable=False),
        pa.field("mean", pa.float64()),
        pa.field("strict_mean", pa.float64()),
        pa.field("variance", pa.float64()),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
    ]
)
#: Of completed rollouts, whole numbers each: there are few different ones however many rollouts there are.
SPREAD: Final = ("input_tokens", "output_tokens", "latency_ms")


class Kind(NamedTuple):
    """What can become of a rollout. `missing_shard` is null unless it is missing."""

    state: str
    failure_kind: str | None
    exception_kind: str | None
    answer_state: str | None
    verdict: str | None
    is_scored: bool
    missing_shard: int | None


@dataclass(slots=True)
class Tally:
    """The rollouts of one kind. Tokens are None where none of them tells any; `reason` is one of them."""

    rollouts: int
    rewards: float
    reason: str | None
    input_tokens: int | None
    output_tokens: int | None

    def plus(self, other: Tally) -> Tally:
        """Add other rollouts of the kind."""
        return Tally(
            self.rollouts + other.rollouts,
            self.rewards + other.rewards,
            min(filter(None, (self.reason, other.reason)), default=None),
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


@dataclass(slots=True)
class Counts:
    """What adds up over partitions.

    Attributes:
        kinds: Rollouts by what became of them.
        spread: Name of `SPREAD` -> value -> completed rollouts that have it.
        completed_tasks: Tasks with a completed rollout.
        solved_tasks: Tasks with a pass.
    """

    kinds: dict[Kind, Tally] = field(default_factory=dict)
    spread: dict[str, Counter[float]] = field(default_factory=lambda: {name: Counter() for name in SPREAD})
    completed_tasks: int = 0
    solved_tasks: int = 0

    def add(self, other: Counts) -> None:
        """Add those of other tasks."""
        for kind, tally in other.kinds.items():
            self.kinds[kind] = self.kinds[kind].plus(tally) if kind in self.kinds else tally
        for name, counter in other.spread.items():
            self.spread[name].update(counter)
        self.completed_tasks += other.completed_tasks
        self.solved_tasks += other.solved_tasks

    def quantiles(self, name: str, quantiles: Sequence[float]) -> tuple[int, list[float | None]]:
        """Return how many rollouts have a value of `SPREAD`, and its quantiles, linear between two values."""
        values = np.array(sorted(self.spread[name]), dtype=float)
        upto = np.cumsum([self.spread[name][value] for value in values])
        if not len(values):
            return 0, [None] * len(quantiles)
        return int(upto[-1]), [_quantile(values, upto, quantile) for quantile in quantiles]


def _quantile(values: Floats, upto: Ints, quantile: float) -> float:
    place = quantile * (int(upto[-1]) - 1)
    low, high = (values[np.searchsorted(upto, int(at), side="right")] for at in (np.floor(place), np.ceil(place)))
    return float(low + (high - low) * (place - np.floor(place)))


def counted(blobs: Iterable[bytes]) -> Counts:
    """Add up what :func:`summaries` has yielded on all partitions."""
    found = Counts()
    for blob in blobs:
        found.add(pickle.loads(blob))
    return found


def summaries(outcomes: pa.Table) -> Iterator[pa.Table]:
    """Summarise a partition.

    Args:
        outcomes: Rows of `results.assembly.OUTCOMES_SCHEMA`, of whole tasks.

    Yields:
        Of kind ``task`` a row per task: `task_id`, `task_index`, `profile`; of kind ``counts`` one row: `sums`.
    """
    tasks = task_profiles(outcomes)
    kind = pa.array(["task"] * tasks.num_rows, pa.string())
    profile = pa.StructArray.from_arrays(
        [tasks[one.name].combine_chunks().cast(one.type) for one in PROFILE], fields=list(PROFILE)
    )
    yield pa.table({"kind": kind, "task_id": tasks["task_id"], "task_index": tasks["task_index"], "profile": profile})
    completed = outcomes.filter(pc.equal(outcomes["state"], "completed"))
    counts = Counts(
        kinds=_kinds(outcomes),
        spread={name: _spread(completed[name]) for name in SPREAD},
        completed_tasks=pc.sum(pc.greater(tasks["completed"], 0)).as_py() or 0,
        solved_tasks=pc.sum(pc.greater(tasks["passes"], 0)).as_py() or 0,
    )
    yield pa.table({"kind": ["counts"], "sums": [pickle.dumps(counts)]})


def task_profiles(outcomes: pa.Table) -> pa.Table:
    """Return `task_id`, `task_index` and the fields of `PROFILE`, one row per task.

    Args:
        outcomes: Rows of `results.assembly.OUTCOMES_SCHEMA`, of whole tasks.
    """
    reward = outcomes["reward"]
    told = pa.table(
        {
            "task_id": outcomes["task_id"],
            "task_index": outcomes["task_index"],
            "completed": pc.equal(outcomes["state"], "completed").cast(pa.int64()),
            "passes": pc.fill_null(pc.greater_equal(reward, PASS), False).cast(pa.int64()),
            "reward": reward,
        }
    )
    variance = ("reward", "variance", pc.VarianceOptions(ddof=1))
    found = told.group_by("task_id").aggregate(
        [
            *(("task_index", "min"), ("completed", "count"), ("completed", "sum"), ("passes", "sum")),
            *(("reward", name) for name in ("count", "mean", "sum", "min", "max")),
            variance,
        ]
    )
    total = pc.fill_null(found["reward_sum"], 0.0)
    columns = {
        "task_id": found["task_id"],
        "task_index": found["task_index_min"],
        "planned": found["completed_count"],
        "completed": found["completed_sum"],
        "n": found["reward_count"],
        "passes": found["passes_sum"],
        "mean": found["reward_mean"],
        "strict_mean": pc.divide(total, found["completed_count"].cast(pa.float64())),
        # of one value there is none
        "variance": pc.if_else(pc.greater(found["reward_count"], 1), found["reward_variance"], None),
        "min": found["reward_min"],
        "max": found["reward_max"],
    }
    return pa.table(columns)


def _kinds(outcomes: pa.Table) -> dict[Kind, Tally]:
    told = outcomes.select(
        [
            "state",
            "failure_kind",
            "exception_kind",
            "answer_state",
            "verdict",
            "reward",
            "reason",
            "input_tokens",
            "output_tokens",
        ]
    )
    is_missing = pc.equal(outcomes["state"], "missing")
    told = told.append_column("is_scored", pc.is_valid(outcomes["reward"]))
    told = told.append_column("missing_shard", pc.if_else(is_missing, outcomes["shard"], None))
    sums = [("reward", "sum"), ("reason", "min"), ("input_tokens", "sum"), ("output_tokens", "sum")]
    found = told.group_by(list(Kind._fields)).aggregate([([], "count_all"), *sums])
    return {
        Kind(*(row[name] for name in Kind._fields)): Tally(
            row["count_all"],
            row["reward_sum"] or 0.0,
            row["reason_min"],
            row["input_tokens_sum"],
            row["output_tokens_sum"],
        )
        for row in found.to_pylist()
    }


def _spread(column: pa.ChunkedArray) -> Counter[float]:
    counts = pc.value_counts(pc.round(column.drop_null().cast(pa.float64()), round_mode="half_towards_infinity"))
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))
