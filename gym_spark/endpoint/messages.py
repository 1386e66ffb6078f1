"""Responses API input -> Chat Completions messages and tools."""

from __future__ import annotations

from typing import Any

from gym_spark.config import JsonObject
from gym_spark.endpoint.failures import EndpointFailure

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


def chat_messages(instructions: str | None, items: Any) -> list[JsonObject]:
    """Convert `instructions` and an `input` (a string, or a list of items) to messages.

    Function calls join the assistant message before them, as one turn; reasoning items are dropped, for Chat
    Completions has no place for them.

    Raises:
        EndpointFailure: An item has no chat form (``bad_request``, terminal).
    """
    messages: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise _unsayable(f"`input` must be a string or a list of items, and is {str(items)[:80]!r}")
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
        if kind == "message" and "role" in item:
            messages.append({"role": item["role"], "content": _content(item.get("content", ""))})
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output", ""))}
            messages.append(output)
        elif kind != "reasoning":
            raise _unsayable(f"an input item of type '{kind}' has no Chat Completions form")
    return messages


def chat_tool(tool: JsonObject) -> JsonObject:
    """Nest a flat Responses function tool; a tool that is nested already, or no function, stays as it is."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def chat_tool_choice(choice: Any) -> Any:
    """Nest a flat ``{"type": "function", "name": ...}``; words ("auto", "required") stay as they are."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _add_call(messages: list[JsonObject], item: JsonObject) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]  # many chat templates take plain strings only
    return parts


def _part(part: Any) -> JsonObject:
    if not isinstance(part, dict):
        raise _unsayable(f"a content part must be an object, and is {str(part)[:80]!r}")
    if part.get("type") in _TEXT_PARTS:
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") == "input_image":
        image = {"url": part.get("image_url")} | ({"detail": part["detail"]} if "detail" in part else {})
        return {"type": "image_url", "image_url": image}
    return part


def _unsayable(message: str) -> EndpointFailure:
    return EndpointFailure("bad_request", f"The request was not sent: {message}.")
