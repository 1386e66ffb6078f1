"""The staging folder: who is alive, what an earlier try left, and storage that fails is told in our words."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from gym_spark.config import BudgetSpec, EndpointSpec
from gym_spark.errors import BusyError, StorageError
from gym_spark.rollout import retake, staging
from gym_spark.rollout.claims import check_claim, claimed
from gym_spark.rollout.folder import Folder
from gym_spark.rollout.records import to_batch
from gym_spark.rollout.reports import Reports
from gym_spark.rollout.retake import GONE_AFTER_S, SILENT_S, Silence, still_working, taken_over
from gym_spark.rollout.share import WHOLE, Share
from gym_spark.rollout.spending import shared_out
from gym_spark.rollout.staging import DEAD_AFTER_S, JobBeat, RunStaging, Staging, WorkerStatus
from tests.spark.frames import failure, rollout


class Clock:
    """A clock that sleeping moves on; something may happen whenever it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.slept = 0.0
        monkeypatch.setattr(retake.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(retake.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def job(tmp_path: Path) -> Staging:
    made = Staging(str(tmp_path / "job"))
    made.beat(JobBeat("1/1", time.time()))
    return made


def test_a_process_that_is_gone_is_dead_at_once_only_where_processes_can_be_seen() -> None:
    """P48 and two containers of one host: a number that is missing here may be a live process there."""
    gone = 2**22 + 1  # above what Linux gives out
    beat = JobBeat("1/1", time.time(), updated_at=time.time(), pid=gone)
    assert not beat.is_alive()
    beat.machine = "another view of the same host"
    assert beat.is_alive()
    beat.updated_at -= DEAD_AFTER_S
    assert not beat.is_alive()
    assert JobBeat("1/1", 0.0, updated_at=time.time(), pid=os.getpid()).is_alive()


def test_a_worker_without_the_drivers_beat_does_not_share_its_folder(tmp_path: Path) -> None:
    """A folder of that name on the worker's own disk, or one that cannot be written: the worker does nothing."""
    assert taken_over(Staging(str(tmp_path / "own")), 0) is None
    assert not (tmp_path / "own").exists()


def test_a_worker_that_cannot_write_does_not_share_the_folder(job: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Folder, name: str, data: object) -> None:
        raise StorageError(f"{name}: read-only file system")

    monkeypatch.setattr(Folder, "put", refuse)
    assert taken_over(job, 0) is None


def test_a_first_try_shows_itself_before_it_sends_anything(job: Staging) -> None:
    earlier = taken_over(job, 3)
    assert earlier is not None
    assert (earlier.keys, earlier.status.tries) == (frozenset(), 1)
    assert job.status_of(3) == WorkerStatus(3)


def test_a_second_try_waits_for_silence_and_starts_from_what_is_staged(
    job: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures that were not staged are no failures of the job; what they cost is."""
    clock = Clock(monkeypatch)
    job.put_part(0, "a-0", to_batch([rollout("x"), failure("y")]))
    job.put_status(WorkerStatus(0, done=5, failures={"timeout": 3}, requests=9, output_tokens=70, is_over=True))
    earlier = taken_over(job, 0)
    assert clock.slept >= SILENT_S
    assert earlier is not None
    status = earlier.status
    assert {key[0] for key in earlier.keys} == {"x", "y"}
    assert (status.tries, status.done, status.failures) == (2, 2, {"timeout": 1})
    staged = job.staged(0)
    assert (status.requests, status.wasted) == (9, 9 - staged.requests)
    assert (status.output_tokens, status.is_over) == (70, False)
    assert staged.failures == Counter(timeout=1)


def test_parts_after_the_last_status_are_paid_for_too(job: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    job.put_part(0, "a-0", to_batch([rollout("x", usage={"input_tokens": 30, "output_tokens": 50})]))
    job.put_status(WorkerStatus(0))
    earlier = taken_over(job, 0)
    assert earlier is not None
    assert (earlier.status.input_tokens, earlier.status.output_tokens) == (30, 50)
    assert (earlier.status.requests, earlier.status.wasted) == (job.staged(0).requests, 0)


def test_a_silence_ends_with_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    silence = Silence()
    assert silence.seconds(1) == 0
    clock.sleep(3)
    assert silence.seconds(1) == 3
    assert silence.seconds(2) == 0


def test_workers_that_outlive_their_driver_are_waited_for(job: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our own clock at once; with another machine's, which may be wrong, by watching."""
    clock = Clock(monkeypatch)
    at = time.time()
    here, there = JobBeat("1/1", at), JobBeat("1/1", at, machine="elsewhere")
    job.put_status(WorkerStatus(0, in_flight=7, updated_at=at))
    assert still_working(job, here, {}) == 7
    job.put_status(WorkerStatus(0, in_flight=7, updated_at=at - SILENT_S))
    assert still_working(job, here, {}) == 0
    silences: dict[int, Silence] = {}
    assert still_working(job, there, silences) == 7
    clock.sleep(SILENT_S)
    assert still_working(job, there, silences) == 0
    job.put_status(WorkerStatus(0, in_flight=7, updated_at=at - SILENT_S - GONE_AFTER_S))
    assert still_working(job, there, {}) == 0
    job.put_status(WorkerStatus(0, is_over=True, updated_at=at))
    assert still_working(job, here, {}) == 0


def test_this_machine_has_one_name() -> None:
    assert staging.this_machine() == staging.this_machine()
    assert JobBeat("1/1", 0.0).is_here


def test_storage_that_fails_is_told_in_our_words(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "x.parquet").write_text("no parquet")
    assert folder.get_json("missing.json") is None
    for act in (
        lambda: folder.get_json("torn.json"),
        lambda: folder.get_json("folder.json"),
        lambda: folder.read_columns("x.parquet", ["a"]),
        lambda: folder.put_json("torn.json/below.json", 1),
    ):
        with pytest.raises(StorageError, match=rf"^'{tmp_path}.*' cannot be (read|written): "):
            act()


def test_only_an_unknown_scheme_is_no_folder() -> None:
    assert Folder("/anywhere").is_known
    assert Folder("gs://bucket/folder").is_known
    assert not Folder("wasbs://container@account/folder").is_known
    assert not Folder("hdfs://host:1/folder").is_known  # no libhdfs here


def test_jobs_that_share_a_run_out_share_its_limits() -> None:
    whole = EndpointSpec(
        concurrency=10,
        requests_per_minute=90,
        tokens_per_minute=900,
        budget=BudgetSpec(money=3, tokens=1000),
    )
    part = shared_out(whole, Share(2, 3))
    assert (part.concurrency, part.requests_per_minute, part.tokens_per_minute) == (3, 30, 300)
    assert part.budget == BudgetSpec(money=1, tokens=333)
    assert shared_out(whole, WHOLE) == whole
    assert shared_out(EndpointSpec(), Share(1, 2)) == EndpointSpec(concurrency=16)


def test_of_two_claims_the_later_one_leaves_even_if_it_saw_nothing_at_first(tmp_path: Path) -> None:
    """On a slow storage the earlier claim shows only after the later job has looked: it looks again."""
    run = RunStaging(str(tmp_path))
    with claimed(run, WHOLE) as (job, beat):
        check_claim(run, job, beat)
        earlier = run.job("earlier")
        earlier.beat(JobBeat("2/3", beat.started_at - 1, pid=os.getpid()))
        with pytest.raises(BusyError, match=r"another job \(shards 2/3"):
            check_claim(run, job, beat)
        earlier.release(JobBeat("2/3", beat.started_at - 1, pid=os.getpid()))
        check_claim(run, job, beat)


def test_a_job_that_was_suspended_knows_that_it_lost_its_claim(tmp_path: Path) -> None:
    """Others took it for dead, and its folder for theirs: it neither beats nor tidies up again."""
    run = RunStaging(str(tmp_path))
    with claimed(run, WHOLE) as (job, beat):
        beat.updated_at -= DEAD_AFTER_S + 1
        deadline = time.monotonic() + 10
        while not beat.is_lost and time.monotonic() < deadline:
            time.sleep(0.05)
        assert beat.is_lost
    assert job.names() == ["job.json"]


def test_what_another_version_wrote_is_read(job: Staging) -> None:
    job.put_json("status-00003.json", {"partition": 3, "done": 4, "of_a_later_version": 1})
    assert job.status_of(3) == WorkerStatus(3, done=4)


def test_a_try_that_was_overtaken_starts_nothing_more(job: Staging) -> None:
    told = Reports(job, WorkerStatus(0))
    job.put_status(WorkerStatus(0, tries=2))
    told.close(WorkerStatus(0))
    assert told.order is not None
    assert told.order.kind == "overtaken"
    assert job.status_of(0) == WorkerStatus(0, tries=2)
