"""How much memory a Python worker takes at most, over many rollouts and over large ones.

    python -m tests.performance.worker_memory
    python -m tests.performance.worker_memory --cases large --concurrency 64

Each case has a Spark session, and so workers, of its own. The figure is the kernel's VmHWM: the highest resident memory
that the process has ever had, pages that it shares with its siblings counted in full.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Final

from tests.performance.accounting import peaks
from tests.performance.lake_runs import StubRuns, warm_lake
from tests.performance.report import Measured, tell
from tests.performance.stub import StubSpec, stub

#: Case -> rollouts, bytes of an answer.
CASES: Final = {"many": (100_000, 16 << 10), "large": (300, 4 << 20)}


def measured_case(rollouts: int, answer_bytes: int, concurrency: int) -> Measured:
    """Collect so many rollouts in a new session, and return what that took, with the peaks in MB by kind of process."""
    with stub(StubSpec(answer_bytes=answer_bytes)) as endpoint, warm_lake(endpoint, warm_up=8) as lake:
        runs = StubRuns(lake, endpoint, tasks=rollouts, concurrency=concurrency)
        with peaks() as seen:
            measured = runs.durable()
    peak_mb = {kind: round(max(found.values())) for kind, found in seen.mb.items()}
    return replace(measured, more=measured.more | {"peak_mb": peak_mb, "answer_bytes": answer_bytes})


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options.add_argument("--concurrency", type=int, default=64)
    options.add_argument("--limit-mb", type=int, default=400)
    given = options.parse_args()
    lines = ["| case | highest worker | of the limit | JVM |", "|---|---|---|---|"]
    for case in given.cases:
        rollouts, answer_bytes = CASES[case]
        measured = tell(measured_case(rollouts, answer_bytes, given.concurrency))
        peak_mb = measured.more["peak_mb"]
        shown = f"{rollouts:,} rollouts of {answer_bytes >> 10:,} KB, {given.concurrency} in flight"
        share = peak_mb["workers"] / given.limit_mb
        lines.append(f"| {shown} | {peak_mb['workers']} MB | {share:.2f} | {peak_mb['jvm']} MB |")
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
