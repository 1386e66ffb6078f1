"""NeMo Gym's example rollouts that a judge has judged: with its stored replies, the rewards are the stored ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_spark.endpoint.replies import reply_from
from tests.e2e.test_judging import judge_at, judged
from tests.fake_openai import FakeOpenAI, last_user_text
from tests.unit.test_nemo_gym_examples import pairs

Row = dict[str, Any]


def text_of(response: Row) -> str:
    return reply_from(response, "responses").output_text or ""


@pytest.mark.parametrize(
    ("example", "verifier", "params", "asked"),
    [
        ("equivalence_llm_judge", "llm_judge", {}, 5),
        # One of its expected answers takes seconds to compare, and a busy machine's seconds are long.
        ("math_with_judge", "math_with_judge", {"symbolic_limit_s": 120.0}, 2),
    ],
)
def test_stored_replies_give_the_stored_rewards(
    example: str, verifier: str, params: dict[str, Any], asked: int
) -> None:
    """Symbols decide three of the five of `math_with_judge`, as they did there: the judge is asked about two."""
    known = pairs(example)
    rows = [
        {"answer": text_of(rollout["response"]), "inputs": task, "question": task["question"]}
        for rollout, task in known
    ]
    said = {
        rollout["expected_answer"]: text_of(evaluation["response"])
        for rollout, _ in known
        for evaluation in rollout["judge_evaluations"] or []
    }

    def judge(body: Row, n: int) -> str:
        expected = last_user_text(body).split("<expected ")[1].split("\n")[1]
        return said[expected]

    with FakeOpenAI(judge) as server:
        found = judged(verifier, rows, judge_at(server), **params)
        assert server.requests == asked == len(said)
    assert [row["reward"] for row in found] == [rollout["reward"] for rollout, _ in known]
    for row, (rollout, _) in zip(found, known, strict=True):
        if "library_reward" in rollout:
            assert dict(row["scores"])["symbolic"] == rollout["library_reward"]
        evaluations = rollout["judge_evaluations"] or []
        replies = [text_of(evaluation["response"]) for evaluation in evaluations]
        assert json.loads(row["detail"] or "{}").get("judge_replies", []) == replies
