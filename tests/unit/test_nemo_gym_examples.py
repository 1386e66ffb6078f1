"""The rollouts that NeMo Gym ships with its resources servers: our verifiers give the stored rewards.

A verifier reads a row as an import stores it, all its fields beside `responses_create_params`. Rollouts are in another
order than tasks, and mostly without the tasks' fields: a rollout's task is the one with the same question.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from gym_spark.endpoint.replies import reply_from
from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier
from tests.corpus import benchmark_files

Row = dict[str, Any]

#: Fields of a rollout that are its outcome and not its task.
OUTCOME = {"responses_create_params", "response", "reward", "extracted_answer", "library_reward", "judge_evaluations"}


def rows(name: str, file: str) -> list[Row]:
    path = benchmark_files("nemo_gym_examples") / name / file
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def question(row: Row) -> str:
    """The text of the last message that the model was given, in whichever of its shapes."""
    content = row["responses_create_params"]["input"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def pairs(name: str) -> list[tuple[Row, Row]]:
    """Each rollout with its task's verifier inputs."""
    tasks = {question(task): task for task in rows(name, "example.jsonl")}
    rollouts = rows(name, "example_rollouts.jsonl")
    assert len(rollouts) == 5
    found = [(rollout, tasks[question(rollout)]) for rollout in rollouts]
    return [(rollout, {key: task[key] for key in task if key not in OUTCOME}) for rollout, task in found]


def judge(verifier: str, rollout: Row, task: Row, **params: Any) -> Verdict:
    text = reply_from(rollout["response"], "responses").output_text
    item = Judgeable("t", 0, task, text, "complete", rollout["response"], rollout["reward"])
    return judge_one(load_verifier(verifier, params), item)


def differences(verifier: str, judged: list[tuple[Row, Row]], reward: str = "reward", **params: Any) -> dict[int, Any]:
    """Position of each rollout that is judged otherwise -> (our reward, the stored one)."""
    verdicts = [judge(verifier, rollout, task, **params) for rollout, task in judged]
    stored = [rollout[reward] for rollout, _ in judged]
    return {
        position: (verdict.reward, theirs)
        for position, (verdict, theirs) in enumerate(zip(verdicts, stored, strict=True))
        if verdict.reward != theirs
    }


@pytest.mark.parametrize("name", ["mcqa", "string_match"])
def test_rewards_and_extracted_answers_are_the_stored_ones(name: str) -> None:
    judged = pairs(name)
    assert differences(name, judged) == {}
    for rollout, task in judged:
        assert task["expected_answer"] == rollout["expected_answer"]
        assert judge(name, rollout, task).extracted_answer == rollout["extracted_answer"]


def test_mcqa_with_another_mode_differs_where_the_box_holds_the_options_text_too() -> None:
    """Rollout 2 boxes "C: An individual ...": no single letter, but a labelled one."""
    assert differences("mcqa", pairs("mcqa"), grading_mode="lenient_boxed") == {2: (1.0, 0.0)}


def test_math_with_judge_has_the_librarys_stored_rewards() -> None:
    """The symbolic part alone; the judge was asked about the two wrong ones, and agreed."""
    judged = pairs("math_with_judge")
    assert differences("math", judged, "library_reward") == {}
    assert [rollout["judge_evaluations"] is None for rollout, _ in judged] == [
        rollout["library_reward"] == 1 for rollout, _ in judged
    ]


def schema_in(rollout: Row) -> Row:
    """The schema that a prompt asks for. These rollouts are of older tasks, whose rows are not shipped."""
    for given in rollout["responses_create_params"]["input"]:
        text = given["content"]
        start = text.find('{"')
        if start >= 0:
            found, _ = json.JSONDecoder().raw_decode(text, start)
            return found if "type" in found and "properties" in found else {"type": "object", "properties": found}
    raise AssertionError("no schema")


def test_structured_outputs_have_the_stored_rewards() -> None:
    """Four answers stand in a code fence and are no JSON as they came; the fifth is JSON that its schema allows."""
    judged = [
        (rollout, {"schema_str": json.dumps(schema_in(rollout)), "schema_type": "json"})
        for rollout in rows("structured_outputs", "example_rollouts.jsonl")
    ]
    assert len(judged) == 5
    assert differences("json_schema", judged) == {}


@pytest.mark.parametrize(("right", "reward"), [(True, 1.0), (False, 0.0)])
def test_structured_outputs_by_a_call_are_read_from_the_row(right: bool, reward: float) -> None:
    """Today's tasks want a call; no rollout of theirs is shipped, so the call is made from the schema."""
    for task in rows("structured_outputs", "example.jsonl"):
        document = made_by(json.loads(task["schema_str"]))
        if not right:
            document = {"x": document}
        arguments = document if task["tool_payload_key"] is None else {task["tool_payload_key"]: document}
        call = {"type": "function_call", "name": task["tool_name"], "arguments": json.dumps(arguments)}
        verdict = judge("json_schema", {"response": {"output": [call], "status": "completed"}, "reward": None}, task)
        assert (verdict.state, verdict.reward) == ("scored", reward), verdict.detail


def made_by(schema: Row) -> Any:
    """A document that a schema of these tasks allows."""
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {name: made_by(inner) for name, inner in schema["properties"].items()}
    if kind == "array":
        return [made_by(schema["items"])]
    return {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "null": None}[kind]


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="the optional package reasoning-gym is not installed")
def test_reasoning_gym_has_the_stored_rewards() -> None:
    """Three answers end right after pages of working; neither tag nor box marks them, so nobody's scorer finds them."""
    assert differences("reasoning_gym", pairs("reasoning_gym")) == {}
