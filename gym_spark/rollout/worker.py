"""One partition's event loop: planned rollouts stream in, calls run side by side, finished rollouts stream out.

A generator pumps a private asyncio loop, so that results leave while other calls are in flight: memory holds what is
in flight and one unwritten part, and a straggler holds up nobody. Runs on Spark workers; no pyspark.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from gym_spark.config import EndpointSpec, JsonObject, PartSpec, SamplingSpec
from gym_spark.endpoint.client import EndpointClient, key_from_environment
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import RolloutError, boundary
from gym_spark.harness.base import Harness, load_harness
from gym_spark.rollout.records import Pending, completed, failed, now, to_batch
from gym_spark.rollout.staging import Staging, WorkerStatus
from gym_spark.tables.keys import rollout_seed

#: A part is written at this many rows, this many bytes of JSON, or after this long: DESIGN.md §3.
PART_ROWS: Final = 200
PART_BYTES: Final = 16 << 20
PART_SECONDS: Final = 1.0

#: What the collect stage returns: one row per worker.
SUMMARY_SCHEMA: Final = pa.schema([pa.field("partition", pa.int32()), pa.field("rollouts", pa.int64())])


@dataclass(frozen=True, slots=True)
class CollectJob:
    """What every worker of one collect job needs; it is pickled into the Spark job, so it holds no secret."""

    run_id: str
    endpoint: EndpointSpec
    sampling: SamplingSpec
    harness: PartSpec
    workers: int
    staging: Staging

    def share(self, partition: int) -> int:
        """Return this partition's part of the run-wide concurrency; the parts add up to the whole."""
        whole, rest = divmod(self.endpoint.concurrency, self.workers)
        return max(1, whole + (1 if partition < rest else 0))


@dataclass(slots=True)
class _Finished:
    """Rows not yet written, and the bell that says a part is full."""

    full: asyncio.Event
    rows: list[JsonObject] = field(default_factory=list)
    size: int = 0

    def add(self, row: JsonObject) -> None:
        self.rows.append(row)
        self.size += len(row.get("response") or "") + len(row.get("trajectory") or "")
        if len(self.rows) >= PART_ROWS or self.size >= PART_BYTES:
            self.full.set()

    def take(self) -> list[JsonObject]:
        taken, self.rows, self.size = self.rows, [], 0
        self.full.clear()
        return taken


def collect_partition(batches: Iterator[pa.RecordBatch], job: CollectJob, partition: int) -> pa.RecordBatch:
    """Do one partition's rollouts and stage their rows.

    Args:
        batches: Rows of `PENDING_SCHEMA`.
        job: The run's settings.
        partition: Index of this Spark task, which fixes its share of the concurrency.

    Returns:
        One batch of `SUMMARY_SCHEMA` with one row.
    """
    with asyncio.Runner() as runner:
        done = _pump(runner, batches, job, partition)
    return pa.RecordBatch.from_pydict({"partition": [partition], "rollouts": [done]}, schema=SUMMARY_SCHEMA)


def _pump(runner: asyncio.Runner, batches: Iterator[pa.RecordBatch], job: CollectJob, partition: int) -> int:
    status = WorkerStatus(partition)
    finished = _Finished(asyncio.Event())
    lanes = job.share(partition)
    key = key_from_environment(job.endpoint)

    def note_failure(error: RolloutError) -> None:
        status.retries += 1
        status.first_failure = status.first_failure or f"{error.kind}: {error}"

    async def start() -> tuple[EndpointClient, asyncio.Future[Any]]:
        client = EndpointClient(job.endpoint, concurrency=lanes, api_key=key, on_failure=note_failure)
        player = _Player(job, client, load_harness(job.harness), finished, status)
        rows = _pending(batches)
        return client, asyncio.gather(*(player.lane(rows) for _ in range(lanes)))

    client, over = runner.run(start())
    stem = f"p{partition:05d}-{uuid.uuid4().hex[:8]}"
    part = 0
    try:
        while not over.done() or finished.rows:
            runner.run(_full_or_over(finished, over))
            rows = finished.take()
            if rows:
                job.staging.put_part(f"{stem}-{part:06d}", to_batch(rows))
                part += 1
            status.updated_at = time.time()
            job.staging.put_status(status)
        over.result()  # a lane only raises for a broken engine: let Spark see it
    finally:
        over.cancel()
        runner.run(client.aclose())
    return status.done


async def _full_or_over(finished: _Finished, over: asyncio.Future[Any]) -> None:
    """Wait until a part is full, all lanes have ended, or the time of a part is up."""
    bell = asyncio.ensure_future(finished.full.wait())
    await asyncio.wait({bell, over}, timeout=PART_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    bell.cancel()


def _pending(batches: Iterator[pa.RecordBatch]) -> Iterator[Pending]:
    for batch in batches:
        for row in batch.to_pylist():
            yield Pending(**row)


@dataclass(frozen=True, slots=True)
class _Player:
    """Plays rollouts one after another; as many lanes share one source of rows as may be in flight."""

    job: CollectJob
    client: EndpointClient
    harness: Harness
    finished: _Finished
    status: WorkerStatus

    async def lane(self, rows: Iterator[Pending]) -> None:
        for pending in rows:
            self.status.in_flight += 1
            row = await self._play(pending)
            self.status.in_flight -= 1
            self._count(row)
            self.finished.add(row)

    async def _play(self, pending: Pending) -> JsonObject:
        started_at = now()
        sampling = self.job.sampling
        if sampling.seed is not None:
            seed = rollout_seed(sampling.seed, pending.task_id, pending.rollout_index)
            sampling = sampling.model_copy(update={"seed": seed})

        async def call(params: JsonObject) -> Reply:
            return await self.client.generate(params, sampling)

        try:
            with boundary("harness"):
                params: Any = json.loads(pending.responses_create_params)
                episode = await self.harness.run(params, call)
                return completed(self.job.run_id, pending, episode, started_at)
        except RolloutError as error:
            return failed(self.job.run_id, pending, error, started_at)

    def _count(self, row: JsonObject) -> None:
        self.status.done += 1
        self.status.requests += row["requests"]
        usage = row.get("usage") or {}
        self.status.input_tokens += usage.get("input_tokens") or 0
        self.status.output_tokens += usage.get("output_tokens") or 0
        if kind := row.get("failure_kind"):
            self.status.failures[kind] = self.status.failures.get(kind, 0) + 1
