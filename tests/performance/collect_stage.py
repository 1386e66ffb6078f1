"""The collect stage beside the bare client, and what durability costs.

    python -m tests.performance.collect_stage
    python -m tests.performance.collect_stage --rollouts 100000 --rounds 2
    python -m tests.performance.collect_stage --faults --ways ours

In turn, `--rounds` times, against one stub endpoint:

- the endpoint client alone, one process per core (`bare.bare_client`);
- the worker's loop alone, one process per core (`bare.bare_worker`): harness, rows and Arrow too, no Spark, no storage;
- collection end to end on a Delta lake in a warm session, from planning to the last commit (`StubRuns.durable`);
- the same with the parts dropped (`StubRuns.undurable`).

The table shows the best round of each. The price of durability is the part of the wall time of a run that the same run
without it does not take.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from tests.performance.bare import bare_client, bare_worker
from tests.performance.lake_runs import StubRuns, warm_lake
from tests.performance.report import Measured, best, table, tell
from tests.performance.stub import FAULTS, StubSpec, stub


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=20_000)
    options.add_argument("--concurrency", type=int, default=256)
    options.add_argument("--latency-s", type=float, default=0.05)
    options.add_argument("--answer-bytes", type=int, default=4096)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--faults", action="store_true", help="20 %% 429, 5 %% 500 and 2 %% cut connections")
    options.add_argument("--ways", nargs="+", choices=["client", "worker", "ours", "undurable"])
    given = options.parse_args()
    spec = replace(FAULTS if given.faults else StubSpec(), answer_bytes=given.answer_bytes, latency_s=given.latency_s)
    measured: list[Measured] = []
    with stub(spec) as endpoint, warm_lake(endpoint) as lake:
        runs = StubRuns(lake, endpoint, tasks=given.rollouts, concurrency=given.concurrency)
        ways = {
            "client": lambda: bare_client(endpoint, rollouts=given.rollouts, concurrency=given.concurrency),
            "worker": lambda: bare_worker(endpoint, rollouts=given.rollouts, concurrency=given.concurrency),
            "ours": runs.durable,
            "undurable": runs.undurable,
        }
        for _ in range(given.rounds):
            measured += [tell(act()) for way, act in ways.items() if given.ways is None or way in given.ways]
    print(table(measured, base=measured[0].what))  # noqa: T201
    if given.ways is None:
        kept, dropped = best(measured, "ours"), best(measured, "ours, parts dropped")
        print(f"Durability: {1 - dropped.wall_s / kept.wall_s:.1%} of the wall time.")  # noqa: T201


if __name__ == "__main__":
    main()
