"""`tool_call_match`: which calls are the expected ones, as tables of tricky pairs and on the leaderboard's tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier
from tests.corpus import benchmark_files


def judge(calls: list[tuple[str, Any]], task: dict[str, Any], **params: Any) -> Verdict:
    """Judge calls of (name, arguments); arguments are JSON text, or a value that becomes it."""
    output = [{"type": "message", "content": [{"type": "output_text", "text": "Calling."}]}]
    output += [
        {"type": "function_call", "name": name, "arguments": given if isinstance(given, str) else json.dumps(given)}
        for name, given in calls
    ]
    item = Judgeable("t", 0, task, "Calling.", "complete", {"output": output}, None)
    return judge_one(load_verifier("tool_call_match", params), item)


AREA = {"ground_truth": [{"math.area": {"base": [10], "height": [5.5], "unit": ["cm", ""]}}]}
SCHEMA = {
    "name": "math.area",
    "parameters": {
        "type": "dict",
        "properties": {"base": {"type": "integer"}, "height": {"type": "float"}, "unit": {"type": "string"}},
    },
}


@pytest.mark.parametrize(
    ("name", "arguments", "reward"),
    [
        pytest.param("math.area", {"base": 10, "height": 5.5, "unit": "cm"}, 1.0, id="all"),
        pytest.param("math_area", {"base": 10, "height": 5.5}, 1.0, id="name-as-apis-allow-and-optional-left-out"),
        pytest.param("math.Area", {"base": 10, "height": 5.5}, 0.0, id="name-in-another-case"),
        pytest.param("area", {"base": 10, "height": 5.5}, 0.0, id="other-name"),
        pytest.param("math.area", {"base": 10}, 0.0, id="missing"),
        pytest.param("math.area", {"base": 10, "height": 5.5, "depth": 1}, 0.0, id="not-expected"),
        pytest.param("math.area", {"base": 10.0, "height": 5.5}, 1.0, id="equal-number-without-declared-types"),
        pytest.param("math.area", {"base": "10", "height": 5.5}, 0.0, id="number-as-text"),
        pytest.param("math.area", {"base": True, "height": 5.5}, 0.0, id="boolean"),
        pytest.param("math.area", {"base": 10, "height": 5.5, "unit": "c m."}, 1.0, id="text-loosely"),
        pytest.param("math.area", {"base": 10, "height": 5.5, "unit": None}, 0.0, id="null-is-not-left-out"),
        pytest.param("math.area", {"base": 10, "height": 5.5, "unit": ""}, 1.0, id="empty-text-is"),
        pytest.param("math.area", '{"base": 10, "base": 10, "height": 5.5}', 0.0, id="one-key-twice"),
        pytest.param("math.area", '{"base": 10, "height": 5.5', 0.0, id="cut-off"),
        pytest.param("math.area", '{"base": NaN, "height": 5.5}', 0.0, id="not-a-number"),
        pytest.param("math.area", "[10, 5.5]", 0.0, id="a-list"),
        pytest.param("math.area", "null", 0.0, id="null"),
        pytest.param("math.area", "", 0.0, id="nothing"),
        pytest.param("math.area", '{"a":' * 50_000, 0.0, id="deep"),
        pytest.param("math.area", '{"base": ' + "1" * 10_000 + "}", 0.0, id="huge-number"),
        pytest.param("math.area", '{"base": "\\ud800", "height": 5.5}', 0.0, id="half-a-surrogate-pair"),
    ],
)
def test_one_call_against_accepted_values(name: str, arguments: Any, reward: float) -> None:
    verdict = judge([(name, arguments)], AREA)
    assert (verdict.state, verdict.reward) == ("scored", reward)
    assert ("reason" in verdict.detail) == (reward == 0.0)


@pytest.mark.parametrize(
    ("arguments", "reward"),
    [
        pytest.param({"base": 10, "height": 5.5}, 1.0, id="right"),
        pytest.param({"base": 10.0, "height": 5.5}, 0.0, id="5.0-is-no-integer"),
        pytest.param({"base": 10, "height": 6}, 1.0, id="6-is-a-float"),
        pytest.param({"base": 10, "height": True}, 0.0, id="true-is-no-float"),
    ],
)
@pytest.mark.parametrize(
    "offered",
    [{"function": [SCHEMA]}, {"tools": [{"type": "function"} | SCHEMA]}, {"tools": [{"function": SCHEMA}]}],
    ids=["leaderboard", "responses-api", "chat-completions"],
)
def test_declared_types_count(arguments: Any, reward: float, offered: dict[str, Any]) -> None:
    task = {"ground_truth": [{"math.area": {"base": [10], "height": [5.5, 6.0, 1]}}]} | offered
    assert judge([("math_area", arguments)], task).reward == reward


@pytest.mark.parametrize(
    ("accepted", "given", "params", "reward"),
    [
        pytest.param(["New York, NY"], "new york ny", {}, 1.0, id="text"),
        pytest.param(["New York, NY"], "new york ny", {"texts": "exact"}, 0.0, id="text-exactly"),
        pytest.param(["don't"], 'don"t', {}, 1.0, id="quotes"),
        pytest.param(["a", "b"], "b", {}, 1.0, id="one-of"),
        pytest.param([["a", "b"]], ["b", "a"], {}, 0.0, id="a-list-has-an-order"),
        pytest.param([["a", "b"], ["b", "a"]], ["B", "A"], {}, 1.0, id="lists-in-both-orders"),
        pytest.param([[1, 2]], [1, 2, 3], {}, 0.0, id="longer-list"),
        pytest.param([[]], [], {}, 1.0, id="empty-list"),
        pytest.param([[[1], [2]]], [[1.0], [2]], {}, 1.0, id="list-of-lists"),
        pytest.param([{"x": [1, 2], "y": ["", 3]}], {"x": 2}, {}, 1.0, id="object-without-optional"),
        pytest.param([{"x": [1]}], {"x": 1, "z": 1}, {}, 0.0, id="object-with-more"),
        pytest.param([[{"x": [1]}, {"x": [2]}]], [{"x": 1}, {"x": 2}], {}, 1.0, id="list-of-objects"),
        pytest.param([True], 1, {}, 0.0, id="one-is-not-true"),
        pytest.param([1], True, {}, 0.0, id="true-is-not-one"),
        pytest.param([None], None, {}, 1.0, id="null"),
        pytest.param([0.1], 0.1, {}, 1.0, id="decimal"),
        pytest.param(["Zürich"], "Zu\u0308rich", {}, 0.0, id="another-unicode-form"),
    ],
)
def test_values(accepted: list[Any], given: Any, params: dict[str, Any], reward: float) -> None:
    task = {"ground_truth": [{"f": {"x": accepted}}]}
    assert judge([("f", {"x": given})], task, **params).reward == reward


TWO = {"ground_truth": [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]}


@pytest.mark.parametrize(
    ("given", "params", "reward"),
    [
        pytest.param([2, 1], {}, 1.0, id="in-order"),
        pytest.param([1, 2], {}, 1.0, id="any-order-where-the-first-fits-both"),
        pytest.param([1, 2], {"order": "fixed"}, 0.0, id="fixed-order"),
        pytest.param([2, 1], {"order": "fixed"}, 1.0, id="fixed-and-in-order"),
        pytest.param([2, 2], {}, 0.0, id="both-fit-one-only"),
        pytest.param([1], {}, 0.0, id="one-of-two"),
        pytest.param([1, 2, 1], {}, 0.0, id="one-too-many"),
        pytest.param([], {}, 0.0, id="none"),
    ],
)
def test_several_calls(given: list[int], params: dict[str, Any], reward: float) -> None:
    verdict = judge([("f", {"x": value}) for value in given], TWO, **params)
    assert (verdict.reward, verdict.scores) == (reward, {"calls": len(given)})


EXACT = {"expected_calls": [{"name": "f", "arguments": {"x": 1, "y": {"z": "A b"}}}]}
ACTION = {"expected_action": {"type": "function_call", "name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    ("task", "calls", "reward"),
    [
        pytest.param(EXACT, [("f", {"y": {"z": "A b"}, "x": 1.0})], 1.0, id="exact-any-order-of-keys"),
        pytest.param(EXACT, [("f", {"x": 1, "y": {"z": "a b"}})], 0.0, id="exact-case"),
        pytest.param(EXACT, [("f", {"x": 1})], 0.0, id="exact-missing"),
        pytest.param(EXACT, [("f", {"x": 1, "y": {"z": "A b"}, "w": None})], 0.0, id="exact-more"),
        pytest.param(ACTION, [("f", {"x": 1})], 1.0, id="action"),
        pytest.param(ACTION, [("g", {"x": 1})], 0.0, id="action-other-function"),
        pytest.param({"expected_action": {"type": "message"}}, [], 1.0, id="message-and-no-call"),
        pytest.param({"expected_action": {"type": "message"}}, [("f", {})], 0.0, id="message-but-a-call"),
        pytest.param({"ground_truth": []}, [], 1.0, id="no-call-is-right"),
        pytest.param({"ground_truth": []}, [("f", {})], 0.0, id="a-call-is-not"),
    ],
)
def test_exact_calls_and_no_calls(task: dict[str, Any], calls: list[tuple[str, Any]], reward: float) -> None:
    assert judge(calls, task).reward == reward


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"ground_truth": "f(1)"},
        {"ground_truth": [{"f": {"x": 1}}]},
        {"ground_truth": [{"f": {"x": []}}]},
        {"ground_truth": [{"f": {}, "g": {}}]},
        {"ground_truth": [], "expected_calls": []} | {"ground_truth": None, "expected_calls": [{"name": "f"}]},
        {"expected_calls": [{"name": "f", "arguments": "["}]},
        {"ground_truth": [{"f": {}}], "function": [{"parameters": {}}]},
    ],
)
def test_a_wrong_task_is_verifier_error(task: dict[str, Any]) -> None:
    verdict = judge([("f", {})], task)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert "ValueError: the task" in verdict.detail["reason"]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("depth", [10, 100])
def test_what_is_nested_as_deep_as_allowed_is_compared(depth: int) -> None:
    for other, reward in ((depth, 1.0), (depth - 2, 0.0), (800, 0.0)):
        given = [("f", {"x": nested(other)})]
        exact = judge(given, {"expected_calls": [{"name": "f", "arguments": {"x": nested(depth)}}]})
        accepting = judge(given, {"ground_truth": [{"f": {"x": [nested(depth - 1)]}}]})
        assert (exact.state, exact.reward) == ("scored", reward)
        assert accepting.state == "scored"


def test_absurd_tasks_are_refused_whatever_the_answer_is() -> None:
    deep = {"expected_calls": [{"name": "f", "arguments": {"x": nested(600)}}]}
    accepting = {"ground_truth": [{"f": {"x": [nested(600)]}}]}
    many = {"expected_calls": [{"name": "f", "arguments": {}}] * 201}
    for task, reason in ((deep, "nested more than 100"), (accepting, "nested more than 100"), (many, "201 calls")):
        for calls in ([], [("f", {"x": nested(600)})], [("f", {})] * 201):
            verdict = judge(calls, task)
            assert (verdict.state, verdict.reward) == ("verifier_error", None)
            assert reason in verdict.detail["reason"]
    assert judge([("f", {})] * 201, many, order="fixed").reward == 1.0


@pytest.mark.parametrize("arguments", [lambda _: {}, lambda number: {"x": number}])
def test_as_many_calls_as_allowed_take_no_time(arguments: Callable[[int], Any]) -> None:
    task = {"expected_calls": [{"name": "f", "arguments": arguments(number)} for number in range(200)]}
    began = time.process_time()
    assert judge([("f", arguments(number)) for number in reversed(range(200))], task).reward == 1.0
    assert time.process_time() - began < 2


def test_arguments_that_came_as_an_object_are_read() -> None:
    call = {"type": "function_call", "name": "f", "arguments": {"x": 1}}
    item = Judgeable("t", 0, {"ground_truth": [{"f": {"x": [1]}}]}, None, None, {"output": [call]}, None)
    assert judge_one(load_verifier("tool_call_match", {}), item).reward == 1.0


def test_the_evidence_names_the_calls_and_what_is_wrong() -> None:
    verdict = judge([("f", '{"y":1, "x":"é"}')], {"ground_truth": [{"f": {"x": ["e"], "y": [1]}}]})
    assert verdict.extracted_answer == 'f({"x": "é", "y": 1})'
    assert verdict.detail == {"reason": "call of f: argument 'x' is \"\\u00e9\""}
    assert judge([], AREA).extracted_answer is None
    assert judge_one(load_verifier("tool_call_match", {}), Judgeable("t", 0, AREA, "", None, None, None)).reward == 0.0


#: Two of its arguments have an empty list of accepted values, so that no answer could be right.
IMPOSSIBLE = "live_simple_106-63-0"

KINDS = ["simple_python", "multiple", "parallel", "live_simple"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_leaderboards_own_answers_are_right_and_changed_ones_wrong(kind: str) -> None:
    folder = benchmark_files("bfcl")
    asked, answers = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (folder / f"BFCL_v4_{kind}.json", folder / "possible_answer" / f"BFCL_v4_{kind}.json")
    )
    assert [row["id"] for row in asked] == [row["id"] for row in answers]
    for row, answer in zip(asked, answers, strict=True):
        task = {"function": row["function"], "ground_truth": answer["ground_truth"]}
        if row["id"] == IMPOSSIBLE:
            assert judge([], task).state == "verifier_error"
            continue
        for pick in (0, -1):  # the first and the last accepted value of each argument
            calls = [(name, _picked(given, pick)) for call in task["ground_truth"] for name, given in call.items()]
            assert judge(calls[::-1], task).reward == 1.0, (row["id"], judge(calls[::-1], task).detail)
        assert judge(calls[1:], task).reward == 0.0
        assert judge([(calls[0][0] + "x", calls[0][1]), *calls[1:]], task).reward == 0.0
        assert judge([(calls[0][0], calls[0][1] | {"not_offered": 1}), *calls[1:]], task).reward == 0.0


def test_on_the_leaderboards_irrelevant_tasks_no_call_is_right() -> None:
    for line in (benchmark_files("bfcl") / "BFCL_v4_irrelevance.json").read_text(encoding="utf-8").splitlines():
        task = {"function": json.loads(line)["function"], "ground_truth": []}
        assert judge([], task).reward == 1.0
        assert judge([(task["function"][0]["name"], {})], task).reward == 0.0


def _picked(accepted: dict[str, list[Any]], pick: int) -> dict[str, Any]:
    """Return arguments by one accepted value each; those that may be left out are, where that is the one."""
    chosen = {name: values[pick] for name, values in accepted.items() if values[pick] != ""}
    return {
        name: {key: inner[pick] for key, inner in value.items()} if isinstance(value, dict) else value
        for name, value in chosen.items()
    }
