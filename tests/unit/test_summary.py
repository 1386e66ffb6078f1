"""Rewards of tasks and counts of rollouts: as a plain loop finds them, over any split of the tasks."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.results.assembly import OUTCOMES_SCHEMA
from gym_spark.results.summary import SPREAD, Counts, counted, summaries

Row = dict[str, Any]

rollouts = st.fixed_dictionaries(
    {
        "task": st.integers(0, 5),
        "state": st.sampled_from(["completed", "failed", "missing"]),
        "verdict": st.sampled_from([None, "scored", "not_scored"]),
        "reason": st.sampled_from([None, "b", "a"]),
        "reward": st.none() | st.sampled_from([-1.0, 0.0, 0.25, 1.0, 1.5]),
        "input_tokens": st.none() | st.integers(0, 5),
        "latency_ms": st.none() | st.floats(0, 50),
    }
)


def table(rows: list[Row]) -> pa.Table:
    full = [
        row | {"task_id": f"ü{row['task']}", "task_index": row["task"], "rollout_index": at, "shard": row["task"] % 2}
        for at, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(full, schema=OUTCOMES_SCHEMA)


def summed(rows: list[Row], parts: int) -> tuple[list[Row], Counts]:
    """Return the tasks' rewards, in their order, and the counts, over so many partitions of whole tasks."""
    profiles: list[Row] = []
    blobs: list[bytes] = []
    for part in range(parts):
        mine = [row for row in rows if row["task"] % parts == part]
        if mine:
            tasks, sums = summaries(table(mine))
            profiles += tasks.to_pylist()
            blobs += sums["sums"].to_pylist()
    return sorted(profiles, key=lambda row: row["task_index"]), counted(blobs)


@settings(deadline=None)
@given(rows=st.lists(rollouts, max_size=30), parts=st.sampled_from([1, 3]))
def test_tasks_and_counts_are_those_of_a_plain_loop(rows: list[Row], parts: int) -> None:
    profiles, counts = summed(rows, parts)
    assert [row["task_index"] for row in profiles] == sorted({row["task"] for row in rows})
    for row in profiles:
        mine = [one for one in rows if one["task"] == row["task_index"]]
        rewards = [one["reward"] for one in mine if one["reward"] is not None]
        assert row["task_id"] == f"ü{row['task_index']}"
        profile = row["profile"]
        assert profile["planned"] == len(mine)
        assert profile["completed"] == sum(one["state"] == "completed" for one in mine)
        assert (profile["n"], profile["passes"]) == (len(rewards), sum(reward >= 1 for reward in rewards))
        assert profile["mean"] == (pytest.approx(statistics.mean(rewards)) if rewards else None)
        assert profile["strict_mean"] == pytest.approx(sum(rewards) / len(mine))
        wanted = pytest.approx(statistics.variance(rewards), abs=1e-12) if len(rewards) > 1 else None
        assert profile["variance"] == wanted
        assert (profile["min"], profile["max"]) == (min(rewards, default=None), max(rewards, default=None))
    seen = Counter((row["state"], row["verdict"], row["reward"] is not None) for row in rows)
    found: Counter[Any] = Counter()
    for kind, tally in counts.kinds.items():
        found[kind.state, kind.verdict, kind.is_scored] += tally.rollouts
        assert (kind.missing_shard is not None) == (kind.state == "missing")
    assert found == seen
    tokens = [row["input_tokens"] for row in rows if row["input_tokens"] is not None]
    told = [tally.input_tokens for tally in counts.kinds.values() if tally.input_tokens is not None]
    assert (sum(told), bool(told)) == (sum(tokens), bool(tokens))
    assert counts.completed_tasks == len({row["task"] for row in rows if row["state"] == "completed"})
    assert counts.solved_tasks == len({row["task"] for row in rows if row["reward"] is not None and row["reward"] >= 1})


@settings(deadline=None)
@given(rows=st.lists(rollouts, max_size=30), parts=st.sampled_from([1, 3]), percent=st.integers(0, 100))
def test_percentiles_are_numpys_over_completed_rollouts(rows: list[Row], parts: int, percent: int) -> None:
    """Linear between two values, over whole numbers."""
    counts = summed(rows, parts)[1]
    for name in SPREAD:
        values = [
            np.floor(row[name] + 0.5) for row in rows if row["state"] == "completed" and row.get(name) is not None
        ]
        known, (value,) = counts.quantiles(name, [percent / 100])
        assert known == len(values)
        assert value == (pytest.approx(np.percentile(values, percent)) if values else None)


def test_one_example_of_a_reason_is_kept_for_each_kind() -> None:
    rows = [
        {"task": task, "state": "completed", "verdict": "not_scored", "reason": reason}
        for task, reason in enumerate([None, "b", "a"])
    ]
    assert [tally.reason for tally in summed(rows, 3)[1].kinds.values()] == ["a"]
