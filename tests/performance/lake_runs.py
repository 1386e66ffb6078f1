"""Runs against the stub on a real lake in a warm session: collection end to end, and the same without durability."""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from gym_spark import flow
from gym_spark.flow import collect, draft, open_lake
from gym_spark.ledger import plan_run, recorded
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.publish import publish
from gym_spark.resolve import resolve_run
from gym_spark.rollout.place import staging_of
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord
from gym_spark.tables.schemas import ROLLOUTS
from tests.performance.accounting import cpu_s
from tests.performance.dropping import DroppingRun
from tests.performance.report import Measured
from tests.performance.stub import Endpoint

BENCHMARKS: Final = Path(__file__).parent / "benchmarks"
#: Rollouts that start Spark's workers and let the JVM compile what is hot, before anything is measured.
WARM_UP: Final = 2000


@contextlib.contextmanager
def warm_lake(endpoint: Endpoint, *, warm_up: int = WARM_UP) -> Iterator[Lake]:
    """Give a new lake in a session that has collected so many rollouts, twice, before."""
    with tempfile.TemporaryDirectory(prefix="gym-spark-performance-") as folder:
        lake = open_lake(str(Path(folder, "lake")), say=lambda text: None)
        try:
            runs = StubRuns(lake, endpoint, tasks=warm_up, concurrency=256)
            runs.durable()
            runs.undurable()
            yield lake
        finally:
            lake.spark.stop()


class StubRuns:
    """Runs of one prepared benchmark.

    Args:
        lake: The lake; the benchmark is prepared here.
        endpoint: The stub.
        tasks: Tasks of the benchmark, one rollout each.
        concurrency: Rollouts in flight, run-wide.
    """

    def __init__(self, lake: Lake, endpoint: Endpoint, *, tasks: int, concurrency: int) -> None:
        self._lake = lake
        self._endpoint = endpoint
        self._tasks = tasks
        self._concurrency = concurrency
        found = resolve_run({"benchmark": "stubbed"}, search_dirs=[BENCHMARKS]).benchmark
        source = found.spec.source.model_copy(update={"params": {"tasks": tasks}})
        self._version = publish(lake, draft(Benchmark(found.spec.model_copy(update={"source": source}), found.folder)))

    def durable(self) -> Measured:
        """Collect as `eval run` does: from planning to the last Delta commit. Verification is not part of it."""
        return self._measured("ours", self._collect)

    def undurable(self) -> Measured:
        """Do the same and store nothing: the same plan, Spark job, workers and driver, but parts are dropped.

        So the driver finds no part to adopt and commits nothing. What is left is what the run would take if answers
        needed no keeping, rows in Arrow included; the rest of the time of `durable` is the price of durability.
        """
        return self._measured("ours, parts dropped", self._collect_and_drop)

    def _measured(self, what: str, act: Callable[[RunRecord], None]) -> Measured:
        record = self._planned()
        with recorded(self._lake, record):
            self._endpoint.reset(mark=self._tasks)
            cpu_before, began = cpu_s(without=self._endpoint.pid), time.monotonic()
            act(record)
            ended = time.monotonic()
            cpu_after = cpu_s(without=self._endpoint.pid)
            seen = self._endpoint.stats()
        stored = self._stored(record) if what == "ours" else self._tasks
        spent = {kind: round(cpu_after[kind] - cpu_before[kind], 2) for kind in cpu_after}
        more: dict[str, Any] = {"cpu_s_by": spent, "requests": seen.requests, "outcomes": seen.outcomes}
        if seen.first_at is not None and seen.ended_at is not None:
            # One clock for all processes of a machine. After the last answer come the last part and the last commit.
            more |= {"until_first_s": seen.first_at - began, "after_last_s": ended - seen.ended_at}
        if seen.first_at is not None and seen.marked_at is not None and seen.marked_s is not None:
            # From the first request to the one with which the last rollout was handed out.
            more["dispatch_s"] = seen.marked_at - seen.first_at
            more["in_flight_share"] = seen.marked_s / (seen.marked_at - seen.first_at) / self._concurrency
        return Measured(what, stored, ended - began, sum(spent.values()), seen.integral_s / (ended - began), more)

    def _planned(self) -> RunRecord:
        flags = {
            "benchmark": "stubbed",
            "run_id": uuid.uuid4().hex,
            "endpoint": {"urls": [self._endpoint.url], "model": "stub", "concurrency": self._concurrency},
        }
        spec = resolve_run(flags, search_dirs=[BENCHMARKS]).spec
        return plan_run(self._lake, spec, self._version, None, resume=False)

    def _collect(self, record: RunRecord) -> None:
        collect(self._lake, record, lambda: record.spec.endpoint, say=lambda text: None)

    def _collect_and_drop(self, record: RunRecord) -> None:
        with mock.patch.object(flow, "staging_of", lambda lake, run_id: DroppingRun(staging_of(lake, run_id).uri)):
            self._collect(record)

    def _stored(self, record: RunRecord) -> int:
        """Count the completed rollouts.

        Raises:
            AssertionError: One is missing, failed or there twice: then what was measured is no collection.
        """
        rows = self._lake.read(ROLLOUTS, run_id=record.spec.run_id)
        states = {row["state"]: row["count"] for row in rows.groupBy("state").count().collect()}
        keys = rows.select("task_id", "rollout_index").distinct().count()
        if states != {"completed": self._tasks} or keys != self._tasks:
            raise AssertionError(f"planned {self._tasks} rollouts; stored are {states}, with {keys} keys")
        return keys
