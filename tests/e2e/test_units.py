"""Collection where workers reach no folder that the driver sees: commit by commit, and nothing is paid for twice."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.e2e.conftest import Run
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text
from tests.processes import quiz_run


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A staging folder by the number of an open file of this process, which is none in any other process."""
    (tmp_path / "staging").mkdir()
    descriptor = os.open(tmp_path / "staging", os.O_RDONLY)
    monkeypatch.setenv("GYM_SPARK_STAGING", f"/proc/self/fd/{descriptor}")
    yield
    os.close(descriptor)


@pytest.mark.usefixtures("hidden")
def test_without_shared_storage_each_rollout_is_done_once_and_a_resume_does_what_failed(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Ninety rollouts in several units; a failed one is not done again in the same job, and is in the next."""
    broken = True

    def answer(body: dict[str, Any], n: int) -> FakeReply | str:
        return FakeReply(raw=b"{") if broken and last_user_text(body) == "Q: 7" else "1"

    once = json.dumps({"endpoint": {"retries": {"invalid_reply": {"attempts": 1}}}})
    (tmp_path / "once.yaml").write_text(once)
    with FakeOpenAI(answer) as server:
        words = quiz_run(tmp_path, server.url, 90, "--concurrency", "4", "--config", str(tmp_path / "once.yaml"))[3:]
        told = gym(*words, "--json")
        assert told.code == 0, told.err
        assert "Workers cannot write to" in told.err
        assert server.requests == 90
        shown = json.loads(told.out)
        assert (shown["coverage"]["completed"], shown["coverage"]["failures"]) == (89, {"invalid_reply": 1})
        broken = False
        # Nothing is left in the folder, so the next process need not have the variable.
        assert not (tmp_path / "lake" / "_staging" / "r1").exists()
        again = gym(*words, "--json", "--resume")
        assert again.code == 0, again.err
        assert server.requests == 91
    rows = lake.read(ROLLOUTS).select("task_id", "attempt", "state").collect()
    assert Counter((row.attempt, row.state) for row in rows) == {
        (1, "completed"): 89,
        (1, "failed"): 1,
        (2, "completed"): 1,
    }
    assert len({row.task_id for row in rows}) == 90
    assert json.loads(again.out)["coverage"]["scored"] == 90


@pytest.mark.long
@pytest.mark.usefixtures("hidden")
def test_without_shared_storage_a_budget_and_a_refused_key_end_the_run(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Workers tell the driver nothing but their rows; it concludes why they ended, and asks for no more."""
    priced = {"prices": {"input": 1, "output": 4}, "budget": {"tokens": 400}}
    (tmp_path / "priced.yaml").write_text(json.dumps({"endpoint": priced}))
    with FakeOpenAI(lambda body, n: FakeReply("1", usage={"prompt_tokens": 10, "completion_tokens": 10})) as server:
        words = quiz_run(tmp_path, server.url, 60, "--concurrency", "4")[3:]
        told = gym(*words, "--json", "--config", tmp_path / "priced.yaml")
        assert told.code == 1, told.err
        assert "would pass the budget" in json.loads(told.out)["stopped"]
        assert server.requests == lake.read(ROLLOUTS).count() <= 20
        server.api_key = "another"
        refused = gym(*words, "--json", "--resume")
        assert refused.code == 1, refused.err
        assert "unauthorized" in json.loads(refused.out)["stopped"]
        assert server.requests < 60
