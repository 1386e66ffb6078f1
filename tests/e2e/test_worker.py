"""One worker's partition against a server on loopback, without Spark: what it counts, and when it stops."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gym_spark.config import EndpointSpec, PartSpec, RetrySpec, SamplingSpec
from gym_spark.endpoint.masking import add_secret
from gym_spark.errors import RolloutError, StorageError
from gym_spark.rollout import reports, worker
from gym_spark.rollout.folder import Folder
from gym_spark.rollout.records import PENDING_SCHEMA, Pending, failed
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
        job = replace(job_at(server, harness), rollout_timeout_s=0.5)
        (batch,) = finished_batches(iter([pending(1)]), job, 0, Earlier())
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


@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        ("failed", "harness_error", "ValueError: no second turn"),
        ("cancelled", "harness_error", "Cancelled"),
        ("never", "rollout_timeout", "rollout_timeout_s, 0.5 s"),
    ],
)
def test_a_harness_that_fails_after_a_call_keeps_what_the_call_cost(ends: str, kind: str, message: str) -> None:
    """A wait that the harness's own code gives up, or never ends, is a failed row and never the end of the worker."""
    row = played(lambda body, n: FakeReply("1", usage=USAGE), ends)
    assert (row["state"], row["failure_kind"]) == ("failed", kind)
    assert message in row["error"]
    assert cost(row) == (1, 1, 15)


def test_workers_start_nothing_more_once_their_driver_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight then is finished and staged."""
    monkeypatch.setattr(reports, "GONE_AFTER_S", 1.5)
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


def test_a_part_that_cannot_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is paid for: no second try of the Spark task asks again."""
    staging = Staging(str(tmp_path / "job"))
    staging.beat(JobBeat(share="1/1", started_at=time.time()))
    put_part, refused = Staging.put_part, []

    def flaky(self: Staging, partition: int, name: str, batch: pa.RecordBatch) -> None:
        if len(refused) < 2:
            refused.append(name)
            raise StorageError("the store does not answer")
        put_part(self, partition, name, batch)

    monkeypatch.setattr(Staging, "put_part", flaky)
    with FakeOpenAI(lambda body, n: "1") as server:
        collect_partition(iter([pending(8)]), job_at(server, PartSpec(name="single_turn"), staging), 0)
        assert server.requests == 8
    assert len(refused) == 2
    assert len(staging.staged(0).keys) == 8


def test_an_endpoint_that_is_given_up_ends_the_worker_and_writes_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """In flight when the endpoint went away, two rollouts fail; the other hundreds wait for a resume."""
    harness = PartSpec(name="single_turn")
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.02)) as server:
        endpoint = EndpointSpec(
            urls=(server.url,), model="fake", concurrency=2, retries={"unreachable": RetrySpec(window_s=1.0)}
        )
        job = CollectJob("r1", endpoint, SamplingSpec(), harness, workers=1)
        rows: list[dict[str, Any]] = []
        for batch in finished_batches(iter([pending(500)]), job, 0, Earlier()):
            if not rows:
                server.close_port()
            rows += batch.to_pylist()
    states = Counter(row["state"] for row in rows)
    assert 0 < states["completed"] < 400
    assert states["failed"] <= 4, states


def test_one_refusal_that_looks_like_a_wrong_key_is_one_failed_row() -> None:
    """A firewall refuses one prompt with 403; a key that stopped working refuses all, and ends the worker soon."""

    def firewall(body: dict[str, Any], n: int) -> FakeReply:
        return FakeReply(status=403, error={"message": "blocked"}) if n == 20 else FakeReply("1")

    def expired(body: dict[str, Any], n: int) -> FakeReply:
        return FakeReply(status=401, error={"message": "expired"}) if n >= 20 else FakeReply("1")

    for answer, most in ((firewall, 1), (expired, worker.FATAL_ROW + 1)):
        with FakeOpenAI(answer) as server:
            job = job_at(server, PartSpec(name="single_turn"))
            batches = list(finished_batches(iter([pending(60)]), job, 0, Earlier()))
        states = Counter(row["state"] for batch in batches for row in batch.to_pylist())
        assert 0 < states["failed"] <= most
        assert states["completed"] == (59 if answer is firewall else 20)


def test_a_secret_in_a_harness_error_is_masked() -> None:
    add_secret("sk-very-secret-key")
    error = RolloutError("harness_error", "ValueError: sk-very-secret-key", stage="harness")
    row = failed("r1", Pending("a", 0, 0, 0, 1, "{}"), error, datetime.now(UTC))
    assert row["error"] == "ValueError: ***"
