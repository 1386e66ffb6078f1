"""Kill a run again and again while it works, resume it each time, and count: rows lost, rows twice, requests too many.

    python -m tests.reliability.kill_storm
    python -m tests.reliability.kill_storm --master "local[4,4]" --kinds driver worker --kills 6 --rollouts 2000

SIGKILL strikes one process of the run at a random moment: the driver, a Python worker that is calling the model, or the
executor of one. Spark mends the last two by itself within the same run; where it gives up, and after a kill of the
driver, the run is started anew with ``--resume``. Only kills that struck are counted. After each one the lake is read
without Spark: what was stored must still be there, as it was. The endpoint is a fake on loopback that counts; it
answers slowly until the last kill, so that the run is not over before.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fake_openai import FakeOpenAI, FakeReply, Json
from tests.processes import quiz_run, start
from tests.reliability.process_tree import busy_executors, busy_workers, is_gone, wait_for_end_of
from tests.reliability.stored import Stored, read_stored, verdict_counts

#: What a kill may waste: requests in flight, and those answered within the last second before it (DESIGN.md §3).
LAST_S: Final = 1.0
#: A start of Spark, or the repair of a cluster, on a machine with other work.
PATIENCE_S: Final = 400.0
REPEATS: Final = 4
#: kind -> the processes of that kind that work for a run, by the id of its first process and the endpoint's port
VICTIMS: Final[dict[str, Callable[[int, int], list[int]]]] = {
    "driver": lambda root, port: [root],
    "worker": busy_workers,
    "executor": busy_executors,
}


@dataclass
class Storm:
    """One run that is killed, and what was seen of it."""

    folder: Path
    server: FakeOpenAI
    rollouts: int
    concurrency: int
    master: str
    say: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    seen: Stored = field(default_factory=Stored)
    #: What is wrong.
    faults: list[str] = field(default_factory=list)
    #: Requests that the kills may have wasted.
    allowance: int = 0

    @property
    def answered(self) -> int:
        """Requests that are no longer in flight."""
        return self.server.requests - self.server.in_flight

    def strike(self, kind: str, wait_s: float) -> None:
        """Let the run ask for a while, kill one of its processes, and see what it has left."""
        while (victim := self._victim(kind, wait_s)) is None:
            self._told_end()
        root = self.running().pid
        answered = self.answered
        time.sleep(LAST_S)
        os.kill(victim, signal.SIGKILL)
        requests, before = self.server.requests, len(self.seen.keys)
        self.allowance += requests - answered
        while not is_gone(victim):
            time.sleep(0.01)
        if kind == "driver":
            self.end()
            wait_for_end_of(root)
        self.look(kind)
        if kind == "driver" and self.server.requests > len(self.seen.keys) + self.allowance:
            self.faults.append(f"{self.server.requests} requests for {len(self.seen.keys)} durable rollouts")
        self.say(
            f"{kind} killed at request {requests}, which may waste {requests - answered}; durable rollouts "
            f"{before} -> {len(self.seen.keys)}, of which {len(self.seen.committed)} committed"
        )

    def _told_end(self) -> None:
        """Wait for the end of a run that nobody killed, and say how it came; it must not be complete yet."""
        code = self.end()
        self.say(f"the run gave up, exit {code}: {self.last_words()}")
        if not code:
            raise RuntimeError("the run was complete before the last kill; give it more --rollouts")

    def _victim(self, kind: str, wait_s: float) -> int | None:
        """Return a process that works for the run, once that has asked for a while; None where the run has ended."""
        process = self.running()
        asked, deadline = self.server.requests, time.monotonic() + PATIENCE_S
        while self.server.requests == asked:
            if process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError(f"no request in {PATIENCE_S:.0f} s: {self.last_words()}")
            time.sleep(0.05)
        time.sleep(wait_s)
        while process.poll() is None and time.monotonic() < deadline:
            found = VICTIMS[kind](process.pid, self.server.port)
            if found and self.server.in_flight:
                return random.choice(found)
            time.sleep(0.05)
        return None

    def running(self) -> subprocess.Popen[bytes]:
        """Return the run's process; a run that has ended is started again."""
        if self.process is None:
            more = ["--resume", "--json", "--concurrency", str(self.concurrency), "--num-repeats", str(REPEATS)]
            more += ["--config", str(self.folder / "spark.yaml")]
            words = quiz_run(self.folder, self.server.url, self.rollouts // REPEATS, *more)
            out, err = self.folder / "out.json", self.folder / "err.log"
            self.process = start(words, stdout=out.open("wb"), stderr=err.open("ab"))
            self.starts += 1
        return self.process

    def end(self, limit_s: float = PATIENCE_S) -> int:
        """Wait for the end of the run's process, and return its exit code."""
        assert self.process is not None
        code = self.process.wait(limit_s)
        self.process = None
        return code

    def last_words(self) -> str:
        """Return the last line that the run wrote."""
        lines = (self.folder / "err.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def look(self, after: str) -> None:
        """Compare what is stored with what was stored before."""
        now = read_stored(self.folder / "lake", "r1")
        self.faults += [f"after {after}: {lost}" for lost in now.lost_since(self.seen)]
        self.faults += [f"after {after}: {key} is stored twice" for key in now.twice]
        self.seen = now

    def finish(self) -> Json:
        """Run undisturbed to the end, and compare what is stored with what was asked."""
        self.running()
        code = self.end(600)
        if code:  # the last kill may have been one too many for Spark
            self.say(f"the run gave up, exit {code}: {self.last_words()}")
            self.running()
            code = self.end(600)
        self.look("the end")
        shown: Any = json.loads((self.folder / "out.json").read_text() or "{}")
        verdicts = verdict_counts(self.folder / "lake")
        keys = {key[:2] for key in self.seen.committed}
        metrics = {metric["name"]: metric["value"] for metric in shown.get("metrics", [])}
        plays = [content[2] for content in self.seen.committed.values()]
        checks = {
            f"exit code {code}": code == 0,
            f"{len(keys)} of {self.rollouts} rollouts are stored": len(keys) == self.rollouts,
            f"{len(self.seen.committed)} attempts are stored": len(self.seen.committed) == self.rollouts,
            "two rollouts have one answer": len(set(plays)) == len(plays),
            f"{sum(verdicts.values())} verdicts": verdicts == dict.fromkeys(self.seen.committed, 1),
            f"score {metrics.get('mean_reward')}": metrics.get("mean_reward") == 1.0,
            f"{self.server.requests} requests": self.server.requests <= self.rollouts + self.allowance,
        }
        self.faults += [text for text, holds in checks.items() if not holds]
        return {
            "planned": self.rollouts,
            "stored": len(keys),
            "scored": shown.get("coverage", {}).get("scored"),
            "starts": self.starts,
            "requests": self.server.requests,
            "wasted": self.server.requests - self.rollouts,
            "wasted_at_most": self.allowance,
            "faults": self.faults[:20],
        }

    def stop(self) -> None:
        """End what is left of the run."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            wait_for_end_of(self.process.pid)


def storm(
    *, kills: int, rollouts: int, concurrency: int, master: str, kinds: list[str], seed: int, say: Callable[[str], None]
) -> Json:
    """Kill and resume until so many kills have struck; returns the outcome, whose `faults` are empty if all is well."""
    random.seed(seed)
    calm = False

    def answer(body: Json, n: int) -> FakeReply:
        usage = {"prompt_tokens": 1, "completion_tokens": n, "total_tokens": n + 1}  # tells one play from another
        return FakeReply("1", delay_s=0.05 if calm else random.uniform(0.2, 1.0), usage=usage)

    settings = {"spark.master": master, "spark.driver.memory": "1g"}
    if master.startswith("local-cluster"):
        settings["spark.executor.memory"] = "1g"
    with tempfile.TemporaryDirectory(prefix="gym-spark-storm-") as folder, FakeOpenAI(answer) as server:
        Path(folder, "spark.yaml").write_text(json.dumps({"spark": settings}))
        run = Storm(Path(folder), server, rollouts, concurrency, master, say)
        order = [kinds[number % len(kinds)] for number in range(kills)]
        random.shuffle(order)
        began = time.monotonic()
        try:
            for number, kind in enumerate(order, 1):
                say(f"{number}/{kills}, {time.monotonic() - began:.0f} s")
                run.strike(kind, random.uniform(0.2, 4.0))
            calm = True
            outcome = run.finish()
        finally:
            run.stop()
    return {"seed": seed, "kills": {kind: order.count(kind) for kind in kinds}} | outcome


def main() -> None:
    """Run one storm and print what is seen as it is seen; exit code 1 if something was lost, doubled or overpaid."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--rollouts", type=int, default=8000)
    options.add_argument("--concurrency", type=int, default=16)
    options.add_argument("--master", default="local-cluster[2,1,1024]")
    options.add_argument("--kinds", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    given = options.parse_args()
    outcome = storm(**vars(given), say=lambda line: print(line, flush=True))  # noqa: T201
    print(json.dumps(outcome))  # noqa: T201
    sys.exit(1 if outcome["faults"] else 0)


if __name__ == "__main__":
    main()
