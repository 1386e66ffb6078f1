"""Faults of endpoints, end to end through ``gym-spark eval run``: a JSON line for each, exit code 1 if one did harm.

    python -m tests.reliability.faults
    python -m tests.reliability.faults --only outage "bad replica"

The score of a run through faults must equal that of the same run without: the fake model's answer depends on the
question alone, so it is known. All runs share one Spark session.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gym_spark import cli
from tests.fake_openai import Answer, FakeOpenAI, FakeReply, Json, last_user_text
from tests.processes import quiz_run

#: Length of the outage, which is that of a restarting server.
OUTAGE_S: Final = 30.0
#: Time limit of a request, where only that ends one.
TIMEOUT_S: Final = 5.0
#: What a bad replica may get of a run, beside an equal share of which it answers nothing: tries until it is known as
#: bad, by each of the run's workers, and again after each probe that it passes.
FEW: Final = 0.25

#: The bad replicas, and one that dies: that one answers until its port closes.
BAD: Final = {
    "empty body": FakeReply(raw=b""),
    "a byte a second": FakeReply("1", drip_s=1, drip_bytes=1),
    "50 MB": FakeReply(raw=b"x" * (50 * 1024**2)),
    "invalid JSON": FakeReply(raw=b'{"choices": [{"message": {"content": "1"'),
    "invalid UTF-8": FakeReply(raw=b'{"choices": [{"message": {"role": "assistant", "content": "1\xff\xfe"}}]}'),
}


def right(question: str) -> bool:
    """Tell whether the fake model knows the answer: it does for about two questions in three."""
    return zlib.crc32(question.encode()) % 3 > 0


def knows(body: Json, n: int) -> FakeReply:
    """Answer by the question alone, after 50 ms."""
    return FakeReply("1" if right(last_user_text(body)) else "2", delay_s=0.05)


def always(reply: FakeReply) -> Answer:
    """Return what gives every request the same answer."""
    return lambda body, n: reply


def expected_score(tasks: int) -> float:
    """Return the score of a run in which nothing is answered wrong because of a fault."""
    return sum(right(f"Q: {number}") for number in range(tasks)) / tasks


def mixed_faults(answer: Answer, *, hint_s: float, seed: int) -> Answer:
    """Let 20 % of the requests meet a 429 with a hint, 5 % a 500 and 2 % a dropped connection; answer the others."""
    chance = random.Random(seed)

    def faulty(body: Json, n: int) -> FakeReply | str:
        drawn = chance.random()
        if drawn < 0.20:
            return FakeReply(status=429, headers={"Retry-After": f"{hint_s:g}"})
        if drawn < 0.25:
            return FakeReply(status=500)
        return FakeReply(drop="before") if drawn < 0.27 else answer(body, n)

    return faulty


@dataclass(frozen=True)
class Told:
    """What a run came to.

    Attributes:
        code: Exit code.
        profile: Its JSON, empty if it failed.
        seconds: Wall time.
        said: What it wrote for people.
    """

    code: int
    profile: Any
    seconds: float
    said: str

    @property
    def score(self) -> float | None:
        """Mean reward over the plan."""
        found = (
            m for m in self.profile.get("metrics", []) if (m["name"], m["denominator"]) == ("mean_reward", "planned")
        )
        return next((metric["value"] for metric in found), None)

    def judged(self, fault: str, tasks: int, **facts: Any) -> Json:
        """Return the line about a fault; `ok` unless a rollout is missing or scored wrong."""
        coverage = self.profile.get("coverage", {})
        whole = self.code == 0 and coverage.get("completed") == coverage.get("scored") == tasks
        line = {"fault": fault, "ok": whole and self.score == expected_score(tasks), "seconds": round(self.seconds, 1)}
        line |= {"completed": coverage.get("completed"), "planned": tasks, "score": self.score}
        line |= {"score_without": expected_score(tasks)} | facts
        return line if self.code == 0 else line | {"said": self.said[-500:]}


def run(urls: list[str], tasks: int, *more: str) -> Told:
    """Run the quiz once on the session of this process, in a lake of its own."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory(prefix="gym-spark-faults-") as folder:
        config = Path(folder, "endpoint.yaml")
        config.write_text(json.dumps({"endpoint": {"timeout_s": TIMEOUT_S}}))
        replicas = [word for url in urls[1:] for word in ("--model-url", url)]
        words = quiz_run(Path(folder), urls[0], tasks, *replicas, "--json", "--config", str(config), *more)
        began = time.monotonic()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run(words[3:])
    shown = json.loads(out.getvalue()) if code == 0 else {}
    return Told(code, shown, time.monotonic() - began, err.getvalue())


def no_fault(tasks: int) -> Iterator[Json]:
    """Run without any fault, to compare with."""
    with FakeOpenAI(knows) as server:
        yield run([server.url], tasks).judged("none", tasks, requests=server.requests)


def outage(tasks: int) -> Iterator[Json]:
    """Close the endpoint's port in the middle of a run, and open it again half a minute later."""
    with FakeOpenAI(lambda body, n: FakeReply(knows(body, n).text, delay_s=0.3)) as server:
        told: list[float] = []

        def strike() -> None:
            while server.requests < tasks // 3:
                time.sleep(0.05)
            server.close_port()
            told.append(time.monotonic())
            time.sleep(OUTAGE_S)
            server.open_port()

        striker = threading.Thread(target=strike, daemon=True)
        striker.start()
        came = run([server.url], tasks)
        striker.join(OUTAGE_S)
        yield came.judged(f"{OUTAGE_S:.0f} s outage", tasks, requests=server.requests)


def mixed(tasks: int) -> Iterator[Json]:
    """Let more than a quarter of all requests fail, in three ways."""
    with FakeOpenAI(mixed_faults(knows, hint_s=1, seed=4)) as server:
        told = run([server.url], tasks, "--concurrency", "64")
        yield told.judged("20 % 429, 5 % 500, 2 % dropped", tasks, requests=server.requests)


def bad_replica(tasks: int) -> Iterator[Json]:
    """Run on two replicas of which one is bad."""
    for name, reply in BAD.items():
        with FakeOpenAI(always(reply)) as bad, FakeOpenAI(knows) as good:
            yield _on_two(name, tasks, bad, good)
    with FakeOpenAI(knows) as bad, FakeOpenAI(knows) as good:

        def die() -> None:
            while bad.requests < tasks * FEW / 2:
                time.sleep(0.01)
            bad.close_port()

        threading.Thread(target=die, daemon=True).start()
        yield _on_two("dies", tasks, bad, good)


def _on_two(name: str, tasks: int, bad: FakeOpenAI, good: FakeOpenAI) -> Json:
    told = run([bad.url, good.url], tasks)
    line = told.judged(f"bad replica: {name}", tasks, requests_bad=bad.requests, requests_good=good.requests)
    return line | {"ok": line["ok"] and bad.requests <= FEW * tasks}


FAULTS: Final[dict[str, Callable[[int], Iterator[Json]]]] = {
    "none": no_fault,
    "outage": outage,
    "mixed": mixed,
    "bad replica": bad_replica,
}


def main() -> None:
    """Meet each fault, and print what came of it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=2000)
    options.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    given = options.parse_args()
    well = True
    for name in given.only:
        for line in FAULTS[name](given.rollouts):
            print(json.dumps(line), flush=True)  # noqa: T201
            well = well and line["ok"]
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
