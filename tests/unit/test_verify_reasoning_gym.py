"""`reasoning_gym`: extraction before scoring, full credit alone, and what happens without the library."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier, needed_inputs
from tests.corpus import benchmark_files

with_library = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="the optional package reasoning-gym is not installed"
)

KNIGHTS = {
    "question": "Who is a sage and who is a fool?",
    "answer": "Zoey is a fool, and Riley is a sage.",
    "metadata": {"source_dataset": "knights_knaves"},
}
SPELLING = {"question": "Spell fun backward", "answer": "nuf", "metadata": {"source_dataset": "spell_backward"}}
FACTORS = {
    "question": "Factor 6",
    "answer": "2 \u00d7 3",
    "metadata": {"source_dataset": "prime_factorization", "number": 6},
}
SUM = {"question": "6 - 1 =", "answer": "5", "metadata": {"source_dataset": "chain_sum"}}


def judge(answer: str | None, task: dict[str, Any], **params: Any) -> Verdict:
    return judge_one(load_verifier("reasoning_gym", params), Judgeable("t", 0, task, answer, None, None, None))


def test_without_the_library_the_extra_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'gym-spark\[reasoning-gym\]'"):
        load_verifier("reasoning_gym", {})
    assert needed_inputs("reasoning_gym") == ("question", "metadata")


@with_library
@pytest.mark.parametrize(
    ("task", "answer", "reward", "extracted"),
    [
        pytest.param(KNIGHTS, "Zoey is a fool, and Riley is a sage.", 1.0, None, id="whole-text"),
        pytest.param(KNIGHTS, "<answer>Riley is a sage, Zoey is a fool</answer>", 1.0, None, id="other-order"),
        pytest.param(KNIGHTS, "Zoey is a fool, and Riley is a fool.", 0.0, None, id="half-right-is-wrong"),
        pytest.param(SUM, "5", 1.0, "5", id="answer-alone"),
        pytest.param(SUM, "I think <answer> 4 </answer>, no: <answer> 5 </answer>", 1.0, "5", id="last-tag"),
        pytest.param(SUM, r"It is \boxed{4}, no \boxed{5}.", 1.0, "5", id="last-box"),
        pytest.param(SUM, r"<answer>5</answer> \boxed{4}", 1.0, "5", id="tag-before-box"),
        pytest.param(SUM, "<think><answer>4</answer></think>5", 1.0, "5", id="not-in-reasoning"),
        pytest.param(SUM, "The answer is 5", 0.0, "The answer is 5", id="within-text"),
        pytest.param(SUM, "", 0.0, None, id="empty"),
        pytest.param(SUM, None, 0.0, None, id="none"),
        pytest.param(SUM, "<answer></answer>", 0.0, "<answer></answer>", id="empty-tag"),
        pytest.param(FACTORS, "2 \u00d7 3", 1.0, "2 \u00d7 3", id="factors"),
        pytest.param(FACTORS, "two", 0.0, "two", id="where-the-scorer-raises"),
        pytest.param(SPELLING, "nuf", 1.0, "nuf", id="spelling"),
    ],
)
def test_only_full_credit_counts(task: dict[str, Any], answer: str, reward: float, extracted: str | None) -> None:
    verdict = judge(answer, task)
    assert (verdict.state, verdict.reward) == ("scored", reward)
    assert extracted is None or verdict.extracted_answer == extracted


@with_library
def test_partial_credit_is_a_score_and_the_reward_where_asked_for() -> None:
    half = "Zoey is a fool, and Riley is a fool."
    assert judge(half, KNIGHTS).scores == pytest.approx({"score": 0.65})
    assert judge(half, KNIGHTS, partial_credit=True).reward == pytest.approx(0.65)


@with_library
@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (None, "metadata names no source_dataset"),
        ({}, "metadata names no source_dataset"),
        ({"source_dataset": "no_such_set"}, "source_dataset 'no_such_set' cannot be scored"),
        ({"source_dataset": "composite"}, "source_dataset 'composite' cannot be scored"),
        ({"source_dataset": "complex_arithmetic"}, "KeyError"),
    ],
)
def test_a_task_that_cannot_be_scored_is_verifier_error(metadata: Any, reason: str) -> None:
    verdict = judge("5", SUM | {"metadata": metadata})
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert reason in verdict.detail["reason"]


@with_library
def test_the_librarys_own_answers_have_full_credit_and_others_none() -> None:
    for path in sorted(Path(benchmark_files("reasoning_gym")).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            task = json.loads(line)
            assert judge(f"So: <answer>{task['answer']}</answer>", task).reward == 1.0
            assert judge(f"So: <answer>{task['answer']}x</answer>", task).reward == 0.0


def test_the_library_is_not_imported_before_it_judges() -> None:
    program = (
        "import sys; from gym_spark.verify.base import load_verifier, verifier_digest\n"
        "try: verifier_digest('reasoning_gym', {})\n"
        "except Exception as error: assert type(error).__name__ == 'ConfigError'\n"
        "print('reasoning_gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
