"""What goes over the wire: a task's parameters and sampling settings enter, a request body leaves; and the reply types.

Tasks speak the Responses API (`responses_create_params`). :func:`request_body` gives the body for either flavour;
`endpoint.replies` turns either flavour's answer into one shape again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gym_spark.config import JsonObject, SamplingSpec
from gym_spark.endpoint.messages import chat_messages, chat_tool, chat_tool_choice
from gym_spark.endpoint.usage import Usage

Api = Literal["chat", "responses"]
AnswerState = Literal["complete", "truncated", "reasoning_only", "empty", "filtered"]

#: Would change the form of the answer (a stream, a job number, several choices): the client reads one whole answer.
_NEVER_SENT = frozenset({"stream", "stream_options", "background", "n"})
#: Responses API fields that Chat Completions lacks, or that `_chat_body` says in its own words.
_RESPONSES_ONLY = frozenset(
    {"input", "instructions", "text", "reasoning", "max_output_tokens", "include", "store", "truncation"}
    | {"previous_response_id", "conversation", "prompt", "max_tool_calls"}
)
#: Below these keys stand the user's own JSON values, where null has a meaning (a schema's ``"default": null``).
_OPAQUE = frozenset({"parameters", "schema", "metadata", "chat_template_kwargs"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered model call.

    Attributes:
        response: The answer as a Responses API object.
        output_text: The answer's text without reasoning; None where it has none.
        answer_state: What kind of answer it is; `truncated` and the like are never scored as plainly wrong.
        usage: Tokens of the answered request, and of failed tries where the server told them: all that it cost.
        finish_reason: The server's word for why it stopped; None where the API has none (a completed Responses reply).
        requests: HTTP requests sent for it, retries included.
        latency_ms: Time of the answered request, from going out to the last byte.
        queue_ms: Time spent waiting for a live replica, our own rate limits and a free slot, over all tries; back-off
            is in neither.
        replica: Base address that answered.
    """

    response: JsonObject
    output_text: str | None
    answer_state: AnswerState
    usage: Usage
    finish_reason: str | None
    requests: int
    latency_ms: float
    queue_ms: float
    replica: str


def request_body(params: JsonObject, sampling: SamplingSpec, model: str, api: Api) -> JsonObject:
    """Build the body of one model call.

    Unset fields (None, and empty `tools`) are left out, for many servers read null as a value. `sampling` overrides
    `params`, and `sampling.extra` overrides both.

    Args:
        params: A task's `responses_create_params`: `input` (string or items), `instructions`, `tools`, ...
        sampling: The run's sampling settings.
        model: Model name to ask for.
        api: Flavour of the endpoint.

    Raises:
        RolloutError: `params` cannot be said in this flavour (``bad_request``, terminal).
    """
    kept: JsonObject = {key: value for key, value in without_unset(params).items() if key not in _NEVER_SENT}
    overrides = sampling.model_dump(mode="json", exclude={"extra"}, exclude_none=True)
    merged = kept | overrides | {"model": model}
    if not merged.get("tools"):
        # Servers refuse a tool choice, and some an empty list, where there is no tool.
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            merged.pop(key, None)
    body = _chat_body(merged) if api == "chat" else merged
    return body | {key: value for key, value in sampling.extra.items() if value is not None}


def without_unset(value: Any) -> Any:
    """Drop None-valued keys at every level, except inside values that are the user's own JSON."""
    if isinstance(value, dict):
        return {key: item if key in _OPAQUE else without_unset(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_unset(item) for item in value]
    return value


def _chat_body(merged: JsonObject) -> JsonObject:
    body = {key: value for key, value in merged.items() if key not in _RESPONSES_ONLY}
    body["messages"] = chat_messages(merged.get("instructions"), merged.get("input"))
    if "max_output_tokens" in merged:
        body["max_tokens"] = merged["max_output_tokens"]
    if "tools" in merged:
        body["tools"] = [chat_tool(tool) for tool in merged["tools"]]
    if "tool_choice" in merged:
        body["tool_choice"] = chat_tool_choice(merged["tool_choice"])
    if "top_logprobs" in merged or "message.output_text.logprobs" in merged.get("include", ()):
        body["logprobs"] = True
    if effort := merged.get("reasoning", {}).get("effort"):
        body["reasoning_effort"] = effort
    text = merged.get("text", {})
    if "verbosity" in text:
        body["verbosity"] = text["verbosity"]
    form = text.get("format", {})
    if form.get("type") == "json_schema":
        inner = {key: value for key, value in form.items() if key != "type"}
        body["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif form.get("type") == "json_object":
        body["response_format"] = {"type": "json_object"}
    return body
