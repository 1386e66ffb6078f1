"""Answers of 4 MB through every stage, while the memory of Python workers and JVM is watched.

    python -m tests.reliability.large_rollouts --rollouts 300

The fake endpoint's answers are random text, so that no compression hides their size.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import quiz_run, start
from tests.reliability.process_tree import command_of, descendants

#: Different answers: as many as make it pointless to look for repetition within one file.
_ANSWERS: Final = 8


@dataclass
class Peaks:
    """Most memory that any process of a kind has had resident, in MB."""

    worker: int = 0
    jvm: int = 0
    #: Soft limits on the address space of the workers that were seen, in bytes.
    limits: set[str] = field(default_factory=set)

    def look(self, root: int) -> None:
        """Look at all processes below one."""
        for pid in descendants(root):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                limits = Path(f"/proc/{pid}/limits").read_text()
            except OSError:  # it has ended
                continue
            peak = next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
            command = command_of(pid)
            if "pyspark.daemon" in command:
                self.worker = max(self.worker, peak)
                self.limits |= {line.split()[3] for line in limits.splitlines() if line.startswith("Max address")}
            elif "java" in command:
                self.jvm = max(self.jvm, peak)

    @contextmanager
    def watched(self, root: int) -> Iterator[None]:
        """Look at the processes below `root` five times a second."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.2):
                self.look(root)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def answers(size: int) -> list[bytes]:
    """Return bodies of chat answers with so many bytes of text each."""
    letters = (string.ascii_letters + string.digits).encode()
    bodies = []
    for number in range(_ANSWERS):
        text = random.Random(number).choices(letters, k=size)
        message = {"role": "assistant", "content": bytes(text).decode()}
        usage = {"prompt_tokens": 1, "completion_tokens": size // 4, "total_tokens": size // 4 + 1}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "fake", "usage": usage}
        answer |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        bodies.append(json.dumps(answer).encode())
    return bodies


def large_run(folder: Path, *, rollouts: int, size: int, spark: dict[str, str]) -> dict[str, Any]:
    """Run, verify, profile, show the status of and export a run with large answers; each a process of its own.

    Args:
        folder: An empty folder.
        rollouts: How many.
        size: Bytes of text in an answer.
        spark: Settings of Spark in place of the defaults.

    Returns:
        By command: `seconds`, `worker_mb` and `jvm_mb` (peaks). And `limits` of the workers' address space, the run's
        `coverage`, and the `lines` that were exported.
    """
    (folder / "spark.yaml").write_text(json.dumps({"spark": spark}))
    bodies, limits = answers(size), set[str]()
    seen: dict[str, Any] = {}
    with FakeOpenAI(lambda body, n: FakeReply(raw=bodies[n % _ANSWERS])) as server:
        run = quiz_run(folder, server.url, rollouts, "--json", "--config", str(folder / "spark.yaml"))
        lake = ["--lake", str(folder / "lake"), "--run-id", "r1"]
        commands = {"run": run[4:]} | {name: [name, *lake] for name in ("verify", "profile", "status")}
        commands["export"] = ["export", *lake, "--output", str(folder / "rows.jsonl")]
        for name, words in commands.items():
            began, peaks = time.monotonic(), Peaks()
            with (folder / f"{name}.out").open("wb") as out:
                process = start(
                    [sys.executable, "-m", "gym_spark.cli", "eval", *words], stdout=out, stderr=subprocess.STDOUT
                )
                with peaks.watched(process.pid):
                    code = process.wait(1200)
            if code:
                raise RuntimeError(f"{name} ended with {code}: {(folder / f'{name}.out').read_text()[-3000:]}")
            took = round(time.monotonic() - began, 1)
            seen[name] = {"seconds": took, "worker_mb": peaks.worker, "jvm_mb": peaks.jvm}
            limits |= peaks.limits
    told = (folder / "run.out").read_text()
    with (folder / "rows.jsonl").open("rb") as lines:
        exported = sum(1 for _ in lines)
    coverage = json.loads(told[told.index("{\n") :])["coverage"]
    return seen | {"limits": sorted(limits), "coverage": coverage, "lines": exported}


def main() -> None:
    """Run once and print what was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=300)
    options.add_argument("--megabytes", type=float, default=4.0)
    options.add_argument("--spark", type=json.loads, default={}, help="JSON object of Spark settings")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="gym-spark-large-") as folder:
        size = int(given.megabytes * (1 << 20))
        seen = large_run(Path(folder), rollouts=given.rollouts, size=size, spark=given.spark)
    print(json.dumps(seen))  # noqa: T201


if __name__ == "__main__":
    main()
