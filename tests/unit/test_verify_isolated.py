"""Child processes: a hang, a crash or a killed parent costs one verdict and leaves no process behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, Verifier
from gym_spark.verify.isolated import PROCESSES, IsolatedPool
from gym_spark.verify.sandbox.base import Limits, Sandbox

HANGS = "9^{9^{9^{9}}}"


def item(answer: str, expected: str = "4") -> Judgeable:
    return Judgeable("t", 0, {"expected_answer": expected}, answer, "complete", None, None)


class Obeys(Verifier):
    """Does what the answer says, and extracts its own process id."""

    name = "obeys"
    isolated = True

    def verify(self, item: Judgeable) -> Verdict:
        order, _, value = (item.output_text or "").partition(" ")
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "sleep":
            time.sleep(float(value))
        if order == "exit":
            os._exit(int(value))
        if order == "allocate":
            bytearray(int(value))
        if order == "write":
            with tempfile.TemporaryFile() as file:
                file.truncate(int(value))
        if order == "spin":
            while True:
                pass
        if order == "tasks":
            return Verdict.scored(float(resource.getrlimit(resource.RLIMIT_NPROC)[0]))
        if order == "print":
            print(value * 100)  # noqa: T201  must not break the protocol
        if order == "spawn":
            child = subprocess.Popen(["sleep", "60"])
            Path(value).write_text(str(child.pid))
            time.sleep(60)
        return Verdict.scored(1.0, extracted_answer=str(os.getpid()))


OBEYS = f"{__name__}:Obeys"


def running(pid: int) -> bool:
    """Tell whether a process lives; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not running(pid)


def children(of: int | None = None) -> set[int]:
    parent = str(of or os.getpid())
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[1] == parent:
            found.add(int(stat.parent.name))
    return found


def judge_p22() -> None:
    before = children()
    with IsolatedPool("math", {}, limit_s=2.0) as pool:
        assert next(pool.judge([item("4")])).reward == 1.0  # start-up is not what is timed here
        begun = time.monotonic()
        verdicts = pool.judge([item(HANGS), item("4")])
        first = next(verdicts)
        assert time.monotonic() - begun < 4.0
        assert (first.state, first.reward) == ("verify_timeout", None)
        second = next(verdicts)
        assert (second.state, second.reward, second.extracted_answer) == ("scored", 1.0, "4")
    assert children() == before


def test_p22_a_hanging_expression_is_verify_timeout_and_the_next_is_judged_from_the_main_thread() -> None:
    judge_p22()


def test_p22_a_hanging_expression_is_verify_timeout_and_the_next_is_judged_from_a_plain_thread() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            judge_p22()
        except BaseException as error:  # noqa: BLE001  handed to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


def test_a_child_that_dies_or_runs_out_of_memory_costs_one_verdict_and_children_are_reused(tmp_path: Path) -> None:
    grandchild = tmp_path / "pid"
    orders = ["go", "print x", "allocate 8000000000", "go", "die", "exit 3", "go", f"spawn {grandchild}", "go"]
    with IsolatedPool(OBEYS, {}, limit_s=1.0) as pool:
        verdicts = list(pool.judge(item(order) for order in orders))
    states = [verdict.state for verdict in verdicts]
    assert states == ["scored"] * 2 + ["verifier_error", "scored"] + ["verifier_error"] * 2 + [
        "scored",
        "verify_timeout",
        "scored",
    ]
    assert "MemoryError" in verdicts[2].detail["reason"]
    assert "code -9" in verdicts[4].detail["reason"]
    assert "code 3" in verdicts[5].detail["reason"]
    pids = [verdict.extracted_answer for verdict in verdicts if verdict.state == "scored"]
    assert pids[0] == pids[1] == pids[2]
    assert len(set(pids)) == 3
    assert gone_within(int(grandchild.read_text()), 2.0)


def test_a_child_is_bounded_in_files_and_processes_beside_those_that_the_user_has() -> None:
    with IsolatedPool(OBEYS, {}) as pool:
        verdicts = list(pool.judge(item(order) for order in ("write 1000", "write 2000000000", "tasks", "go")))
    assert [verdict.state for verdict in verdicts] == ["scored", "verifier_error", "scored", "scored"]
    assert "File too large" in verdicts[1].detail["reason"]
    assert verdicts[2].reward is not None
    assert PROCESSES < verdicts[2].reward < PROCESSES + 10_000
    assert verdicts[0].extracted_answer == verdicts[3].extracted_answer, "the child lives on"


def test_a_child_that_hangs_while_nobody_waits_for_it_ends_by_its_cpu_time() -> None:
    """The pool's clock only ends a child while a verdict is asked for; Spark may not ask for one for long."""
    with IsolatedPool(OBEYS, {}, processes=2, limit_s=1.0) as pool:
        verdicts = pool.judge([item("sleep 0.3"), item("spin"), item("go")])
        first = next(verdicts)
        assert first.extracted_answer is not None
        (spinning,) = children() - {int(first.extracted_answer)}
        assert gone_within(spinning, 10.0)
        second, third = verdicts
    assert (second.state, second.detail) == ("verify_timeout", {"reason": "no verdict within its CPU time"})
    assert third.state == "scored"


class Armed(Verifier):
    """Runs the answer in the sandbox that it was given, in a child process."""

    name = "armed"
    isolated = True
    wants_sandbox = True

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None

    def use_sandbox(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def verify(self, item: Judgeable) -> Verdict:
        assert self._sandbox is not None
        outcome = self._sandbox.run({"main.py": item.output_text or ""}, ["main.py"], limits=Limits())
        return Verdict.scored(float(outcome.succeeded), extracted_answer=outcome.stdout.decode())


def test_an_isolated_verifier_gets_its_sandbox_in_the_child_or_is_refused() -> None:
    armed = f"{__name__}:Armed"
    with IsolatedPool(armed, {}, sandbox="auto") as pool:
        assert [verdict.extracted_answer for verdict in pool.judge([item("print(6 * 7)")])] == ["42\n"]
    with IsolatedPool(armed, {}) as pool, pytest.raises(ConfigError, match="--sandbox auto"):
        next(pool.judge([item("")]))


def test_verdicts_keep_the_items_order_while_two_children_work_and_the_items_are_not_read_far_ahead() -> None:
    taken = 0
    decided = Verdict.unscored("not_scored", "rollout failed: timeout")

    def items() -> object:
        nonlocal taken
        for order in ["sleep 0.6", "go", decided, "go", *["go"] * 200]:
            taken += 1
            yield order if isinstance(order, Verdict) else item(str(order))

    with IsolatedPool(OBEYS, {}, processes=2) as pool:
        verdicts = pool.judge(items())  # type: ignore[arg-type]  # a generator of both kinds
        first = next(verdicts)
        assert taken < 40
        rest = list(verdicts)
    assert rest[1] == decided
    assert len(rest) == 203
    assert first.extracted_answer != rest[0].extracted_answer


def test_a_child_that_cannot_build_its_verifier_is_a_config_error() -> None:
    with IsolatedPool("numeric", {"tolerance": -1}) as pool, pytest.raises(ConfigError, match="tolerance"):
        next(pool.judge([item("4")]))


def test_p22_no_child_outlives_a_parent_that_is_killed_while_the_child_hangs() -> None:
    program = f"""
from gym_spark.verify.base import Judgeable
from gym_spark.verify.isolated import IsolatedPool
def items():
    for answer in ("4", {HANGS!r}):
        yield Judgeable("t", 0, {{"expected_answer": "4"}}, answer, None, None, None)
pool = IsolatedPool("math", {{}}, limit_s=60.0)
verdicts = pool.judge(items())
next(verdicts)
print("hanging", flush=True)
next(verdicts)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "hanging\n"
        (pid,) = children(of=parent.pid)
        time.sleep(0.5)  # well into the hang
        assert running(pid)
        parent.kill()
    assert gone_within(pid, 3.0)
