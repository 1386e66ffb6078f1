"""One partition's event loop: planned rollouts stream in, calls run side by side, finished rollouts stream out.

A private asyncio loop is run until a part is full or a second is over, so that results leave while other calls are in
flight: memory holds what is in flight and one unwritten part, and a straggler holds up nobody. Runs on Spark workers;
no pyspark.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from gym_spark.config import EndpointSpec, JsonObject, PartSpec, SamplingSpec
from gym_spark.endpoint.budget import Budget
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.failures import FATAL_KINDS, EndpointFailure
from gym_spark.endpoint.usage import Usage
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import RolloutError, boundary
from gym_spark.harness.base import Harness, load_harness
from gym_spark.rollout.records import PENDING_SCHEMA, Pending, completed, failed, now, to_batches
from gym_spark.rollout.staging import Staging, Stop, WorkerStatus
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
    #: What the run has cost before this job, of its budget.
    spent_money: float = 0.0
    spent_tokens: int = 0

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


def collect_partition(
    batches: Iterator[pa.RecordBatch], job: CollectJob, partition: int, task_attempt: int = 0
) -> pa.RecordBatch:
    """Do one partition's rollouts and stage their rows.

    Args:
        batches: Rows of `PENDING_SCHEMA`.
        job: The run's settings.
        partition: Index of this Spark task, which fixes its share of the concurrency.
        task_attempt: Above 0 if an earlier try of this Spark task died; what that one staged is not done again.

    Returns:
        One batch of `SUMMARY_SCHEMA` with one row.
    """
    staged = job.staging.staged_keys(partition) if task_attempt else set()
    with asyncio.Runner() as runner:
        done = _pump(runner, _pending(batches, staged), job, partition)
    return pa.RecordBatch.from_pydict({"partition": [partition], "rollouts": [done]}, schema=SUMMARY_SCHEMA)


def _pump(runner: asyncio.Runner, pending: Iterator[Pending], job: CollectJob, partition: int) -> int:
    status = WorkerStatus(partition)
    finished = _Finished(asyncio.Event())
    lanes = job.share(partition)

    def note_failure(error: RolloutError) -> None:
        status.first_failure = status.first_failure or f"{error.kind}: {error}"

    async def start() -> tuple[_Player, asyncio.Future[Any]]:
        client = EndpointClient(job.endpoint, concurrency=lanes, share=1 / job.workers, on_failure=note_failure)
        budget = Budget(
            job.endpoint,
            share=1 / job.workers,
            spent_money=job.spent_money / job.workers,
            spent_tokens=job.spent_tokens // job.workers,
        )
        player = _Player(job, client, load_harness(job.harness), finished, status, budget)
        return player, asyncio.gather(*(player.lane(pending) for _ in range(lanes)))

    player, over = runner.run(start())
    stem = uuid.uuid4().hex[:8]
    part, told = 0, 0.0
    try:
        while not over.done() or finished.rows:
            runner.run(_full_or_over(finished, over))
            for batch in to_batches(finished.take()):
                job.staging.put_part(partition, f"{stem}-{part:06d}", batch)
                part += 1
            if time.time() - told >= PART_SECONDS or over.done():
                told = time.time()
                job.staging.put_status(player.told(told))
                player.check_orders()
        over.result()  # a lane only raises for a broken engine: let Spark see it
    finally:
        over.cancel()
        runner.run(player.client.aclose())
    return status.done


async def _full_or_over(finished: _Finished, over: asyncio.Future[Any]) -> None:
    """Wait until a part is full, all lanes have ended, or the time of a part is up."""
    bell = asyncio.ensure_future(finished.full.wait())
    await asyncio.wait({bell, over}, timeout=PART_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    bell.cancel()


def _pending(batches: Iterator[pa.RecordBatch], staged: Container[tuple[str, int, int]]) -> Iterator[Pending]:
    """Yield rows one at a time: a batch of large prompts is not turned into Python objects at once."""
    for batch in batches:
        columns = [batch.column(name) for name in PENDING_SCHEMA.names]
        for index in range(batch.num_rows):
            row = Pending(*(column[index].as_py() for column in columns))
            if (row.task_id, row.rollout_index, row.attempt) not in staged:
                yield row


@dataclass(slots=True)
class _Player:
    """Plays rollouts one after another; as many lanes share one source of rows as may be in flight."""

    job: CollectJob
    client: EndpointClient
    harness: Harness
    finished: _Finished
    status: WorkerStatus
    budget: Budget
    in_flight: int = 0
    stop: Stop | None = None
    #: Rung and replaced whenever a rollout has ended, for lanes that wait to learn what one costs.
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def lane(self, rows: Iterator[Pending]) -> None:
        while await self._may_start() and (pending := next(rows, None)) is not None:
            self.in_flight += 1
            self.budget.start()
            row, usages = await self._play(pending)
            self.budget.settle(usages)
            self.in_flight -= 1
            self.ended.set()
            self.ended = asyncio.Event()
            self._count(row)
            self.finished.add(row)

    async def _may_start(self) -> bool:
        while self.stop is None:
            decision = self.budget.decide()
            if decision == "start":
                return True
            if decision == "stop":
                spent = f"{self.budget.spent_tokens} tokens, {self.budget.spent_money:g} in money"
                self.stop = Stop("budget_exhausted", f"the next rollout would pass the budget (a worker spent {spent})")
            else:
                await self.ended.wait()
        return False

    def check_orders(self) -> None:
        """Stop where the driver says so, or where no replica came back: further rollouts would only be written off."""
        if self.stop is None:
            self.stop = self.job.staging.ordered_stop()
        if self.stop is None and self.client.stats().given_up:
            self.stop = Stop("endpoint_down", f"no replica has answered for long ({self.status.first_failure})")
        if self.stop is not None:
            self.ended.set()

    def told(self, at: float) -> WorkerStatus:
        """Return the status as of now."""
        seen, status = self.client.stats(), self.status
        status.in_flight = self.in_flight
        status.sent, status.retrying, status.waiting = seen.in_flight, seen.retrying, seen.waiting
        status.limit, status.requests, status.retries = seen.limit, seen.requests, seen.retries
        status.oldest = [asdict(call) for call in seen.oldest]
        status.stop = asdict(self.stop) if self.stop is not None else None
        status.updated_at = at
        return status

    async def _play(self, pending: Pending) -> tuple[JsonObject, list[Usage]]:
        started_at = now()
        sampling = self.job.sampling
        if sampling.seed is not None:
            seed = rollout_seed(sampling.seed, pending.task_id, pending.rollout_index)
            sampling = sampling.model_copy(update={"seed": seed})
        session = f"{pending.task_id}#{pending.rollout_index}"

        async def call(params: JsonObject) -> Reply:
            return await self.client.generate(params, sampling, session)

        try:
            with boundary("harness"):
                params: Any = json.loads(pending.responses_create_params)
                episode = await self.harness.run(params, call)
                row = completed(self.job.run_id, pending, episode, started_at)
                return row, [reply.usage for reply in episode.replies]
        except RolloutError as error:
            usage = error.usage if isinstance(error, EndpointFailure) else Usage()
            known = [usage] if usage.total_tokens is not None else []
            return failed(self.job.run_id, pending, error, started_at, usage), known

    def _count(self, row: JsonObject) -> None:
        self.status.done += 1
        usage = row.get("usage") or {}
        self.status.input_tokens += usage.get("input_tokens") or 0
        self.status.output_tokens += usage.get("output_tokens") or 0
        self.status.latency_ms += row.get("latency_ms") or 0.0
        if kind := row.get("failure_kind"):
            self.status.failures[kind] = self.status.failures.get(kind, 0) + 1
            if kind in FATAL_KINDS and self.stop is None:
                self.stop = Stop("endpoint_refuses", f"{kind}: {row['error']}")
