"""Plan, attempts and verdicts of whole tasks, joined: as a plain loop over them would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.config import ExceptionPolicy
from gym_spark.results.assembly import OUTCOMES_SCHEMA, SOURCES_SCHEMA, assembled

Row = dict[str, Any]
AT = datetime(2026, 1, 1, tzinfo=UTC)


def source(task: int, repeat: int, **part: Row) -> Row:
    return {"task_id": f"t{task}", "rollout_index": repeat, "plan": None, "rollout": None, "judgement": None} | part


def joined(rows: list[Row], policy: ExceptionPolicy = "count") -> list[Row]:
    batches = pa.Table.from_pylist(rows, schema=SOURCES_SCHEMA).to_batches(max_chunksize=5)
    found = assembled(batches, policy)
    return [] if found is None else found.outcomes.cast(OUTCOMES_SCHEMA).to_pylist()


attempts = st.fixed_dictionaries(
    {
        "attempt": st.integers(1, 3),
        "state": st.sampled_from(["completed", "failed"]),
        "input_tokens": st.none() | st.integers(0, 9),
        "minutes": st.integers(0, 9),
    }
)
judgements = st.fixed_dictionaries(
    {
        "attempt": st.integers(1, 3),
        "verdict": st.sampled_from(["scored", "not_scored", "masked"]),
        "reward": st.none() | st.floats(0, 1),
        "minutes": st.integers(0, 99),
    }
)
keys = st.tuples(st.integers(0, 3), st.integers(0, 2))


def by_hand(plan: list[tuple[int, int]], stored: list[tuple[Any, Row]], judged: list[tuple[Any, Row]]) -> list[Row]:
    """Return task, repeat, state, summed tokens, first start, verdict and reward of each planned rollout."""
    found = []
    for task, repeat in sorted(plan):
        mine = [row for key, row in stored if key == (task, repeat)]
        stands = max(mine, key=lambda row: (row["state"] == "completed", row["attempt"]), default=None)
        tokens = [row["input_tokens"] for row in mine if row["input_tokens"] is not None]
        verdicts = [
            row for key, row in judged if stands and key == (task, repeat) and row["attempt"] == stands["attempt"]
        ]
        newest = max(verdicts, key=lambda row: row["minutes"], default=None)
        found.append(
            {
                "task_index": task,
                "rollout_index": repeat,
                "state": "missing" if stands is None else stands["state"],
                "input_tokens": sum(tokens) if tokens else None,
                "started_at": min((AT + timedelta(minutes=row["minutes"]) for row in mine), default=None),
                "verdict": None if newest is None else newest["verdict"],
                "reward": newest["reward"] if newest is not None and newest["verdict"] == "scored" else None,
            }
        )
    return found


@settings(deadline=None)
@given(
    plan=st.lists(keys, unique=True),
    stored=st.lists(st.tuples(keys, attempts), max_size=20, unique_by=lambda one: (one[0], one[1]["attempt"])),
    judged=st.lists(st.tuples(keys, judgements), max_size=20, unique_by=lambda one: (one[0], one[1]["minutes"])),
    order=st.randoms(use_true_random=False),
)
def test_the_join_is_that_of_a_plain_loop(plan: Any, stored: Any, judged: Any, order: Any) -> None:
    """Several attempts and verdicts, none, and some that nobody planned; rows in any order."""
    rows = [source(*key, plan={"task_index": key[0], "shard": 0, "label": "a", "repeats": 1}) for key in plan]
    for key, row in stored:
        kept = {name: row[name] for name in ("attempt", "state", "input_tokens")}
        rows.append(source(*key, rollout=kept | {"started_at": AT + timedelta(minutes=row["minutes"])}))
    for key, row in judged:
        kept = {name: row[name] for name in ("attempt", "verdict", "reward")}
        rows.append(source(*key, judgement=kept | {"verified_at": AT + timedelta(minutes=row["minutes"])}))
    order.shuffle(rows)
    expected = by_hand(plan, stored, judged)
    seen = joined(rows)
    assert [{name: row[name] for name in expected[0]} for row in seen] == expected if expected else seen == []


def test_maps_and_texts_come_from_the_attempt_and_verdict_that_stand() -> None:
    done = {"attempt": 2, "state": "completed", "measures": [("input_tokens", 1.0)], "output_tokens": 5}
    scored = {"attempt": 2, "verdict": "scored", "reward": 0.5, "scores": [("f1", 0.25)], "verified_at": AT}
    rows = [
        source(0, 0, plan={"task_index": 0, "shard": 3, "label": None, "repeats": 1}),
        source(0, 0, rollout={"attempt": 1, "state": "failed", "failure_kind": "timeout", "output_tokens": 4}),
        source(0, 0, rollout=done),
        source(0, 0, judgement={"attempt": 1, "verdict": "not_scored", "reason": "old", "verified_at": AT}),
        source(0, 0, judgement=scored),
    ]
    (row,) = joined(rows)
    assert (row["state"], row["failure_kind"], row["shard"], row["output_tokens"]) == ("completed", None, 3, 9)
    assert (row["measures"], row["scores"], row["reason"]) == ([("input_tokens", 1.0)], [("f1", 0.25)], None)


@pytest.mark.parametrize(
    ("policy", "cut_short"),
    [
        ("count", ("scored", 1.0, [("strict", 0.5)], "7")),
        ("zero", ("scored", 0.0, None, None)),
        ("exclude", ("excluded", None, None, None)),
    ],
)
def test_only_what_was_cut_short_and_scored_counts_as_the_run_says(policy: ExceptionPolicy, cut_short: Any) -> None:
    """Neither what ended well nor what has no score changes; named scores and the vote go with the reward."""

    def rollout(task: int, exception: str | None, verdict: str) -> list[Row]:
        judgement = {"attempt": 1, "verdict": verdict, "reward": 1.0, "scores": [("strict", 0.5)], "verified_at": AT}
        return [
            source(task, 0, plan={"task_index": task, "repeats": 1}),
            source(task, 0, rollout={"attempt": 1, "state": "completed", "exception_kind": exception}),
            source(task, 0, judgement=judgement | {"extracted_answer": "7"}),
        ]

    told = ("verdict", "reward", "scores", "extracted_answer")
    rows = [rollout(0, None, "scored"), rollout(1, "agent_timeout", "scored"), rollout(2, "agent_timeout", "masked")]
    found = [tuple(row[name] for name in told) for row in joined([row for rows_ in rows for row in rows_], policy)]
    whole = ("scored", 1.0, [("strict", 0.5)], "7")
    assert found == [whole, cut_short, ("masked", None, [("strict", 0.5)], "7")]


def test_a_row_of_the_plan_stands_for_its_repeats() -> None:
    """From its own index on, in the order of tasks, whatever order the rows come in; each finds its own attempt."""
    rows = [
        source(1, 2, rollout={"attempt": 1, "state": "completed", "latency_ms": 5.0}),
        source(2, 4, plan={"task_index": 2, "repeats": 1}),
        source(1, 0, plan={"task_index": 1, "repeats": 3}),
        source(0, 0, plan={"task_index": 0, "repeats": 2}),
    ]
    found = [(row["task_id"], row["rollout_index"], row["latency_ms"]) for row in joined(rows)]
    assert found == [
        ("t0", 0, None),
        ("t0", 1, None),
        ("t1", 0, None),
        ("t1", 1, None),
        ("t1", 2, 5.0),
        ("t2", 4, None),
    ]


def test_usage_is_measured_where_a_completed_rollout_has_no_measures_of_its_own() -> None:
    def rollout(task: int, state: str, **told: Any) -> list[Row]:
        return [
            source(task, 0, plan={"task_index": task, "repeats": 1}),
            source(task, 0, rollout={"attempt": 1, "state": state} | told),
        ]

    rows = [
        *rollout(0, "completed", input_tokens=3, total_tokens=9),
        *rollout(1, "completed", input_tokens=3, measures=[("ng_perf", 1.0)]),
        *rollout(2, "failed", input_tokens=3, measures=[("ng_perf", 1.0)]),
        *rollout(3, "completed"),
    ]
    found = [(row["measures"], row["input_tokens"]) for row in joined(rows)]
    usage = [("input_tokens", 3.0), ("total_tokens", 9.0)]
    assert found == [(usage, 3), ([("ng_perf", 1.0)], 3), (None, 3), ([], None)]
