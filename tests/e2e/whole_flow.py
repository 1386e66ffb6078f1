"""The whole flow on a given kind of Spark session, as a program of its own: two kinds can't share a process.

python -m tests.e2e.whole_flow MASTER LAKE MODEL_URL      MASTER: connect, or a Spark master
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from gym_spark import flow
from gym_spark.resolve import resolve_run
from gym_spark.session import get_session
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import METRICS

QUIZ = Path(__file__).parent.parent / "data" / "benchmarks"


def main(kind: str, lake: str, url: str) -> None:
    """Prepare, collect, verify and profile the quiz, and print the profile."""
    settings = {"spark.remote": "local[3]"} if kind == "connect" else {"spark.master": kind}
    if kind.startswith("local-cluster"):
        settings |= {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    spark = get_session(settings)
    source = Path(lake).parent / "quiz.jsonl"
    source.write_text("".join(json.dumps({"question": f"{n}", "answer": str(n)}) + "\n" for n in range(6)))
    wanted = resolve_run(
        {
            "benchmark": "quiz",
            "run_id": "r1",
            "num_repeats": 2,
            "endpoint": {"urls": [url], "model": "fake", "concurrency": 4},
        },
        search_dirs=[QUIZ],
    )

    async def in_a_notebook() -> flow.RunProfile:
        # A notebook's cell runs inside a running event loop.
        return flow.run(wanted.spec, wanted.benchmark, lake, sources=[source], show=lambda progress: None)

    profile = asyncio.run(in_a_notebook())
    session = f"{type(spark).__module__}.{type(spark).__name__}"
    files = compacted(flow.open_lake(lake), profile.verification_id)
    print(json.dumps({"session": session, "profile": json.loads(profile.to_json()), "files": files}))  # noqa: T201
    spark.stop()


def compacted(lake: Lake, verification_id: str) -> list[int]:
    """Add a file to the run's metrics, compact them, and return the number of files and rows before and after."""
    here = {"run_id": "r1", "verification_id": verification_id}
    lake.append(METRICS, lake.read(METRICS, **here))
    seen = []
    for _ in range(2):
        rows = lake.read(METRICS, **here)
        seen += [len(rows.inputFiles()), rows.count()]
        lake.compact(METRICS, above=1, **here)
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
