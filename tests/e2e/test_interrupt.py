"""Ctrl-C at any moment: one line, exit code 130, nothing lost, no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import REPOSITORY, quiz_run, start
from tests.reliability.process_tree import wait_for_end_of


@pytest.mark.parametrize("moment", ["start", "collecting"])
def test_ctrl_c_is_one_line_and_leaves_no_process(moment: str, tmp_path: Path) -> None:
    """While Spark starts, and while rollouts are in flight; what was finished then is completed by --resume.

    The run would take minutes, so that it ends because it was interrupted.
    """
    tasks, began = 400, 0
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.5 if began < 6 else 0.0)) as server:
        words = quiz_run(tmp_path, server.url, tasks, "--concurrency", "2")
        process = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        told = ""
        while "Starting Spark" not in told:
            told += process.stderr.readline()
        deadline = time.monotonic() + 100
        while moment == "collecting" and server.requests < 6 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGINT)
        sent = server.requests
        out, err = process.communicate(timeout=100)
        began = server.requests
        told += err
        assert process.returncode == 130, told
        assert "Traceback" not in told
        assert "Interrupted" in told.strip().splitlines()[-1]
        assert server.requests <= sent + 8, "requests went on after Ctrl-C"
        assert out == ""
        wait_for_end_of(process.pid)
        if moment == "collecting":
            assert "--resume goes on" in told.strip().splitlines()[-1]
            done = subprocess.run(
                [*words, "--resume", "--json"], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["coverage"]["scored"] == tasks
            # What was in flight was finished and kept.
            assert server.requests == tasks
