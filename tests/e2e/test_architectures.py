"""The same flow under Spark Connect and on a cluster of executor processes: no RDD, no shared Python process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fake_openai import FakeOpenAI, FakeReply, Json, last_user_text
from tests.processes import start
from tests.reliability.process_tree import busy_executors
from tests.reliability.stored import read_stored

PLANNED = 6 * 2


def flow_process(kind: str, lake: Path, url: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.e2e.whole_flow", kind, str(lake), url]
    return start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> Any:
    """Wait for the end of the flow; return what it tells, once its numbers are checked."""
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    told = json.loads(out.strip().splitlines()[-1])
    assert told["profile"]["coverage"]["scored"] == PLANNED
    files, rows, files_left, rows_left = told["files"]
    assert files > files_left == 1, "compaction works on every kind of session"
    assert rows == rows_left
    metrics = {(metric["name"], metric["denominator"]): metric for metric in told["profile"]["metrics"]}
    assert metrics["pass@1", "planned"]["value"] == pytest.approx(1 / 2)
    return told


def half_right(body: Json, n: int) -> str:
    """Answer the tasks of odd numbers rightly."""
    question = last_user_text(body).removeprefix("Q: ")
    return question if question in {"1", "3", "5"} else "no"


def test_the_whole_flow_runs_under_connect(tmp_path: Path) -> None:
    """Prepare, collect, verify and profile, called from a running event loop: each rollout once, right numbers."""
    with FakeOpenAI(half_right) as server:
        told = told_by(flow_process("connect", tmp_path / "lake", server.url))
        assert server.requests == PLANNED + 1
        assert server.peak <= 4
    assert told["session"] == "pyspark.sql.connect.session.SparkSession"


def test_the_whole_flow_runs_on_a_cluster_that_loses_an_executor(tmp_path: Path) -> None:
    """SIGKILL to the executor that calls the model: what it had finished is not asked for again."""
    killed = False

    def answer(body: Json, n: int) -> FakeReply:
        return FakeReply(half_right(body, n), delay_s=0 if killed or n <= 5 else 200)

    with FakeOpenAI(answer) as server:
        process = flow_process("local-cluster[2,1,1024]", tmp_path / "lake", server.url)
        try:
            while len(read_stored(tmp_path / "lake", "r1").keys) < 5 or server.in_flight < 4:
                assert process.poll() is None, process.communicate()
                time.sleep(0.2)
            lost = server.in_flight
            os.kill(busy_executors(process.pid, server.port)[0], signal.SIGKILL)
            killed = True
            told = told_by(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert server.requests == PLANNED + 1 + lost
        assert server.peak <= 4
    assert told["session"] == "pyspark.sql.session.SparkSession"
    assert read_stored(tmp_path / "lake", "r1").twice == []
