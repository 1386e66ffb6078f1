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
from collections import deque
from collections.abc import Awaitable, Container, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from gym_spark.config import EndpointSpec, JsonObject, PartSpec, SamplingSpec
from gym_spark.endpoint.budget import Budget, Spent, cost
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.failures import FATAL_KINDS, EndpointFailure
from gym_spark.endpoint.usage import Usage
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import GymSparkError, RolloutError, StorageError, boundary
from gym_spark.harness.base import Episode, Harness, load_harness
from gym_spark.rollout.records import (
    BATCH_TEXT,
    PENDING_SCHEMA,
    Pending,
    completed,
    cost_of,
    failed,
    now,
    text_size,
    to_batches,
)
from gym_spark.rollout.reports import Reports
from gym_spark.rollout.retake import Earlier, taken_over
from gym_spark.rollout.staging import Staging, Stop, WorkerStatus
from gym_spark.tables.keys import rollout_seed

#: A part is written at this many rows, this much text, or after this long: DESIGN.md §3.
PART_ROWS: Final = 200
PART_SECONDS: Final = 1.0
#: Rows that wait to be written at most, if they are small.
MOST_ROWS: Final = 5 * PART_ROWS
#: Failures in a row that lie in the set-up (a key, an address), after which a worker starts nothing more, if some of
#: its rollouts went well before: a firewall, say, may refuse a single prompt with the status of a wrong key.
FATAL_ROW: Final = 5
#: A part that cannot be written is tried again for so long: what it holds is paid for.
WRITE_SECONDS: Final = 20.0

#: What the collect stage returns, one row per worker: its parts are named `<stem>-<number>`, with numbers from 0.
SUMMARY_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("reached", pa.bool_()),
        pa.field("stem", pa.string()),
        pa.field("parts", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class CollectJob:
    """What every worker of one collect job needs; it is pickled into the Spark job, so it holds no secret."""

    run_id: str
    endpoint: EndpointSpec
    sampling: SamplingSpec
    harness: PartSpec
    workers: int
    rollout_timeout_s: float = 6 * 3600.0
    #: Where workers leave finished rollouts and their status; None where they reach no folder that the driver sees.
    staging: Staging | None = None
    #: What the run has cost before this job, of its budget.
    spent: Spent = field(default_factory=Spent)

    def share(self, partition: int) -> int:
        """Return this partition's part of the run-wide concurrency; the parts add up to the whole."""
        whole, rest = divmod(self.endpoint.concurrency, self.workers)
        return max(1, whole + (1 if partition < rest else 0))


@dataclass(slots=True)
class _Finished:
    """Rows not yet written, and the bell that says a part is full."""

    full: asyncio.Event = field(default_factory=asyncio.Event)
    #: Rung and replaced when the rows are handed over.
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    rows: deque[JsonObject] = field(default_factory=deque)
    size: int = 0

    def add(self, row: JsonObject) -> None:
        self.rows.append(row)
        self.size += text_size(row)
        if len(self.rows) >= PART_ROWS or self.size >= BATCH_TEXT:
            self.full.set()

    async def room(self) -> None:
        """Wait while too much is not written: large answers come in step, and failures at once, and would pile up."""
        while self.size >= BATCH_TEXT or len(self.rows) >= MOST_ROWS:
            await self.emptied.wait()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand the rows over."""
        yield from to_batches(self.rows)
        self.size = 0
        self.full.clear()
        self.emptied.set()
        self.emptied = asyncio.Event()


def collect_partition(batches: Iterator[pa.RecordBatch], job: CollectJob, partition: int) -> pa.RecordBatch:
    """Do one partition's rollouts and stage their rows; what an earlier try of its Spark task has staged is done.

    Where the job's folder cannot be reached from here, nothing is done, and the summary says so.

    Args:
        batches: Rows of `PENDING_SCHEMA`.
        job: The run's settings.
        partition: Index of this Spark task, which fixes its share of the concurrency.

    Returns:
        One batch of `SUMMARY_SCHEMA` with one row.
    """
    staging = job.staging
    if staging is None:
        raise AssertionError("the driver gives a staged job its folder")
    stem, parts = uuid.uuid4().hex[:8], 0
    earlier = taken_over(staging, partition)
    if earlier is None:
        for _ in batches:  # Spark wants its input read
            pass
    else:
        for batch in finished_batches(batches, job, partition, earlier):
            for attempt in Retrying(
                retry=retry_if_exception_type(StorageError),
                stop=stop_after_delay(WRITE_SECONDS),
                wait=wait_exponential(multiplier=0.2, max=5.0),
                reraise=True,
            ):
                with attempt:
                    staging.put_part(partition, numbered(stem, parts), batch)
            parts += 1
    summary = {"partition": partition, "reached": earlier is not None, "stem": stem, "parts": parts}
    return pa.RecordBatch.from_pylist([summary], schema=SUMMARY_SCHEMA)


def numbered(stem: str, number: int) -> str:
    """Return the name of a part of one try of a Spark task."""
    return f"{stem}-{number:06d}"


def finished_batches(
    batches: Iterator[pa.RecordBatch], job: CollectJob, partition: int, earlier: Earlier
) -> Iterator[pa.RecordBatch]:
    """Do one partition's rollouts, and yield rows of `ROLLOUTS` as they finish.

    Args:
        batches: Rows of `PENDING_SCHEMA`.
        job: The run's settings.
        partition: Index of this worker among the `job.workers` that share the concurrency.
        earlier: What earlier tries of this Spark task have done.
    """
    finished = _Finished()
    pending = _pending(batches, earlier.keys)
    with asyncio.Runner() as runner:
        player, over = runner.run(_started(job, partition, earlier.status, finished, pending))
        told = 0.0
        try:
            while not over.done() or finished.rows:
                if time.time() - told >= PART_SECONDS:
                    told = time.time()
                    player.report()
                runner.run(_full_or_over(finished, over))
                yield from finished.batches()
            over.result()  # a lane only raises for a broken engine: let Spark see it
            player.status.is_over = True
        finally:
            if player.reports is not None:
                player.reports.close(player.told())
            over.cancel()
            runner.run(player.client.aclose())


async def _started(
    job: CollectJob, partition: int, status: WorkerStatus, finished: _Finished, pending: Iterator[Pending]
) -> tuple[_Player, asyncio.Future[Any]]:
    """Start as many lanes as the partition may have requests in flight."""

    def note_failure(error: RolloutError) -> None:
        status.first_failure = status.first_failure or f"{error.kind}: {error}"

    lanes = job.share(partition)
    client = EndpointClient(job.endpoint, concurrency=lanes, share=1 / job.workers, on_failure=note_failure)
    budget = Budget(job.endpoint, share=1 / job.workers, spent=_spent(job, status))
    player = _Player(job, client, load_harness(job.harness), finished, status, budget, status.requests, status.retries)
    if job.staging is not None:
        player.reports = Reports(job.staging, player.told())
        player.stop = player.reports.order
    return player, asyncio.gather(*(player.lane(pending) for _ in range(lanes)))


def _spent(job: CollectJob, status: WorkerStatus) -> Spent:
    """Return this worker's share of what the run has spent, and what earlier tries of its Spark task have."""
    prices, whole = job.endpoint.prices, job.spent
    tried = Usage(input_tokens=status.input_tokens, output_tokens=status.output_tokens)
    money = (cost(tried, prices) or 0.0) if prices is not None else 0.0
    return Spent(
        money=whole.money / job.workers + money,
        tokens=whole.tokens // job.workers + status.input_tokens + status.output_tokens,
        rollouts=whole.rollouts // job.workers + status.done,
    )


async def _full_or_over(finished: _Finished, over: asyncio.Future[Any]) -> None:
    """Wait until a part is full, all lanes have ended, or the time of a part is up."""
    bell = asyncio.ensure_future(finished.full.wait())
    await asyncio.wait({bell, over}, timeout=PART_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    bell.cancel()


def _pending(batches: Iterator[pa.RecordBatch], staged: Container[tuple[str, int, int]]) -> Iterator[Pending]:
    """Yield rows one at a time: the large prompts of a batch are not turned into Python objects at once."""
    for batch in batches:
        *names, prompts = PENDING_SCHEMA.names
        for key, params in zip(batch.select(names).to_pylist(), batch.column(prompts), strict=True):
            row = Pending(**key, **{prompts: params.as_py()})
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
    #: What earlier tries of this Spark task had sent.
    requests_before: int
    retries_before: int
    in_flight: int = 0
    stop: Stop | None = None
    #: None where there is no staging folder.
    reports: Reports | None = None
    #: Failures in a row that lie in the set-up.
    fatal: int = 0
    #: Rung and replaced whenever a rollout has ended, for lanes that wait to learn what one costs.
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def lane(self, rows: Iterator[Pending]) -> None:
        while await self._may_start() and (pending := next(rows, None)) is not None:
            self.in_flight += 1
            self.budget.start()
            # Not bound to a name here: a lane would hold its last row while it waits for the next one.
            if self._end(*await self._play(pending)):
                # A lane whose calls fail at once would otherwise leave the loop to nobody.
                await asyncio.sleep(0)

    def _end(self, row: JsonObject, usages: list[Usage]) -> bool:
        """Take the row; tell whether it failed."""
        self.budget.settle(usages)
        self.in_flight -= 1
        self.ended.set()
        self.ended = asyncio.Event()
        self._count(row)
        self.finished.add(row)
        return bool(row["state"] == "failed")

    async def _may_start(self) -> bool:
        self._give_up()
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

    def report(self) -> None:
        """Tell how things stand, and hear whether to go on.

        Stops where the driver says so or is gone, or where no replica came back: further rollouts would only be written
        off.
        """
        if self.reports is not None:
            self.reports.tell(self.told())
            self.stop = self.stop or self.reports.order
        self._give_up()
        if self.stop is not None:
            self.ended.set()

    def _give_up(self) -> None:
        if self.stop is None and self.client.given_up:
            self.stop = Stop("endpoint_down", f"no replica has answered for long ({self.status.first_failure})")

    def told(self) -> WorkerStatus:
        """Return the status as of now, for good."""
        seen, status = self.client.stats(), self.status
        status.in_flight = self.in_flight
        status.sent, status.retrying, status.waiting = seen.in_flight, seen.retrying, seen.waiting
        status.limit = seen.limit
        status.requests = self.requests_before + seen.requests
        status.retries = self.retries_before + seen.retries
        status.oldest = [asdict(call) for call in seen.oldest]
        status.stop = asdict(self.stop) if self.stop is not None else None
        status.updated_at = time.time()
        return replace(status, failures=dict(status.failures))

    async def _play(self, pending: Pending) -> tuple[JsonObject, list[Usage]]:
        started_at = now()
        sampling = self.job.sampling
        if sampling.seed is not None:
            seed = rollout_seed(sampling.seed, pending.task_id, pending.rollout_index)
            sampling = sampling.model_copy(update={"seed": seed})
        session = f"{pending.task_id}#{pending.rollout_index}"

        # Counted here, for a harness that fails, or goes on after a failed call, does not tell of all that it cost.
        answered: list[Usage] = []
        lost: list[Usage] = []
        requests = 0

        async def call(params: JsonObject) -> Reply:
            nonlocal requests
            try:
                reply = await self.client.generate(params, sampling, session)
            except EndpointFailure as failure:
                requests += failure.requests
                lost.append(failure.usage)
                raise
            requests += reply.requests
            answered.append(reply.usage)
            return reply

        try:
            with boundary("harness"):
                params: Any = json.loads(pending.responses_create_params)
                episode = await self._limited(self.harness.run(params, call))
                row = completed(self.job.run_id, pending, episode, started_at)
        except GymSparkError as found:
            # A harness may raise the others too; only an engine that is broken may end the task.
            error = (
                found if isinstance(found, RolloutError) else RolloutError("harness_error", str(found), stage="harness")
            )
            row = failed(self.job.run_id, pending, error, started_at)
        await self.finished.room()
        row |= cost_of([*answered, *lost], model_calls=len(answered), requests=requests)
        return row, answered + [usage for usage in lost if usage.total_tokens is not None]

    async def _limited(self, playing: Awaitable[Episode]) -> Episode:
        limit_s = self.job.rollout_timeout_s
        try:
            async with asyncio.timeout(limit_s) as clock:
                return await playing
        except TimeoutError as error:
            if not clock.expired():
                raise  # the harness's own
            message = f"the rollout took longer than rollout_timeout_s, {limit_s:g} s"
            raise RolloutError("rollout_timeout", message, stage="harness") from error

    def _count(self, row: JsonObject) -> None:
        self.status.done += 1
        usage = row.get("usage") or {}
        self.status.input_tokens += usage.get("input_tokens") or 0
        self.status.output_tokens += usage.get("output_tokens") or 0
        self.status.latency_ms += row.get("latency_ms") or 0.0
        if kind := row.get("failure_kind"):
            self.status.failures[kind] = self.status.failures.get(kind, 0) + 1
            self.fatal = self.fatal + 1 if kind in FATAL_KINDS else 0
            succeeded = self.status.done > sum(self.status.failures.values())
            if self.stop is None and self.fatal >= (FATAL_ROW if succeeded else 1):
                self.stop = Stop("endpoint_refuses", f"{kind}: {row['error']}")
        else:
            self.fatal = 0
