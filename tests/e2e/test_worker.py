"""One worker's partition against a server on loopback, without Spark: what it counts, and when it stops."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gym_spark.config import EndpointSpec, PartSpec, SamplingSpec
from gym_spark.errors import StorageError
from gym_spark.rollout import worker
from gym_spark.rollout.folder import Folder
from gym_spark.rollout.records import PENDING_SCHEMA
from gym_spark.rollout.retake import Earlier
from gym_spark.rollout.staging import JobBeat, Staging
from gym_spark.rollout.worker import CollectJob, collect_partition, finished_batches
from tests.fake_openai import Answer, FakeOpenAI, FakeReply

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def pending(count: int) -> pa.RecordBatch:
    rows = [[f"t{n}", n, 0, 0, 1, '{"input": "hello"}'] for n in range(count)]
    columns = zip(zip(*rows, strict=True), PENDING_SCHEMA, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in columns], schema=PENDING_SCHEMA
    )


def job_at(server: FakeOpenAI, harness: PartSpec, staging: Staging | None = None) -> CollectJob:
    endpoint = EndpointSpec(urls=(server.url,), model="fake", concurrency=2)
    return CollectJob("r1", endpoint, SamplingSpec(), harness, workers=1, staging=staging)


def played(answer: Answer, ends: str) -> dict[str, Any]:
    harness = PartSpec(name="tests.e2e.harnesses:AsksTwice", params={"ends": ends})
    with FakeOpenAI(answer) as server:
        (batch,) = finished_batches(iter([pending(1)]), job_at(server, harness), 0, Earlier())
    row: dict[str, Any] = batch.to_pylist()[0]
    return row


def cost(row: dict[str, Any]) -> tuple[int, int, int | None]:
    return row["model_calls"], row["requests"], row["usage"]["total_tokens"]


def test_what_a_harness_does_not_tell_of_is_paid_all_the_same() -> None:
    row = played(lambda body, n: FakeReply("1", usage=USAGE), "well")
    assert (row["state"], row["turns"]) == ("completed", 1)
    assert cost(row) == (2, 2, 30)


def test_a_call_that_failed_is_part_of_the_cost_of_a_rollout_that_went_on() -> None:
    def first_refused(body: dict[str, Any], n: int) -> FakeReply:
        return FakeReply("1", usage=USAGE) if n else FakeReply(status=400, error={"message": "no"})

    row = played(first_refused, "well")
    assert row["state"] == "completed"
    assert cost(row) == (1, 2, 15)


@pytest.mark.parametrize(("ends", "message"), [("failed", "ValueError: no second turn"), ("cancelled", "Cancelled")])
def test_a_harness_that_fails_after_a_call_keeps_what_the_call_cost(ends: str, message: str) -> None:
    """A wait that the harness's own code gives up is a failed row, never the end of the worker."""
    row = played(lambda body, n: FakeReply("1", usage=USAGE), ends)
    assert (row["state"], row["failure_kind"]) == ("failed", "harness_error")
    assert message in row["error"]
    assert cost(row) == (1, 1, 15)


def test_workers_start_nothing_more_once_their_driver_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight then is finished and staged."""
    monkeypatch.setattr(worker, "GONE_AFTER_S", 1.5)
    staging = Staging(str(tmp_path / "job"))
    staging.beat(JobBeat(share="1/1", started_at=time.time()))
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.2)) as server:
        job = job_at(server, PartSpec(name="single_turn"), staging)
        (summary,) = collect_partition(iter([pending(100)]), job, 0).to_pylist()
        assert summary["reached"]
        assert 2 <= server.requests < 60
        assert len(staging.staged(0).keys) == server.requests
    (status,) = staging.statuses()
    assert status.stop is not None
    assert status.stop["kind"] == "driver_gone"


def test_a_report_that_cannot_be_written_ends_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(str(tmp_path / "job"))
    staging.beat(JobBeat(share="1/1", started_at=time.time()))
    put_json, refused = Folder.put_json, []

    def flaky(self: Folder, name: str, value: Any) -> None:
        if name.startswith("status") and value["done"]:
            refused.append(name)
            raise StorageError("the store does not answer")
        put_json(self, name, value)

    monkeypatch.setattr(Folder, "put_json", flaky)
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.2)) as server:
        job = job_at(server, PartSpec(name="single_turn"), staging)
        collect_partition(iter([pending(16)]), job, 0)
        assert server.requests == 16
    assert refused
    assert len(staging.staged(0).keys) == 16
