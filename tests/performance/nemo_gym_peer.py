"""NeMo Gym's own `gym eval run` beside collection, on the same questions against the same stub.

    python3.11 -m venv PEER
    PEER/bin/pip install --no-deps --ignore-requires-python nemo-gym==0.7.0
    PEER/bin/pip install REQUIREMENTS...   # those that nemo-gym's metadata names
    python -m tests.performance.nemo_gym_peer --peer PEER

The peer runs the `mcqa` environment with its `simple_agent` and `vllm_model` servers, all from the one virtual
environment. Its servers are started first (`gym env start`) and then used (`gym eval run --no-serve`), without
aggregation and health check. Its clock runs from the first request to the last answer, so that the start of the command
and the writing of its files are not counted against it; ours runs over all of `flow.collect`. The peer's figures
include its verification, a comparison of letters, which ours do not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.performance.accounting import cpu_s
from tests.performance.bare import question
from tests.performance.lake_runs import StubRuns, warm_lake
from tests.performance.report import Measured, table, tell
from tests.performance.stub import FAULTS, Endpoint, StubSpec, stub

_SERVERS: Final = (
    "resources_servers/mcqa",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
    "environment_servers/legacy_agent",
)
_READY: Final = f"All {len(_SERVERS)} / {len(_SERVERS)} servers ready"
_START_LIMIT_S: Final = 300
_RUN_LIMIT_S: Final = 900
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class Peer:
    """NeMo Gym at work in a folder of its own.

    Attributes:
        environment: Its virtual environment.
        folder: Where it leaves its files.
        endpoint: The stub.
    """

    environment: Path
    folder: Path
    endpoint: Endpoint

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Keep its servers running for the while.

        Raises:
            RuntimeError: They do not start; their log is in the message.
        """
        for server in _SERVERS:  # else each one would get an environment of its own, made with uv
            place = self.folder / "environments" / server / ".venv"
            place.parent.mkdir(parents=True)
            place.symlink_to(self.environment)
        words = ["env", "start", "--resources-server", "mcqa", "--model-type", "vllm_model", "--model", "stub"]
        words += ["--model-url", self.endpoint.url, "--model-api-key", "none", "++skip_venv_if_present=true"]
        process = self._start([*words, f"++uv_venv_dir={self.folder / 'environments'}"], "servers.log")
        try:
            deadline = time.monotonic() + _START_LIMIT_S
            while _READY not in (log := (self.folder / "servers.log").read_text()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the servers did not start: {log[-2000:]}")
                time.sleep(1)
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)

    def run(self, *, tasks: int, concurrency: int) -> Measured:
        """Run it once over so many tasks."""
        questions, answers = self.folder / f"{tasks}.jsonl", self.folder / f"answers-{tasks}.jsonl"
        questions.write_text("".join(json.dumps(_row(number)) + "\n" for number in range(tasks)))
        self.endpoint.reset()
        words = ["eval", "run", "--no-serve", "--agent", "mcqa_simple_agent", "--concurrency", str(concurrency)]
        words += ["--input", str(questions), "--output", str(answers), "--disable-aggregation", "--no-health-check"]
        process = self._start(words, "run.log")
        before = after = self._cpu_s()
        deadline = time.monotonic() + _RUN_LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            seen, spent = self.endpoint.stats(), self._cpu_s()
            if not seen.requests:
                before = spent
            if seen.outcomes.get("answered", 0) < tasks:
                after = spent
            time.sleep(_POLL_S)
        seen = self.endpoint.stats()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        wall_s = (seen.ended_at or 0.0) - (seen.first_at or 0.0)
        written = len(answers.read_text().splitlines()) if answers.exists() else 0
        more = {"exit": process.wait(), "planned": tasks, "requests": seen.requests, "outcomes": seen.outcomes}
        return Measured("gym eval run", written, wall_s, after - before, seen.integral_s / wall_s, more)

    def _start(self, words: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            return subprocess.Popen(
                [str(self.environment / "bin" / "gym"), *words],
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _cpu_s(self) -> float:
        return sum(cpu_s(without=self.endpoint.pid).values())


def _row(number: int) -> dict[str, object]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question(number)}]},
        "options": [{"A": "none"}, {"B": str(number)}],
        "expected_answer": "B",
        "grading_mode": "strict_single_letter_boxed",
        "uuid": str(number),
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", type=Path, required=True, help="virtual environment that has nemo-gym")
    options.add_argument("--tasks", type=int, default=2000)
    options.add_argument("--concurrency", type=int, default=64)
    options.add_argument("--our-concurrency", type=int, default=512, help="more runs of ours, with so many in flight")
    options.add_argument("--our-tasks", type=int, default=20_000, help="a last run of ours, of so many tasks")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--faults", action="store_true", help="20 %% 429, 5 %% 500 and 2 %% cut connections")
    given = options.parse_args()
    measured: list[Measured] = []
    with stub(FAULTS if given.faults else StubSpec()) as endpoint:
        with tempfile.TemporaryDirectory(prefix="gym-spark-peer-") as folder:
            peer = Peer(given.peer.absolute(), Path(folder), endpoint)
            with peer.serving():
                measured += [
                    tell(peer.run(tasks=given.tasks, concurrency=given.concurrency)) for _ in range(given.rounds)
                ]
        with warm_lake(endpoint) as lake:
            for tasks, concurrency in (
                (given.tasks, given.concurrency),
                (given.tasks, given.our_concurrency),
                (given.our_tasks, given.our_concurrency),
            ):
                runs = StubRuns(lake, endpoint, tasks=tasks, concurrency=concurrency)
                what = f"ours, {tasks} tasks, {concurrency} in flight"
                measured += [tell(replace(runs.durable(), what=what)) for _ in range(given.rounds)]
    print(table(measured, base="gym eval run"))  # noqa: T201


if __name__ == "__main__":
    main()
