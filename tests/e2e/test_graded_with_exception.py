"""P18: a rollout that was cut short and scored all the same counts as the run says, and is told of in any case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, VERIFICATIONS
from tests.e2e.conftest import Run
from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import quiz_run

HARNESS = "tests.e2e.harnesses:RunsOutOfTime"


@pytest.mark.parametrize(
    ("policy", "mean", "strict", "says"),
    [
        ("count", 1.0, 1.0, "counted with their scores"),
        ("zero", 0.0, 0.0, "counted as zero"),
        ("exclude", None, None, "not counted"),
    ],
)
def test_p18_a_timeout_that_was_graded_counts_as_the_run_says(
    gym: Run, lake: Lake, tmp_path: Path, policy: str, mean: float | None, strict: float | None, says: str
) -> None:
    """The score is 1.0 in each; what is stored stays as it was, and the summary counts it under all three."""
    with FakeOpenAI(lambda body, n: FakeReply("1")) as server:
        words = quiz_run(tmp_path, server.url, 1, "--harness", HARNESS, "--set", f"graded_with_exception={policy}")
        told = gym(*words[3:])
    assert told.code == 0, told.err
    assert f"1 graded with exception (1 agent_timeout), {says}" in told.out + told.err
    shown = json.loads(gym("eval", "profile", "--run-id", "r1", "--json").out)
    values = {metric["denominator"]: metric["value"] for metric in shown["metrics"] if metric["name"] == "mean_reward"}
    assert (values["scored"], values["planned"]) == (mean, strict)
    covered = shown["coverage"]
    assert covered["graded_with_exception"] == {"agent_timeout": 1}
    assert (covered["completed"], covered["scored"]) == (1, 0 if policy == "exclude" else 1)
    stored = lake.read(ROLLOUTS).select("state", "exception_kind").collect()
    assert [tuple(row) for row in stored] == [("completed", "agent_timeout")]
    verdict = lake.read(VERIFICATIONS).select("state", "reward").collect()
    assert [tuple(row) for row in verdict] == [("scored", 1.0)]
    standing = gym("eval", "status", "--run-id", "r1")
    assert f"1 graded with exception (1 agent_timeout), {says}" in standing.out


def test_an_unknown_policy_is_refused(gym: Run, tmp_path: Path) -> None:
    words = quiz_run(tmp_path, "http://localhost:9", 1, "--set", "graded_with_exception=skip")
    told = gym(*words[3:])
    assert told.code == 2
    assert "graded_with_exception" in told.err
    assert not (tmp_path / "lake").exists()
