"""Request bodies: what is sent, in which flavour, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_spark.config import SamplingSpec
from gym_spark.endpoint.usage import Usage, sum_usage
from gym_spark.endpoint.wire import Api, request_body
from gym_spark.errors import RolloutError

TOOL = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer", "default": None}}},
    "strict": None,
}


def chat(params: dict[str, Any], **sampling: Any) -> dict[str, Any]:
    return request_body(params, SamplingSpec(**sampling), "m", "chat")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_p07_unset_fields_are_left_out_of_the_body(api: Api) -> None:
    row: dict[str, Any] = {"input": "hi", "top_logprobs": None, "tools": [], "max_tokens": None, "tool_choice": "auto"}
    params = json.loads(json.dumps(row))  # as it comes back from a table
    body = request_body(params, SamplingSpec(extra={"top_k": None, "min_p": 0.1}), "m", api)
    assert "null" not in json.dumps(body)
    assert not {"top_logprobs", "logprobs", "tools", "tool_choice", "max_tokens", "max_output_tokens"} & body.keys()
    assert body["min_p"] == 0.1


def test_p07_null_inside_items_goes_but_null_inside_a_schema_stays() -> None:
    body = chat({"input": [{"type": None, "role": "user", "content": "hi", "name": None}], "tools": [TOOL]})
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    function = body["tools"][0]["function"]
    assert "strict" not in function
    assert function["parameters"]["properties"]["x"] == {"type": "integer", "default": None}


def test_sampling_overrides_the_task_and_extra_overrides_both() -> None:
    params = {"input": "hi", "temperature": 0.1, "top_p": 0.2, "max_output_tokens": 5}
    body = chat(params, temperature=0.7, max_output_tokens=9, stop=("\n",), seed=3, extra={"seed": 4, "top_k": 1})
    assert body == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "m",
        "temperature": 0.7,
        "top_p": 0.2,
        "max_tokens": 9,
        "stop": ["\n"],
        "seed": 4,
        "top_k": 1,
    }


def test_responses_body_keeps_the_tasks_own_form() -> None:
    params = {"input": "hi", "instructions": "be brief", "tools": [TOOL], "stream": True}
    body = request_body(params, SamplingSpec(max_output_tokens=9), "m", "responses")
    assert body["input"] == "hi"
    assert body["instructions"] == "be brief"
    assert body["tools"][0]["name"] == "add"
    assert body["max_output_tokens"] == 9
    assert "stream" not in body


def test_a_tool_conversation_becomes_chat_messages() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"x": 2}'},
        {"type": "function_call_output", "call_id": "c2", "output": "3"},
        {"type": "function_call", "call_id": "c3", "name": "add", "arguments": "{}"},
    ]
    messages = chat({"input": items, "instructions": "be brief"})["messages"]
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1] == {"role": "developer", "content": "rules"}
    assert messages[2]["content"] == [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert messages[3]["content"] == "I add."
    assert [call["id"] for call in messages[3]["tool_calls"]] == ["c1", "c2"]
    assert messages[3]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 1}'}
    assert messages[4] == {"role": "tool", "tool_call_id": "c2", "content": "3"}
    assert [call["id"] for call in messages[5]["tool_calls"]] == ["c3"]
    assert len(messages) == 6


def test_tool_choice_format_reasoning_and_logprobs_are_translated() -> None:
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
    body = chat(
        {
            "input": "hi",
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "add"},
            "text": {"format": form},
            "reasoning": {"effort": "low", "summary": None},
            "top_logprobs": 2,
        }
    )
    assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert body["reasoning_effort"] == "low"
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    assert not {"text", "reasoning", "input"} & body.keys()


@pytest.mark.parametrize("items", [None, [], 7, [{"type": "web_search_call", "id": "w"}], ["text"]])
def test_input_without_a_chat_form_is_one_terminal_bad_request(items: Any) -> None:
    with pytest.raises(RolloutError) as caught:
        chat({"input": items})
    assert (caught.value.kind, caught.value.terminal, caught.value.requests) == ("bad_request", True, 0)


def test_unknown_usage_stays_unknown_in_sums() -> None:
    total = sum_usage([Usage(input_tokens=3, output_tokens=1), Usage(input_tokens=4), Usage()])
    assert total == Usage(input_tokens=7, output_tokens=1)
    assert total.reasoning_tokens is None
    assert sum_usage([]) == Usage()
