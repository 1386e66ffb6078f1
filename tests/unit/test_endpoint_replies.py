"""Answers of both flavours become one shape, with the right state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.replies import reply_from
from gym_spark.endpoint.usage import Usage, sum_usage
from gym_spark.endpoint.wire import Api

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1'}}


def chat(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "logprobs": None}
    return {"id": "1", "object": "chat.completion", "created": 5, "model": "m", "choices": [choice | more]}


def responses(output: list[Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "r", "object": "response", "created_at": 5, "model": "m", "status": status, "output": output, **more}


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


@pytest.mark.parametrize(
    ("body", "finish", "state"),
    [
        ({"content": "B"}, "stop", "complete"),
        ({"content": "B"}, "length", "truncated"),
        ({"content": None, "reasoning": "hm"}, "length", "reasoning_only"),
        ({"reasoning_content": "hm"}, "stop", "reasoning_only"),
        ({"content": "B", "reasoning_content": "hm"}, "stop", "complete"),
        ({"content": ""}, "stop", "empty"),
        ({"content": " \n"}, "stop", "empty"),
        ({}, "stop", "empty"),
        ({"content": ""}, "length", "truncated"),
        ({"content": ""}, "content_filter", "filtered"),
        ({"content": None, "refusal": "No."}, "stop", "filtered"),
        ({"content": None, "tool_calls": [CALL]}, "tool_calls", "complete"),
        ({"content": [{"type": "text", "text": "B"}]}, "stop", "complete"),
    ],
)
def test_p12_answer_state_of_chat_replies(body: dict[str, Any], finish: str, state: str) -> None:
    assert reply_from(chat(body, finish), "chat").answer_state == state


@pytest.mark.parametrize(
    ("payload", "limit", "state"),
    [
        (responses([message("B")]), 8, "complete"),
        (responses([], usage={"output_tokens": 8}), 8, "truncated"),
        (responses([], usage={"output_tokens": 7}), 8, "empty"),
        (responses([], usage={"output_tokens": 8}, max_output_tokens=8), None, "truncated"),
        (responses([message("B")], usage={"output_tokens": 8}), 8, "truncated"),
        (responses([], usage={"output_tokens": 8}), None, "empty"),
        (responses([{"type": "reasoning", "summary": []}], usage={"output_tokens": 8}), 8, "reasoning_only"),
        (responses([message("B")], "incomplete", incomplete_details={"reason": "max_output_tokens"}), 8, "truncated"),
        (responses([], "incomplete", incomplete_details={"reason": "content_filter"}), 8, "filtered"),
        (responses([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]), 8, "complete"),
    ],
)
def test_p12_answer_state_of_responses_replies(payload: dict[str, Any], limit: int | None, state: str) -> None:
    assert reply_from(payload, "responses", token_limit=limit).answer_state == state


def test_chat_becomes_a_responses_object_with_everything_kept() -> None:
    payload = chat(
        {"content": "7", "reasoning_content": "3+4", "tool_calls": [CALL]},
        "tool_calls",
        logprobs={"content": [{"token": "7", "logprob": -0.1}]},
        token_ids=[9],
    )
    payload["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "completion_tokens_details": {"reasoning_tokens": 3},
        "prompt_tokens_details": None,
    }
    answer = reply_from(payload, "chat")
    assert answer.output_text == "7"
    assert answer.finish_reason == answer.response["finish_reason"] == "tool_calls"
    assert [item["type"] for item in answer.response["output"]] == ["reasoning", "message", "function_call"]
    reasoning, said, call = answer.response["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "3+4"}]
    assert said["content"][0]["logprobs"] == [{"token": "7", "logprob": -0.1}]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "add", '{"x": 1')  # broken text is evidence
    assert call["token_ids"] == [9]
    assert answer.usage == Usage(10, 4, 3, None, 14)
    assert answer.response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert "input_tokens_details" not in answer.response["usage"]
    json.dumps(answer.response, allow_nan=False)


def test_a_reply_without_usage_or_finish_reason_is_unknown_not_zero() -> None:
    answer = reply_from(chat({"content": "7"}, None), "chat")
    assert (answer.usage, answer.finish_reason, answer.answer_state) == (Usage(), None, "complete")


def test_a_responses_reply_is_kept_as_it_is() -> None:
    payload = responses([message("7")], usage={"input_tokens": 2, "output_tokens": 1}, service_tier="x")
    answer = reply_from(payload, "responses")
    assert answer.response == payload
    assert answer.usage == Usage(2, 1, None, None, 3)


@pytest.mark.parametrize(
    "payload",
    [{}, {"choices": []}, {"choices": [{}]}, {"error": {"message": "overloaded"}}, chat({"content": 7}), responses([])],
)
def test_what_is_no_chat_answer_is_an_invalid_reply(payload: dict[str, Any]) -> None:
    with pytest.raises(EndpointFailure) as caught:
        reply_from(payload, "chat")
    assert (caught.value.kind, caught.value.terminal) == ("invalid_reply", False)


@pytest.mark.parametrize("count", [10**20, 2**63, -1, float("inf"), float("-inf"), float("nan"), True, "5", None])
def test_a_count_that_no_table_can_hold_is_unknown(count: Any) -> None:
    payload = chat({"content": "7"})
    payload["usage"] = {"prompt_tokens": 2, "completion_tokens": count, "completion_tokens_details": [count]}
    answer = reply_from(payload, "chat")
    assert (answer.output_text, answer.usage) == ("7", Usage(2, None, None, None, None))
    told = {"input_tokens": count, "output_tokens": 1, "total_tokens": count, "input_tokens_details": "?"}
    assert reply_from(responses([message("7")], usage=told), "responses").usage == Usage(None, 1, None, None, None)


def test_counts_whose_sum_is_too_large_are_unknown_in_sum() -> None:
    largest = 2**63 - 1
    payload = responses([message("7")], usage={"input_tokens": largest, "output_tokens": 1})
    usage = reply_from(payload, "responses").usage
    assert usage == Usage(largest, 1, None, None, None)
    assert sum_usage([usage, usage]) == Usage(None, 2, None, None, None)


@pytest.mark.parametrize("usage", [[], "many", 7, {"prompt_tokens_details": 7}])
def test_odd_accounts_do_not_cost_the_answer(usage: Any) -> None:
    assert reply_from(chat({"content": "7"}) | {"usage": usage}, "chat").output_text == "7"


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "api"),
    [
        ({"error": nested(100_000)}, "chat"),
        (chat({"content": "7", "tool_calls": [{"function": {"name": "f", "arguments": nested(100_000)}}]}), "chat"),
        (responses([], "failed", usage={"output_tokens_details": [1]}, error={"code": 1}), "responses"),
        (responses([message("7")], max_output_tokens="8", usage={"output_tokens": 8}), "responses"),
    ],
)
def test_only_typed_failures_come_out(payload: dict[str, Any], api: Api) -> None:
    with pytest.raises(EndpointFailure):
        reply_from(payload, api)


@pytest.mark.parametrize(("status", "kind"), [("failed", "server_error"), ("queued", "invalid_reply")])
def test_a_responses_object_that_holds_no_answer_is_a_failure(status: str, kind: str) -> None:
    with pytest.raises(EndpointFailure, match=r"overloaded|queued") as caught:
        reply_from(responses([], status, error={"code": "overloaded"}), "responses")
    assert caught.value.kind == kind
