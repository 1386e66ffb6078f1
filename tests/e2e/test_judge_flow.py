"""A model judges a run from end to end: outages of the judge cost no answer, and a real model's verdicts are told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import REVERIFICATIONS, VERIFICATIONS
from tests.e2e.conftest import Run
from tests.e2e.test_flow import QUIZ, arguments, quiz
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text

ONE_TRY = ["--set", "judge.retries={server_error: {attempts: 1}}"]


def test_a_judges_outage_leaves_judge_failed_and_only_those_are_asked_again(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Six answers, the judge down for two: four scored. Later two judge calls and no policy call complete them."""

    def flaky(body: dict[str, Any], n: int) -> FakeReply | str:
        text = last_user_text(body)
        down = any(f"Q: {number} + 0" in text for number in (1, 4))
        return FakeReply(status=503) if down else "[[A=B]]"

    def by_state() -> Counter[str]:
        newest: dict[str, Any] = {}
        for row in sorted(lake.read(VERIFICATIONS).collect(), key=lambda row: row["verified_at"]):
            newest[row["task_id"]] = row["state"]
        return Counter(newest.values())

    judge = ["--verifier", "llm_judge", "--judge-model", "fake", *ONE_TRY]
    with FakeOpenAI(lambda body, n: "a number") as policy:
        words = arguments(policy, "r1", quiz(tmp_path / "quiz.jsonl", 6), "--no-preflight", *judge)
        unnamed = gym(*words)
        assert (unnamed.code, "--judge-url" in unnamed.err, policy.requests) == (2, True, 0)
        with FakeOpenAI(flaky) as first:
            told = gym(*words, "--judge-url", first.url, "--json")
            assert told.code == 0, told.err
            assert first.requests == 6
        assert by_state() == {"scored": 4, "judge_failed": 2}
        metrics = {(m["name"], m["denominator"]): m["value"] for m in json.loads(told.out)["metrics"]}
        assert metrics["mean_reward", "planned"] == 4 / 6
        assert metrics["mean_reward", "scored"] == 1.0
        sent = policy.requests
        with FakeOpenAI(lambda body, n: "[[A!=B]]") as recovered:
            again = ["eval", "reverify", "--run-id", "r1", "--judge-failed-only", "--judge-url", recovered.url]
            done = gym(*again, "--no-preflight", "--json")
            assert done.code == 0, done.err
            assert (json.loads(done.out)["judged"], recovered.requests) == (2, 2)
        assert policy.requests == sent
    assert by_state() == {"scored": 6}
    assert lake.read(REVERIFICATIONS).count() == 1
    shown = json.loads(gym("eval", "profile", "--run-id", "r1", "--json").out)
    means = {m["denominator"]: m["value"] for m in shown["metrics"] if m["name"] == "mean_reward"}
    assert means == {"planned": 4 / 6, "scored": 4 / 6}


def test_the_small_model_plays_and_judges_a_run_and_judges_it_again(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """One server for both, and no address to give; whatever it says, a reward without a label would be a guess."""
    source = quiz(tmp_path / "quiz.jsonl", 4)
    bounds = ["--set", "verifier.params.sampling.max_output_tokens=24", "--max-output-tokens", 16]
    words = ["--benchmark", "quiz", "--search-dir", QUIZ, "--source", source, "--run-id", "r1", *bounds]
    told = gym("eval", "run", *words, "--verifier", "llm_judge", "--set", "judge={}", "--json")
    assert told.code in (0, 1), told.err
    assert told.err.count("Serving") == 1
    again = gym("eval", "reverify", "--run-id", "r1", "--verification-id", "second", "--json")
    rows = lake.read(VERIFICATIONS).collect()
    assert len(rows) == 8
    scored = [row for row in rows if row["verification_id"] == "second" and row["state"] == "scored"]
    assert again.code == (0 if scored else 1), again.err
    for row in rows:
        detail = json.loads(row["detail"])
        if row["state"] == "scored":
            assert detail.get("reason") == "the answer is empty" or "[[A" in detail["judge_replies"][0]
        else:
            assert (row["state"], row["reward"]) == ("judge_failed", None)
            assert detail["kind"] in ("unparseable", "empty", "truncated")
