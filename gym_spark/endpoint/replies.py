"""A server's answer, in either flavour -> one Responses-shaped object, its text, its state and its tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gym_spark.config import JsonObject
from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.usage import LARGEST_COUNT, Usage
from gym_spark.endpoint.wire import AnswerState, Api

#: Token-level evidence that vLLM and NeMo Gym's model servers add to an answer, kept on its message item.
_TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "generation_token_ids", "generation_log_probs")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one answer holds, before the client adds its own measurements (see `wire.Reply` for the fields)."""

    response: JsonObject
    output_text: str | None
    answer_state: AnswerState
    usage: Usage
    finish_reason: str | None


def reply_from(payload: JsonObject, api: Api, *, token_limit: int | None = None) -> Answer:
    """Normalise the JSON body of an answer with status 200.

    Args:
        payload: The body.
        api: Flavour of the endpoint.
        token_limit: The request's bound on output tokens, for the suspicion that an answer was cut off.

    Raises:
        EndpointFailure: It is no answer (``invalid_reply``), or reports a failure of the server (``server_error``).
    """
    try:
        response = _from_chat(payload) if api == "chat" else _from_responses(payload)
        return _answer(response, api, token_limit)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        message = f"the answer is no {api} object ({type(error).__name__}: {error}): {_shown(payload)}"
        raise EndpointFailure("invalid_reply", message, usage=_usage_of_failed(payload)) from error


def _shown(payload: JsonObject) -> str:
    try:
        return json.dumps(payload.get("error") or payload)
    except (ValueError, RecursionError):  # nested more deeply than it can be written
        return "(it cannot be shown)"


def filtered_answer(message: str, model: str) -> Answer:
    """Stand in for the answer that a content filter refused to give (an HTTP error, so there is no body)."""
    response = {
        "object": "response",
        "model": model,
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
        "error": {"code": "content_filter", "message": message},
        "output": [],
        "finish_reason": "content_filter",
    }
    return Answer(response, None, "filtered", Usage(), "content_filter")


def _answer(response: JsonObject, api: Api, token_limit: int | None) -> Answer:
    items: list[JsonObject] = response["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    texts = [part["text"] for part in parts if part["type"] == "output_text"]
    text = "".join(texts) if texts else None
    usage = _usage(_object(response, "usage"))
    finish_reason = response["finish_reason"] if api == "chat" else _finish_of_responses(response)
    spent = usage.output_tokens
    limit = token_limit if token_limit is not None else response.get("max_output_tokens")
    has_text = bool((text or "").strip())
    # Without a reason for stopping, an answer that used up its tokens is held cut off: llama.cpp calls every Responses
    # reply completed, also those that it ended at the limit.
    used_up = spent is not None and limit is not None and spent >= limit
    cut_off = finish_reason == "length" or (finish_reason is None and used_up)
    refused = finish_reason == "content_filter" or any(part["type"] == "refusal" for part in parts)
    state: AnswerState
    if refused:
        state = "filtered"
    elif has_text or any(item["type"].endswith("_call") for item in items):
        state = "truncated" if cut_off else "complete"
    elif any(item["type"] == "reasoning" for item in items):
        state = "reasoning_only"
    else:
        state = "truncated" if cut_off else "empty"
    return Answer(response, text, state, usage, finish_reason)


def _finish_of_responses(response: JsonObject) -> str | None:
    """Return ``length``, ``content_filter`` or another reason of incompleteness; None for a completed answer."""
    if response.get("status", "completed") == "completed":
        return None
    reason = (response.get("incomplete_details") or {}).get("reason")
    return "length" if reason == "max_output_tokens" else reason


def _from_responses(payload: JsonObject) -> JsonObject:
    if payload.get("status") in ("failed", "cancelled"):
        error = payload.get("error") or {}
        message = f"the server reports a failed response: {json.dumps(error)}"
        raise EndpointFailure("server_error", message, usage=_usage_of_failed(payload))
    if payload.get("status") in ("queued", "in_progress"):
        raise ValueError(f"its status is '{payload['status']}'")
    return payload


def _from_chat(payload: JsonObject) -> JsonObject:
    choice = payload["choices"][0]
    message = choice["message"]
    finish_reason = choice.get("finish_reason")
    incomplete = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish_reason or "")
    identity = str(payload.get("id") or "chat")
    return {
        "id": identity,
        "object": "response",
        "created_at": payload.get("created"),
        "model": payload.get("model"),
        "status": "incomplete" if incomplete else "completed",
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "output": _output_items(payload, choice, message, identity),
        "usage": _responses_usage(_object(payload, "usage")),
        "finish_reason": finish_reason,
    }


def _output_items(payload: JsonObject, choice: JsonObject, message: JsonObject, identity: str) -> list[JsonObject]:
    items: list[JsonObject] = []
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        summary = [{"type": "summary_text", "text": str(reasoning)}]
        items.append({"type": "reasoning", "id": f"rs_{identity}", "summary": summary})
    content: list[JsonObject] = []
    if text := _text_of(message.get("content")):
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        content.append({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
    if refusal := message.get("refusal"):
        content.append({"type": "refusal", "refusal": refusal})
    if content:
        item = {"type": "message", "id": f"msg_{identity}", "role": "assistant", "status": "completed"}
        items.append(item | {"content": content})
    for position, call in enumerate(message.get("tool_calls") or ()):
        items.append(_call_item(call, position, identity))
    if items:
        places = (message, choice, payload)
        tokens = {key: place[key] for key in _TOKEN_FIELDS for place in places if place.get(key) is not None}
        items[-1].update(tokens)
    return items


def _call_item(call: JsonObject, position: int, identity: str) -> JsonObject:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some servers send the object instead of its text
        arguments = json.dumps(arguments if arguments is not None else {})
    call_id = call.get("id") or f"call_{identity}_{position}"
    item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": function["name"]}
    return item | {"arguments": arguments, "status": "completed"}


def _text_of(content: Any) -> str | None:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content


def _object(value: JsonObject, key: str) -> JsonObject:
    """Return an inner object; empty where there is none, for odd accounts must not cost the answer that they are of."""
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _responses_usage(usage: JsonObject) -> JsonObject | None:
    """Rename Chat Completions' token counts; a count that is not known is left out."""
    if not usage:
        return None
    details = {
        "input_tokens_details": {"cached_tokens": _object(usage, "prompt_tokens_details").get("cached_tokens")},
        "output_tokens_details": {
            "reasoning_tokens": _object(usage, "completion_tokens_details").get("reasoning_tokens")
        },
    }
    counts = {
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }
    known = {key: inner for key, inner in details.items() if None not in inner.values()}
    return {key: count for key, count in counts.items() if count is not None} | known


def _usage_of_failed(payload: JsonObject) -> Usage:
    """Return the tokens of what is no answer but was paid for, where it says so in either flavour."""
    told = _object(payload, "usage")
    return _usage({"input_tokens": told.get("prompt_tokens"), "output_tokens": told.get("completion_tokens")} | told)


def _usage(usage: JsonObject) -> Usage:
    inputs, outputs = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    total = _count(usage.get("total_tokens"))
    if total is None and inputs is not None and outputs is not None:
        total = _count(inputs + outputs)
    return Usage(
        input_tokens=inputs,
        output_tokens=outputs,
        reasoning_tokens=_count(_object(usage, "output_tokens_details").get("reasoning_tokens")),
        cached_tokens=_count(_object(usage, "input_tokens_details").get("cached_tokens")),
        total_tokens=total,
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= LARGEST_COUNT else None  # NaN and infinity are outside too
