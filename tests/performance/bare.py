"""Collection without Spark and without storage: one process per core, warm before the clock starts."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, Final

import pyarrow as pa

from gym_spark.config import EndpointSpec, PartSpec, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.rollout.records import PENDING_SCHEMA
from gym_spark.rollout.retake import Earlier
from gym_spark.rollout.worker import CollectJob, finished_batches
from tests.performance.report import Measured
from tests.performance.stub import Endpoint

#: One share of the work: address, process number, processes, calls, concurrency of all. Returns the answers.
Share = tuple[str, int, int, int, int]


def bare_client(endpoint: Endpoint, *, rollouts: int, concurrency: int) -> Measured:
    """Make as many model calls as a run has rollouts, and keep the answers' texts in memory. Nothing else."""
    return _measured("bare client", _call, endpoint, rollouts, concurrency)


def bare_worker(endpoint: Endpoint, *, rollouts: int, concurrency: int) -> Measured:
    """Do what a Spark worker does, from Arrow rows of the plan to Arrow rows of `rollouts`, which are dropped."""
    return _measured("bare worker", _work, endpoint, rollouts, concurrency)


def _measured(
    what: str, act: Callable[..., Callable[[], int]], endpoint: Endpoint, rollouts: int, concurrency: int
) -> Measured:
    """Run `act` in one process per core. The clock stops when the last one has its answers."""
    processes = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(processes + 1), context.SimpleQueue()
    endpoint.reset()
    children = []
    for number in range(processes):
        share: Share = (endpoint.url, number, processes, rollouts, concurrency)
        children.append(context.Process(target=_child, args=(act, share, start, told)))
        children[-1].start()
    start.wait()
    began = time.monotonic()
    results: list[dict[str, Any]] = [told.get() for _ in children]
    wall_s = max(result["ended"] for result in results) - began
    for child in children:
        child.join()
    return Measured(
        what=what,
        rollouts=sum(result["answers"] for result in results),
        wall_s=wall_s,
        cpu_s=sum(result["cpu_s"] for result in results),
        mean_in_flight=endpoint.stats().integral_s / wall_s,
    )


def _child(act: Callable[..., Callable[[], int]], share: Share, start: Barrier, told: Any) -> None:
    ready = act(*share)
    start.wait()
    cpu_s = time.process_time()
    answers = ready()
    told.put({"ended": time.monotonic(), "answers": answers, "cpu_s": time.process_time() - cpu_s})


def _call(url: str, number: int, processes: int, rollouts: int, concurrency: int) -> Callable[[], int]:
    lanes = max(1, concurrency // processes)
    numbers = range(number, rollouts, processes)
    return lambda: len(asyncio.run(_texts(EndpointSpec(urls=(url,), model="stub"), numbers, lanes)))


async def _texts(spec: EndpointSpec, numbers: range, lanes: int) -> list[str | None]:
    texts: list[str | None] = []
    left = iter(numbers)

    async with EndpointClient(spec, concurrency=lanes) as client:

        async def lane() -> None:
            for number in left:
                reply = await client.generate({"input": question(number)}, SamplingSpec())
                texts.append(reply.output_text)

        await asyncio.gather(*(lane() for _ in range(lanes)))
    return texts


def _work(url: str, number: int, processes: int, rollouts: int, concurrency: int) -> Callable[[], int]:
    batches = pa.Table.from_pylist(
        [_pending(index) for index in range(number, rollouts, processes)], schema=PENDING_SCHEMA
    ).to_batches(max_chunksize=500)
    job = CollectJob(
        run_id="bare",
        endpoint=EndpointSpec(urls=(url,), model="stub", concurrency=concurrency),
        sampling=SamplingSpec(),
        harness=PartSpec(name="single_turn"),
        workers=processes,
    )
    return lambda: sum(batch.num_rows for batch in finished_batches(iter(batches), job, number, Earlier()))


_SENTENCE: Final = "A train with {} wagons leaves at noon. "


def question(number: int) -> str:
    """Return a question of about the size of a short exam question."""
    return _SENTENCE.format(number) * 4 + "How many wagons has it?"


def _pending(number: int) -> dict[str, object]:
    return {
        "task_id": f"{number:016x}",
        "task_index": number,
        "shard": number % 20,
        "rollout_index": 0,
        "attempt": 1,
        "responses_create_params": json.dumps({"input": [{"role": "user", "content": question(number)}]}),
    }
