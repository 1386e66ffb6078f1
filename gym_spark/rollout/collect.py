"""Collection, as the driver sees it: start the one Spark job, show progress, adopt finished parts into `rollouts`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from gym_spark.errors import StorageError
from gym_spark.rollout.adoption import adopt_parts
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.share import Share
from gym_spark.rollout.stage import collected
from gym_spark.rollout.staging import JobBeat, Staging, Stop, part_name
from gym_spark.rollout.worker import CollectJob, numbered
from gym_spark.tables.lake import SPARK_ERRORS, Lake, first_line

T = TypeVar("T")

#: A job is stopped when more than this share of its rollouts has failed, counted over at least so many: an endpoint
#: that fails every fifth request is broken, and its GPUs cost money.
FAILED_SHARE: Final = 0.2
FAILED_BASE: Final = 200
#: Finished parts are adopted into Delta this often: fewer, larger commits keep every later read fast (SPIKES.md).
ADOPT_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.5
#: Adoptions in a row that may fail while workers go on.
ADOPTION_TRIES: Final = 3
#: After an interruption, requests in flight may take so long to be finished and staged.
GRACE_SECONDS: Final = 10.0
#: Network file systems keep what they know of a folder for up to a minute.
SEEN_WITHIN_S: Final = 90.0
#: Requests in flight that a worker has at least, if there is more than one worker.
LEAST_LANES: Final = 16


def worker_count(slots: int, concurrency: int, rollouts: int) -> int:
    """Return how many Spark tasks shall call the model.

    Some slots stay free for adoption and verification. And few workers with many requests each end at about the same
    time, which many with few do not: with a long tail of latencies the unlucky ones would work on alone.
    """
    return max(1, min(slots - max(1, slots // 8), concurrency // LEAST_LANES, rollouts))


def run_collect_job(
    lake: Lake,
    pending: DataFrame,
    job: CollectJob,
    *,
    staging: Staging,
    share: Share,
    beat: JobBeat,
    show: Callable[[Progress], None],
    follow: Callable[[], float | None],
    say: Callable[[str], None],
) -> tuple[Progress, bool]:
    """Run one collect job to its end, adopting parts as they come.

    Args:
        lake: Where `rollouts` and the staging folder are.
        pending: The rollouts to do.
        job: What the workers need.
        staging: This job's own folder, which workers and driver can reach.
        share: The part of the run that the job works on.
        beat: Tells how many rollouts are pending; told that nothing is left behind.
        show: Called about twice a second.
        follow: Called after each adoption, in a thread: verifies what is new and returns the mean reward so far.
        say: Told that an interrupted job ends what is in flight.

    Returns:
        The last progress, whose `stopped` says why if the job ended before its end; and whether every worker reached
        the staging folder: what was for the others is still to do.

    Raises:
        StorageError: Spark or the storage gave up; what was finished is adopted first, as far as possible.
    """
    job = replace(job, staging=staging)
    desk = _Desk(lake, job.run_id, staging, share, beat, follow)
    with ThreadPoolExecutor(1, thread_name_prefix="gym-spark-adopt") as behind:
        try:
            with in_background(lake.spark, collected(pending, job).collect) as (action,):
                try:
                    desk.keep(action, behind, show)
                except BaseException:
                    say(f"Stopping: what is in flight may finish within {GRACE_SECONDS:g} s; Ctrl-C again ends it now.")
                    # What is in flight is paid for. A second Ctrl-C ends the wait, and then Spark's job.
                    with contextlib.suppress(StorageError):
                        staging.order_stop(Stop("interrupted", "the job was interrupted"))
                    wait([action], timeout=GRACE_SECONDS)
                    raise
        finally:
            behind.shutdown()
            desk.adopt()  # also after Ctrl-C: what is paid for is kept
    last = desk.watch()
    show(last)
    error = action.exception()
    if error is not None:
        kept = f"{last.done} of {beat.total} rollouts are stored; continue with --resume"
        raise StorageError(f"Spark gave up collecting ({first_line(error)}); {kept}.") from error
    summaries = action.result()
    desk.adopt_all(
        part_name(summary.partition, numbered(summary.stem, number))
        for summary in summaries
        for number in range(summary.parts)
    )
    beat.is_done = True
    return last, all(summary.reached for summary in summaries)


@dataclass(slots=True)
class _Desk:
    """What the driver does for a collect job while it runs."""

    lake: Lake
    run_id: str
    staging: Staging
    share: Share
    beat: JobBeat
    follow: Callable[[], float | None]
    started: float = field(default_factory=time.monotonic)
    adopted: set[str] = field(default_factory=set)
    only_first_tries: bool = True
    mean_reward: float | None = None
    stopped: Stop | None = None

    def keep(self, action: Future[Any], behind: ThreadPoolExecutor, show: Callable[[Progress], None]) -> None:
        """Watch the Spark job to its end, and adopt parts as they come."""
        adoption: Future[None] | None = None
        due, failed = time.monotonic() + ADOPT_SECONDS, 0
        while not action.done():
            # A storage that fails for a moment is no reason to leave GPUs idle: what it holds is adopted later.
            with contextlib.suppress(StorageError):
                show(self.watch())
            if self.beat.is_lost:
                raise StorageError(
                    "This process was suspended, or could not write, for so long that another job may have taken its "
                    "rollouts over; --resume goes on."
                )
            if adoption is not None and adoption.done():
                error = adoption.exception()
                failed = 0 if error is None else failed + 1
                if error is not None and (failed > ADOPTION_TRIES or not isinstance(error, StorageError)):
                    raise error
                adoption, due = None, time.monotonic() + ADOPT_SECONDS
            if adoption is None and time.monotonic() >= due:
                adoption = behind.submit(self.adopt_and_follow)
            wait([action], timeout=POLL_SECONDS)

    def adopt(self) -> None:
        """Adopt the parts that came since the last time."""
        fresh = [part for part in self.staging.parts() if part not in self.adopted]
        if not fresh:
            return
        # Looked at after the parts: a try that repeats another's rollouts says so before it stages any. Remembered, for
        # a try that was taken for dead may come to and write its own status again.
        self.only_first_tries &= all(status.tries == 1 for status in self.staging.statuses())
        self.only_first_tries &= not self.beat.is_lost and _one_try_each([*self.adopted, *fresh])
        adopt_parts(self.lake, self.run_id, fresh, self.share, are_new=self.only_first_tries)
        self.adopted.update(fresh)

    def adopt_all(self, names: Iterable[str]) -> None:
        """Adopt what is left of these parts: a mounted folder may show late what another machine has written.

        Raises:
            StorageError: some part did not come to be seen.
        """
        missing, deadline = self.staging.missing(names), time.monotonic() + SEEN_WITHIN_S
        while missing:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{len(missing)} parts that workers wrote to '{self.staging.uri}' are not to be seen from here, "
                    f"such as '{min(missing)}'; once they are, --resume adopts them."
                )
            time.sleep(POLL_SECONDS)
            missing = self.staging.missing(missing)
        self.adopt()

    def adopt_and_follow(self) -> None:
        """Adopt, and let verification follow."""
        self.adopt()
        self.mean_reward = self.follow()

    def progress(self) -> Progress:
        return Progress.of(
            self.staging.statuses(),
            self.beat.total,
            time.monotonic() - self.started,
            mean_reward=self.mean_reward,
            stopped=self.stopped,
        )

    def watch(self) -> Progress:
        """Stop a job that cannot come to anything; returns where it stands."""
        seen = self.progress()
        if self.stopped is None and (stop := too_many_failures(seen)) is not None:
            self.stopped = stop
            self.staging.order_stop(stop)
        return seen


def too_many_failures(seen: Progress) -> Stop | None:
    """Return why a job with so many failures shall start no further rollout, or None."""
    failed = sum(seen.failures.values())
    if failed <= FAILED_SHARE * max(seen.done, FAILED_BASE):
        return None
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.failures.items()))
    return Stop("too_many_failures", f"{failed} of the first {seen.done} rollouts failed ({kinds})")


def _one_try_each(parts: list[str]) -> bool:
    """Tell whether the parts of each partition are of one try of its Spark task."""
    tries = {tuple(PurePosixPath(part).name.split("-")[:2]) for part in parts}
    return len(tries) == len({partition for partition, _ in tries})


@contextlib.contextmanager
def in_background(spark: SparkSession, *actions: Callable[[], T]) -> Iterator[list[Future[T]]]:
    """Run Spark actions, each in a thread; leaving early (Ctrl-C, an error) cancels their jobs first."""
    tag = f"gym-spark-{uuid.uuid4().hex[:12]}"
    add, cancel = _tagging(spark)

    def act(action: Callable[[], T]) -> T:
        add(tag)
        return action()

    with ThreadPoolExecutor(len(actions), thread_name_prefix="gym-spark-collect") as pool:
        running = [pool.submit(act, action) for action in actions]
        try:
            yield running
        except BaseException:
            with contextlib.suppress(*SPARK_ERRORS):
                cancel(tag)
            raise


def _tagging(spark: SparkSession) -> tuple[Callable[[str], None], Callable[[str], object]]:
    """Return how to tag the jobs of this thread, and how to cancel a tag's.

    A classic session keeps its tags per thread and finds no jobs of another's; its context does.
    """
    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect has none
        return spark.addTag, spark.interruptTag
    return context.addJobTag, context.cancelJobsWithTag
