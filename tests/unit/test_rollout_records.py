"""Rows of `rollouts`: what cannot be stored is a failed row, and never costs another."""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from typing import Any

import pytest

from gym_spark.endpoint.usage import Usage
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import RolloutError
from gym_spark.harness.base import Episode
from gym_spark.rollout.records import (
    BATCH_TEXT,
    ROW_TEXT,
    Pending,
    completed,
    cost_of,
    failed,
    to_batch,
    to_batches,
    to_json,
)
from gym_spark.tables.schemas import ROLLOUTS

AT = datetime(2026, 1, 1, tzinfo=UTC)


def row(task: str = "a", **other: Any) -> dict[str, Any]:
    pending = Pending(task, 3, 1, 2, 1, "{}")
    reply = Reply({"id": "r"}, "7", "complete", Usage(2, 1, None, None, 3), "stop", 4, 5.0, 6.0, "http://a/v1")
    cost = cost_of([reply.usage], model_calls=1, requests=reply.requests)
    return completed("run", pending, Episode((reply,), ({"type": "model"},)), AT) | cost | other


@pytest.mark.parametrize(
    "wrong",
    [
        {"usage": {"output_tokens": 10**20}},
        {"output_text": "half an emoji \ud83d"},
        {"environment_reward": "high"},
        {"requests": 2**40},
        {"replica": object()},
        {"latency_ms": [1]},
        {"response": {"not": "text"}},
        {"answer_state": 7},
    ],
)
def test_a_row_that_arrow_refuses_becomes_a_failed_row_and_the_others_stay(wrong: dict[str, Any]) -> None:
    batch = to_batch([row("a"), row("b", **wrong), row("c")])
    assert batch.schema == ROLLOUTS.schema
    first, refused, last = batch.to_pylist()
    assert first == to_batch([row("a", completed_at=first["completed_at"])]).to_pylist()[0]
    assert (first["state"], last["state"], last["output_text"]) == ("completed", "completed", "7")
    key = ("run_id", "shard", "task_id", "task_index", "rollout_index", "attempt", "started_at")
    assert [refused[name] for name in key] == ["run", 1, "b", 3, 2, 1, AT]
    told = ("state", "failure_kind", "failure_stage", "failure_terminal")
    assert [refused[name] for name in told] == ["failed", "unstorable", "harness", True]
    assert "cannot be stored" in refused["error"]
    assert (refused["output_text"], refused["response"], refused["answer_state"]) == (None, None, None)


def test_what_a_refused_row_has_cost_is_kept_where_it_can_be() -> None:
    refused = to_batch([row(replica=object())]).to_pylist()[0]
    assert (refused["usage"]["total_tokens"], refused["requests"]) == (3, 4)
    refused = to_batch([row(usage={"total_tokens": 10**20}, requests="many")]).to_pylist()[0]
    assert (refused["usage"], refused["requests"]) == (None, 0)


def test_an_enormous_row_is_refused_and_large_ones_get_a_part_each() -> None:
    text = "x" * (ROW_TEXT // 4 + 1)  # one string in four columns: the row is enormous, the test is not
    enormous = row("e", output_text=text, response=text, trajectory=text, error=text)
    large = "x" * (BATCH_TEXT // 2 + 1)
    batches = list(
        to_batches(deque([row("a"), enormous, row("b", response=large), row("c", response=large), row("d")]))
    )
    assert [batch.column("task_id").to_pylist() for batch in batches] == [["a"], ["e", "b"], ["c", "d"]]
    refused = batches[1].to_pylist()[0]
    assert (refused["failure_kind"], refused["failure_terminal"], refused["response"]) == ("unstorable", True, None)
    assert f"more than {ROW_TEXT}" in refused["error"]
    assert list(to_batches(deque())) == []


def test_a_failure_keeps_what_it_is_known_to_have_cost() -> None:
    error = RolloutError("timeout", "half an emoji \ud83d", stage="endpoint", requests=3)
    cost = cost_of([Usage(2, None), Usage(5, 1)], model_calls=1, requests=3)
    stored = to_batch([failed("run", Pending("a", 0, 0, 0, 1, "{}"), error, AT) | cost]).to_pylist()[0]
    assert (stored["error"], stored["requests"], stored["model_calls"]) == ("half an emoji ?", 3, 1)
    assert (stored["usage"]["input_tokens"], stored["usage"]["output_tokens"]) == (7, 1)


def test_stored_json_is_json() -> None:
    text = to_json({"odd": [float("inf"), float("nan"), 1e400, 1.5], "half": "\ud83d"})
    assert json.loads(text, parse_constant=pytest.fail) == {"odd": [None, None, None, 1.5], "half": "\ud83d"}
