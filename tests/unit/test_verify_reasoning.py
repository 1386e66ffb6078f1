"""Reasoning is no answer, wherever an endpoint puts it: from its reply to what verifiers read."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gym_spark.endpoint.replies import reply_from
from gym_spark.verify.base import Judgeable, answer_text


def left_of(text: str | None) -> str:
    return answer_text(Judgeable("t", 0, {}, text, None, None, None))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param("4", "4", id="none"),
        pytest.param(None, "", id="no-text"),
        pytest.param("<think>5</think>4", "4", id="closed"),
        pytest.param("<THINKING>\n5\n</THINKING>\n4", "\n4", id="other-word-and-case"),
        pytest.param("<think></think>4", "4", id="closed-and-empty"),
        pytest.param("so 5</think>4", "4", id="opened-in-the-prompt"),
        pytest.param("<think>so 5", "", id="cut-off"),
        pytest.param("4 <think>or 5", "", id="cut-off-behind-text"),
        pytest.param("4 <think>or 5</think> yes", "4  yes", id="in-the-middle"),
        pytest.param("<think>1</think>2<think>3</think>4", "24", id="twice"),
        pytest.param("<think>1</think>2<think>3", "", id="cut-off-the-second-time"),
        pytest.param("1</think>2<think>3</think>4", "24", id="opened-in-the-prompt-and-again"),
        pytest.param("1</think>2</think>4", "4", id="closed-twice"),
        pytest.param("<think>the <think> tag</think>4", "4", id="tag-named-inside"),
        pytest.param("<think>a<think>b</think>c</think>4", "4", id="nested"),
        pytest.param("<think>5</thinking>4", "4", id="closed-by-the-other-word"),
        pytest.param("<thinker>4", "<thinker>4", id="another-tag"),
        pytest.param("<think >5</think >4", "4", id="blank-in-the-tag"),
        pytest.param("[THINK]5[/THINK]4", "4", id="square"),
        pytest.param("so 5[/THINK]4", "4", id="square-opened-in-the-prompt"),
        pytest.param("[THINK]so 5", "", id="square-cut-off"),
        pytest.param("[THINK]the </think> tag[/THINK]4", "4", id="another-kind-does-not-close"),
        pytest.param("<think>the [THINK] tag</think>4", "4", id="another-kind-named-inside"),
        pytest.param("x[think]", "x[think]", id="square-in-small-letters-is-code"),
        pytest.param("<think>5</think>4\n</think>\n", "4\n\n", id="closed-again-at-the-end"),
        pytest.param("so 5\n</think>\n", "\n", id="closed-at-the-end-alone"),
        pytest.param("<think>a<think>b</think>c</think>", "", id="nested-without-an-answer"),
        pytest.param("<think>a</think>b</think>4", "4", id="closed-again-before-the-answer"),
        pytest.param("a < think > b", "a < think > b", id="blanks-make-no-tag"),
    ],
)
def test_tags_within_the_text(text: str | None, left: str) -> None:
    assert left_of(text) == left


def message(*texts: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text} for text in texts],
    }


SUMMARY = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "5"}]}
CONTENT = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "5"}]}
HIDDEN = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "5"}


@pytest.mark.parametrize(
    ("output", "left"),
    [
        pytest.param([SUMMARY, message("4")], "4", id="summary"),
        pytest.param([CONTENT, message("4")], "4", id="content"),
        pytest.param([HIDDEN, message("4")], "4", id="encrypted"),
        pytest.param([SUMMARY, message("4"), CONTENT, message("2")], "42", id="between-two-messages"),
        pytest.param([SUMMARY], "", id="reasoning-alone"),
        pytest.param([SUMMARY, message("<think>5</think>4")], "4", id="item-and-tags"),
        pytest.param([message("<think>5", "</think>4")], "4", id="tags-over-two-parts"),
        pytest.param([message("<think>5"), message("</think>4")], "4", id="tags-over-two-messages"),
    ],
)
def test_reasoning_items_of_responses(output: list[Any], left: str) -> None:
    payload = {"id": "r", "object": "response", "model": "m", "status": "completed", "output": output}
    assert left_of(reply_from(payload, "responses").output_text) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        pytest.param({"content": "4", "reasoning_content": "5"}, "4", id="reasoning-content"),
        pytest.param({"content": "4", "reasoning": "5"}, "4", id="reasoning"),
        pytest.param({"content": None, "reasoning_content": "5"}, "", id="reasoning-alone"),
        pytest.param({"content": "</think>4", "reasoning_content": "5"}, "4", id="its-last-tag-is-left-in-the-text"),
        pytest.param({"content": "<think>5</think>4"}, "4", id="tags"),
    ],
)
def test_reasoning_of_chat_completions(body: dict[str, Any], left: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", **body}, "finish_reason": "stop"}
    payload = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}
    assert left_of(reply_from(payload, "chat").output_text) == left


@pytest.mark.parametrize("text", ["<think>" * 100_000, "</think>" * 100_000, "<think></think>" * 50_000, "<" * 500_000])
def test_removal_takes_linear_time_on_hostile_text(text: str) -> None:
    started = time.process_time()
    left_of(text)
    assert time.process_time() - started < 1
