"""P48: Spark runs a task again, or twice at once; no rollout is stored twice, and what was paid for twice is told."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gym_spark.config import EndpointSpec, PartSpec, SamplingSpec
from gym_spark.rollout.records import PENDING_SCHEMA
from gym_spark.rollout.staging import JobBeat, Staging
from gym_spark.rollout.worker import CollectJob, collect_partition
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.e2e.conftest import Run
from tests.e2e.harnesses import CALLS
from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import quiz_run


def test_p48_a_task_that_fails_after_three_calls_is_repeated_and_its_waste_is_told(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Answers that became no rollout are asked for again, and counted; each rollout is stored once."""
    with FakeOpenAI() as server:
        words = quiz_run(tmp_path, server.url, 9, "--concurrency", str(CALLS))
        told = gym(*words[3:], "--harness", "tests.e2e.harnesses:BreaksOnce")
        assert told.code == 0, told.err
        assert server.requests == 9 + CALLS
    assert f"{CALLS} requests were sent in vain" in told.err
    assert lake.read(ROLLOUTS).count() == 9
    assert lake.read(ROLLOUTS).select(*ATTEMPT_KEY).distinct().count() == 9


def test_p48_two_tries_of_one_task_at_once_pay_for_each_rollout_once(tmp_path: Path) -> None:
    """The copy that Spark started, out of speculation or after a lost heartbeat, waits while the first one works."""

    def slow(body: dict[str, Any], n: int) -> FakeReply:
        return FakeReply("1", delay_s=0.4)

    rows = [[f"t{n}", n, 0, 0, 1, '{"input": "hello"}'] for n in range(40)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), PENDING_SCHEMA, strict=True)],
        schema=PENDING_SCHEMA,
    )
    staging = Staging(str(tmp_path / "job"))
    with FakeOpenAI(slow) as server, ThreadPoolExecutor(2) as pool:
        endpoint = EndpointSpec(urls=(server.url,), model="fake", concurrency=4)
        job = CollectJob("r1", endpoint, SamplingSpec(), PartSpec(name="single_turn"), workers=1, staging=staging)
        staging.beat(JobBeat(share="1/1", started_at=time.time()))
        tries = [pool.submit(collect_partition, iter([batch]), job, 0)]
        while staging.status_of(0) is None:
            time.sleep(0.05)
        tries.append(pool.submit(collect_partition, iter([batch]), job, 0))
        summaries = [found.result().to_pylist()[0] for found in tries]
        assert server.requests == 40
    keys = Counter(key for part in staging.parts() for key in pq.read_table(part).column("task_id").to_pylist())
    assert [(summary["reached"], summary["parts"]) for summary in summaries] == [
        (True, len(staging.parts())),
        (True, 0),
    ]
    assert set(keys.values()) == {1}
    assert len(keys) == 40
    (status,) = staging.statuses()
    assert (status.done, status.requests, status.wasted) == (40, 40, 0)
