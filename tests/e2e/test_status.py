"""`eval status` tells a slow run from a stuck one, from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Run
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text
from tests.processes import quiz_run, start
from tests.reliability.process_tree import wait_for_end_of


def test_p56_a_stalled_and_a_retried_rollout_are_named_with_their_age(gym: Run, tmp_path: Path) -> None:
    """Ten rollouts, one hangs and one meets 429 again and again: eight done, one stalled, one retrying."""

    def answer(body: dict[str, Any], n: int) -> FakeReply | str:
        text = last_user_text(body)
        if text == "Q: 3":
            return FakeReply("1", delay_s=120)
        return FakeReply(status=429, headers={"Retry-After": "3"}) if text == "Q: 7" else "1"

    with FakeOpenAI(answer) as server:
        words = quiz_run(tmp_path, server.url, 10)
        process = start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while server.requests < 10:
                time.sleep(0.2)
            time.sleep(8.0)
            standing = json.loads(gym("eval", "status", "--run-id", "r1", "--json").out)
            told = gym("eval", "status", "--run-id", "r1").out
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        wait_for_end_of(process.pid)
        dead = json.loads(gym("eval", "status", "--run-id", "r1", "--json").out)
    assert standing["coverage"]["completed"] == 8
    (job,) = standing["jobs"]
    assert (job["is_alive"], job["done"], job["in_flight"], job["total"]) == (True, 8, 2, 10)
    assert len(job["stalled"]) == 1
    assert job["stalled"][0]["age_s"] > 5
    assert len(job["retried"]) == 1
    assert job["retried"][0]["last_failure"] == "rate_limited"
    assert "1 stalled" in told
    said = gym("eval", "status", "--run-id", "r1").out
    listed = gym("eval", "status").out
    assert "Q: 3" not in told, "no prompt is told"
    assert "stalled" not in said, "a dead job has no requests"
    assert "--resume goes on" in said
    assert listed.startswith("r1: quiz on fake, 10 rollouts planned, running at ")
    assert dead["jobs"][0]["is_alive"] is False
    assert dead["coverage"]["completed"] == 8, "what is staged counts, though its driver is gone"
