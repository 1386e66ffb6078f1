"""`json_schema`: which answers are documents that a schema allows, as tables of tricky pairs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier
from gym_spark.verify.isolated import IsolatedPool

POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": ["number", "null"]}}}


def item(answer: str | None, task: dict[str, Any], calls: tuple[tuple[str, str], ...] = ()) -> Judgeable:
    output = [{"type": "function_call", "name": name, "arguments": given} for name, given in calls]
    return Judgeable("t", 0, task, answer, "complete", {"output": output}, None)


def judge(answer: str | None, schema: Any = POINT, *, kind: str = "json", **params: Any) -> Verdict:
    task = {"schema_str": json.dumps(schema), "schema_type": kind}
    return judge_one(load_verifier("json_schema", params), item(answer, task))


@pytest.mark.parametrize(
    ("answer", "params", "reward"),
    [
        pytest.param('{"x": 1, "y": 2.5}', {}, 1.0, id="right"),
        pytest.param(' {"y": null, "x": 1}\n', {}, 1.0, id="null-blanks-other-order"),
        pytest.param('{"x": 1}', {}, 0.0, id="property-missing"),
        pytest.param('{"x": 1}', {"strict": False}, 1.0, id="property-missing-allowed-by-the-schema-itself"),
        pytest.param('{"x": 1, "y": 2, "z": 3}', {}, 0.0, id="property-more"),
        pytest.param('{"x": 1, "y": 2, "z": 3}', {"strict": False}, 1.0, id="property-more-allowed"),
        pytest.param('{"x": "1", "y": 2}', {}, 0.0, id="number-as-text"),
        pytest.param('{"x": 1.0, "y": 2}', {}, 1.0, id="1.0-is-an-integer"),
        pytest.param('{"x": true, "y": 2}', {}, 0.0, id="true-is-no-integer"),
        pytest.param('```json\n{"x": 1, "y": 2}\n```', {}, 0.0, id="fence"),
        pytest.param('```json\n{"x": 1, "y": 2}\n```', {"fenced": True}, 1.0, id="fence-accepted"),
        pytest.param('```\n{"x": 1, "y": 2}```', {"fenced": True}, 1.0, id="fence-without-language-or-last-line"),
        pytest.param('Here: ```json\n{"x": 1, "y": 2}\n```', {"fenced": True}, 0.0, id="fence-and-prose"),
        pytest.param('Here: {"x": 1, "y": 2}', {}, 0.0, id="prose"),
        pytest.param('{"x": 1, "y": 2} {"x": 1, "y": 2}', {}, 0.0, id="two-documents"),
        pytest.param('<think>{"x"</think>{"x": 1, "y": 2}', {}, 1.0, id="reasoning-is-gone"),
        pytest.param('{"x": 1, "y": 2,}', {}, 0.0, id="trailing-comma"),
        pytest.param("{'x': 1, 'y': 2}", {}, 0.0, id="single-quotes"),
        pytest.param('{"x": 1, "x": 1, "y": 2}', {}, 0.0, id="key-twice"),
        pytest.param('{"x": 1, "y": NaN}', {}, 0.0, id="not-a-number"),
        pytest.param('{"x": 1, "y": 2', {}, 0.0, id="cut-off"),
        pytest.param("[]", {}, 0.0, id="a-list"),
        pytest.param("", {}, 0.0, id="empty"),
        pytest.param(None, {}, 0.0, id="none"),
        pytest.param("<think>hm", {}, 0.0, id="only-reasoning"),
        pytest.param("[" * 100_000, {}, 0.0, id="deep"),
        pytest.param('{"x": ' + "1" * 10_000 + ', "y": 2}', {}, 0.0, id="huge-number"),
        pytest.param('{"x": "\\ud800", "y": 2}', {}, 0.0, id="half-a-surrogate-pair"),
    ],
)
def test_json(answer: str | None, params: dict[str, Any], reward: float) -> None:
    verdict = judge(answer, **params)
    assert (verdict.state, verdict.reward) == ("scored", reward)
    assert ("reason" in verdict.detail) == (reward == 0.0)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        pytest.param("x: 1\ny: 2.5\n", 1.0, id="right"),
        pytest.param("{x: 1, y: null}", 1.0, id="flow"),
        pytest.param("x: 1\ny: ~", 1.0, id="tilde-is-null"),
        pytest.param("x: one\ny: 2", 0.0, id="text"),
        pytest.param("x: 1\nx: 1\ny: 2", 0.0, id="key-twice"),
        pytest.param("x: 1\ny: 2\n1: 3", 0.0, id="number-as-key"),
        pytest.param("a: &a {y: 2}\n<<: *a\nx: 1", 0.0, id="merge-and-more"),
        pytest.param("x: 1\ny: 2\n---\nx: 1", 0.0, id="two-documents"),
        pytest.param("!!python/object/apply:os.getcwd []", 0.0, id="no-python-object-is-made"),
        pytest.param("x: [", 0.0, id="cut-off"),
        pytest.param("```yaml\nx: 1\ny: 2\n```", 0.0, id="fence"),
        pytest.param("? [a]\n: 1", 0.0, id="list-as-key"),
        pytest.param("just words", 0.0, id="words"),
        pytest.param("x: 1\ny: !!int ''", 0.0, id="no-text-is-no-integer"),
        pytest.param("x: 1\ny: !!float ''", 0.0, id="no-text-is-no-number"),
        pytest.param("x: !!int _\ny: 2", 0.0, id="underscore-is-no-integer"),
        pytest.param("x: 1\ny: !!timestamp foo", 0.0, id="word-is-no-time"),
        pytest.param("x: !!bool foo\ny: 2", 0.0, id="word-is-no-truth-value"),
    ],
)
def test_yaml(answer: str, reward: float) -> None:
    verdict = judge(answer, kind="yaml")
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize(
    ("schema", "answer", "reward"),
    [
        pytest.param({"type": "array", "items": POINT}, '[{"x": 1}]', 0.0, id="items"),
        pytest.param({"properties": {"p": POINT}}, '{"p": {"x": 1}}', 0.0, id="nested"),
        pytest.param({"anyOf": [POINT, {"type": "null"}]}, '{"x": 1}', 0.0, id="any-of"),
        pytest.param({"$defs": {"p": POINT}, "$ref": "#/$defs/p"}, '{"x": 1}', 0.0, id="reference"),
        pytest.param({"properties": {"properties": {"type": "integer"}}}, '{"properties": 1}', 1.0, id="named-so"),
        pytest.param({"properties": {"properties": {"type": "integer"}}}, "{}", 0.0, id="named-so-and-missing"),
        pytest.param({"enum": [{"properties": 1}]}, '{"properties": 1}', 1.0, id="a-value-is-no-schema"),
        pytest.param({"allOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]}, '{"x": 1}', 1.0, id="all-of"),
        pytest.param({"type": "object", "additionalProperties": {"type": "string"}}, '{"a": "b"}', 1.0, id="map"),
        pytest.param(True, "3", 1.0, id="everything"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True},
            "3",
            0.0,
            id="draft-4",
        ),
    ],
)
def test_strictness_reaches_every_object_and_nothing_else(schema: Any, answer: str, reward: float) -> None:
    verdict = judge(answer, schema)
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize("answer", ["1e999", "-1.0e+999", "1" * 4000, "[" * 2000 + "]" * 2000])
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_no_value_takes_an_answer_out_of_the_scored_ones(answer: str, kind: str) -> None:
    schema = {"type": ["number", "array"], "multipleOf": 0.01, "items": {"$ref": "#"}, "uniqueItems": True}
    verdict = judge(answer, schema, kind=kind)
    assert (verdict.state, verdict.reward) == ("scored", 0.0)


def test_formats_are_checked_where_asked_for() -> None:
    schema = {"type": "string", "format": "date"}
    assert [judge('"2024-02-30"', schema, formats=formats).reward for formats in (False, True)] == [1.0, 0.0]
    assert judge('"2024-02-29"', schema, formats=True).reward == 1.0


WRAPPED = {"schema": POINT, "response_mode": "tool_call", "tool_name": "submit", "tool_payload_key": "extraction"}
DIRECT = WRAPPED | {"tool_payload_key": None}


@pytest.mark.parametrize(
    ("task", "calls", "reward"),
    [
        pytest.param(WRAPPED, [("submit", '{"extraction": {"x": 1, "y": 2}}')], 1.0, id="wrapped"),
        pytest.param(WRAPPED, [("submit", '{"x": 1, "y": 2}')], 0.0, id="not-wrapped"),
        pytest.param(WRAPPED, [("submit", '{"extraction": {"x": 1, "y": 2}, "data": 1}')], 0.0, id="two-keys"),
        pytest.param(DIRECT, [("submit", '{"x": 1, "y": 2}')], 1.0, id="direct"),
        pytest.param(DIRECT, [("other", '{"x": 1, "y": 2}')], 0.0, id="other-tool"),
        pytest.param(DIRECT, [("submit", '{"x": 1, "y": 2}')] * 2, 0.0, id="two-calls"),
        pytest.param(DIRECT, [("submit", '{"x": 1')], 0.0, id="cut-off"),
        pytest.param(DIRECT, [], 0.0, id="no-call"),
    ],
)
def test_a_document_may_be_handed_over_by_a_call(task: dict[str, Any], calls: Any, reward: float) -> None:
    verdict = judge_one(load_verifier("json_schema", {}), item('{"x": 1, "y": 2}', task, calls))
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({}, "the task's schema is none: it is NoneType, not an object"),
        ({"schema_str": "{"}, "the task's schema is none"),
        ({"schema": {"type": "text"}}, "the task's schema is none"),
        ({"schema": {"pattern": "("}}, "the task's schema is none"),
        ({"schema": {}, "schema_type": "xml"}, "schema_type is 'xml'; json_schema knows json and yaml alone"),
        ({"schema": {"$ref": "https://example.org/schema"}}, "refers to what it does not hold"),
        ({"schema": {"$ref": "#/nowhere"}}, "refers to what it does not hold"),
    ],
)
def test_a_wrong_task_is_verifier_error_and_nothing_is_fetched(task: dict[str, Any], reason: str) -> None:
    verdict = judge_one(load_verifier("json_schema", {}), item("1", task))
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert reason in verdict.detail["reason"]


def test_p22_what_would_take_years_is_a_timeout_and_the_next_answer_is_judged() -> None:
    bomb = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20))
    every = {"$ref": "#/$defs/n"}
    nested = every | {"$defs": {"n": {"additionalProperties": every, "items": every}}}
    hostile = [
        item(bomb, {"schema": nested, "schema_type": "yaml"}),
        item(json.dumps("a" * 60 + "b"), {"schema": {"pattern": "^(a|aa)+$"}}),
        item("3", {"schema": {"type": "integer"}}),
    ]
    with IsolatedPool("json_schema", {}, limit_s=1.0) as pool:
        verdicts = list(pool.judge(hostile))
    assert [(verdict.state, verdict.reward) for verdict in verdicts] == [
        ("verify_timeout", None),
        ("verify_timeout", None),
        ("scored", 1.0),
    ]
