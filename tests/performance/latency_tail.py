"""How full the endpoint is kept while some answers take very much longer than others.

    python -m tests.performance.latency_tail

Latencies are lognormal with a 99th percentile of 20 times the median. The figure is the mean number of requests at the
endpoint, by the endpoint's own count, from the first request until the one with which the last rollout was handed out,
as a share of the limit. What comes after that is the stragglers' alone: no scheduler can fill it.
"""

from __future__ import annotations

import argparse

from tests.performance.lake_runs import StubRuns, warm_lake
from tests.performance.report import tell
from tests.performance.stub import StubSpec, stub


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=6000)
    options.add_argument("--concurrency", type=int, default=64)
    options.add_argument("--median-s", type=float, default=0.2)
    options.add_argument("--answer-bytes", type=int, default=4096)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    lines = ["| round | handed out in | mean in flight until then | whole run |", "|---|---|---|---|"]
    spec = StubSpec(answer_bytes=given.answer_bytes, latency_s=given.median_s, tail=True)
    with stub(spec) as endpoint, warm_lake(endpoint, warm_up=500) as lake:
        runs = StubRuns(lake, endpoint, tasks=given.rollouts, concurrency=given.concurrency)
        for number in range(1, given.rounds + 1):
            measured = tell(runs.durable())
            dispatch_s, share = measured.more["dispatch_s"], measured.more["in_flight_share"]
            lines.append(
                f"| {number} | {dispatch_s:.1f} s | {share:.1%} of {given.concurrency} | {measured.wall_s:.1f} s |"
            )
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
