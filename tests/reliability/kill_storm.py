"""Kill a run again and again while it works, resume it each time, and count: rows lost, rows twice, requests too many.

    python -m tests.reliability.kill_storm --kills 20 --rollouts 4000
    python -m tests.reliability.kill_storm --kills 20 --rollouts 4000 --master "local-cluster[2,1,1024]"

Each round starts ``gym-spark eval run --resume`` as a process of its own, waits until the endpoint has been asked, and
sends SIGKILL to one process of it: the driver, a Python worker, or an executor, in turn. The endpoint is a fake on
loopback that counts. At the end one round runs undisturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import REPOSITORY, quiz_run, start

#: What a kill may waste: requests in flight, and those answered within the last second before it (DESIGN.md §3).
GRACE_S = 1.5


@dataclass
class Storm:
    """One run that is killed, and what was seen."""

    folder: Path
    server: FakeOpenAI
    rollouts: int
    concurrency: int
    master: str | None
    log: list[str] = field(default_factory=list)
    #: Requests that the kills may have wasted.
    allowance: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start or resume the run."""
        more = ["--resume", "--json", "--concurrency", str(self.concurrency), "--num-repeats", "4"]
        more += ["--config", str(self.folder / "spark.yaml")]
        words = quiz_run(self.folder, self.server.url, self.rollouts // 4, *more)
        return start(words, stdout=(self.folder / "out.json").open("wb"), stderr=(self.folder / "err.log").open("ab"))

    def prepare(self) -> None:
        """Write the Spark settings."""
        settings = {"spark.master": self.master} if self.master else {}
        if self.master and self.master.startswith("local-cluster"):
            settings |= {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
        (self.folder / "spark.yaml").write_text(json.dumps({"spark": settings}))

    def kill_one(self, what: str, wait_s: float) -> None:
        """Let the run ask for a while, then kill one of its processes; the run's end is awaited."""
        process = self.start()
        seen = self.server.requests
        while process.poll() is None and self.server.requests == seen:
            time.sleep(0.05)
        time.sleep(wait_s)
        victims = processes_of(process.pid, what)
        if process.poll() is not None or not victims:
            self.log.append(f"{what}: the run ended before the kill (exit {process.wait()})")
            return
        before = self.server.requests
        time.sleep(GRACE_S)
        recent = self.server.requests - before
        os.kill(random.choice(victims), signal.SIGKILL)
        self.allowance += self.concurrency + recent
        code = process.wait(timeout=280)
        wait_for_end_of(process.pid)
        self.log.append(f"{what}: killed after {self.server.requests} requests, exit {code}")

    def finish(self) -> dict[str, object]:
        """Run undisturbed to the end, and compare what is stored with what was asked."""
        process = self.start()
        code = process.wait(timeout=600)
        shown = json.loads((self.folder / "out.json").read_text()) if code == 0 else {}
        rows = export(self.folder)
        keys = Counter((row["task_id"], row["rollout_index"]) for row in rows if row["state"] == "completed")
        return {
            "exit": code,
            "planned": self.rollouts,
            "stored": len(keys),
            "twice": sum(count > 1 for count in keys.values()),
            "scored": shown.get("coverage", {}).get("scored"),
            "requests": self.server.requests,
            "allowed": self.rollouts + self.allowance,
        }


def export(folder: Path) -> list[dict[str, object]]:
    """Return the run's stored attempts."""
    words = [sys.executable, "-m", "gym_spark.cli", "eval", "export", "--run-id", "r1"]
    words += ["--lake", str(folder / "lake"), "--output", str(folder / "rows.jsonl")]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def processes_of(root: int, what: str) -> list[int]:
    """Return the ids of a run's processes of one kind: driver, worker (Python) or executor (JVM)."""
    below = descendants(root)
    if what == "driver":
        return [root]
    mark = "pyspark.daemon" if what == "worker" else "CoarseGrainedExecutorBackend"
    found = [pid for pid in below if mark in command_of(pid)]
    if what == "worker":  # the daemon's children are the workers
        found = [pid for pid in found if any(parent in found for parent in [parent_of(pid)])]
    return found


def descendants(root: int) -> list[int]:
    """Return all processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def parent_of(pid: int) -> int:
    """Return a process's parent, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(pid: int) -> str:
    """Return a process's command line, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_for_end_of(session: int) -> None:
    """Wait until no process of the session is left: the JVM ends when it sees that its driver is gone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and session_of(entry) == session]
        if not left:
            return
        time.sleep(0.2)
    raise TimeoutError(f"processes of session {session} are left: {[command_of(int(entry.name)) for entry in left]}")


def session_of(entry: Path) -> int:
    """Return a process's session, 0 if it is gone or a zombie."""
    try:
        fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[3])


def storm(*, kills: int, rollouts: int, concurrency: int, master: str | None, kinds: list[str], seed: int) -> Storm:
    """Kill and resume; returns what was seen, the last line of its log being the outcome as JSON."""
    random.seed(seed)
    with (
        tempfile.TemporaryDirectory(prefix="gym-spark-storm-") as folder,
        FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.05 + 0.1 * random.random())) as server,
    ):
        run = Storm(Path(folder), server, rollouts, concurrency, master)
        run.prepare()
        for number in range(kills):
            run.kill_one(kinds[number % len(kinds)], random.uniform(0.2, 3.0))
        run.log.append(json.dumps(run.finish()))
        return run


def main() -> None:
    """Run one storm and print its log."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--rollouts", type=int, default=4000)
    options.add_argument("--concurrency", type=int, default=16)
    options.add_argument("--master")
    options.add_argument("--kinds", nargs="+", default=["driver", "worker"])
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    for line in storm(**vars(given)).log:
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
