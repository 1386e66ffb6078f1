"""A run that is killed for real, twice, and resumed; `tests/reliability/kill_storm.py` does it at random.

The kill of an executor is in `test_architectures.py`, where a cluster runs anyway.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.fake_openai import FakeOpenAI, FakeReply, Json
from tests.processes import quiz_run, start
from tests.reliability.process_tree import busy_workers, is_gone, wait_for_end_of
from tests.reliability.stored import Stored, read_stored, verdict_counts
from tests.spark.verifiers import POISON

#: Rollouts answered before the kills, and requests in flight from then on, all of one worker.
FIRST, IN_FLIGHT = 4, 2


def stored_of(folder: Path) -> Stored:
    return read_stored(folder / "lake", "r1")


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str], limit_s: float = 250.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while not is_gone(pid):
        time.sleep(0.01)


def test_p29_killed_worker_and_driver_and_a_verifier_that_raises_cost_what_was_in_flight(tmp_path: Path) -> None:
    """Ten rows: four finish, a Python worker is killed; after the first commit the driver, with two in flight."""
    killed = False

    def answer(body: Json, n: int) -> FakeReply:
        usage = {"prompt_tokens": 1, "completion_tokens": n, "total_tokens": n + 1}  # tells one play from another
        return FakeReply("1", delay_s=0 if killed or n < FIRST else 200, usage=usage)

    with FakeOpenAI(answer) as server:
        more = ("--verifier", "tests.spark.verifiers:Fragile", "--concurrency", str(IN_FLIGHT), "--resume", "--json")
        words = quiz_run(tmp_path, server.url, 10, *more)
        rows = [{"question": f"{n}", "answer": "1", "id": POISON if n == 7 else f"t{n}"} for n in range(10)]
        (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        process = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: server.requests == FIRST + IN_FLIGHT and len(stored_of(tmp_path).keys) == FIRST, process)
            kill(busy_workers(process.pid, server.port)[0])
            wait_until(lambda: server.requests == FIRST + 2 * IN_FLIGHT, process)  # Spark has begun its task again
            wait_until(lambda: len(stored_of(tmp_path).committed) == FIRST, process)
            assert server.requests == FIRST + 2 * IN_FLIGHT
        finally:
            kill(process.pid)
            process.communicate()
        wait_for_end_of(process.pid)
        before = stored_of(tmp_path)

        killed = True
        resumed = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = resumed.communicate(timeout=250)
        assert resumed.returncode == 0, err
        assert server.requests == 10 + 2 * IN_FLIGHT
    after = stored_of(tmp_path)
    assert after.lost_since(before) == []
    assert after.twice == []
    assert {key[0] for key in after.committed} == {row["id"] for row in rows}
    assert verdict_counts(tmp_path / "lake") == dict.fromkeys(after.committed, 1)
    coverage = json.loads(out)["coverage"]
    assert (coverage["planned"], coverage["completed"], coverage["scored"]) == (10, 10, 9)
    assert coverage["verdicts"]["verifier_error"] == 1
