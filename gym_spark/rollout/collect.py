"""Collection, as the driver sees it: start the one Spark job, show progress, adopt finished parts into `rollouts`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gym_spark.errors import StorageError
from gym_spark.rollout.adoption import adopt_parts
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.share import Share
from gym_spark.rollout.stage import collected
from gym_spark.rollout.staging import JobBeat, Stop
from gym_spark.rollout.worker import CollectJob
from gym_spark.tables.lake import Lake, first_line

#: A job is stopped when more than this share of its rollouts has failed, counted over at least so many: an endpoint
#: that fails every fifth request is broken, and its GPUs cost money.
FAILED_SHARE: Final = 0.2
FAILED_BASE: Final = 200
#: Finished parts are adopted into Delta this often: fewer, larger commits keep every later read fast (SPIKES.md).
ADOPT_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.5


def free_slots(spark: SparkSession) -> int:
    """Return how many Spark tasks run at once, by looking: under Spark Connect there is no context to ask."""
    return spark.range(1000).select(F.spark_partition_id()).distinct().count()


def worker_count(slots: int, concurrency: int, rollouts: int) -> int:
    """Return how many Spark tasks shall call the model: some slots stay free for adoption and verification."""
    return max(1, min(slots - max(1, slots // 8), concurrency, rollouts))


def run_collect_job(
    lake: Lake,
    pending: DataFrame,
    job: CollectJob,
    *,
    share: Share,
    beat: JobBeat,
    show: Callable[[Progress], None],
    follow: Callable[[], float | None],
) -> Progress:
    """Run one collect job to its end, adopting parts as they come.

    Args:
        lake: Where `rollouts` and the staging folder are.
        pending: The rollouts to do.
        job: What the workers need; its staging folder is this job's own.
        share: The part of the run that the job works on.
        beat: Keeps the job's claim on it; tells how many rollouts are pending.
        show: Called about twice a second.
        follow: Called after each adoption, in a thread: verifies what is new and returns the mean reward so far.

    Returns:
        The last progress; `stopped` says why if the job ended before its end.

    Raises:
        StorageError: Spark or the storage gave up; what was finished is adopted first, as far as possible.
    """
    desk = _Desk(lake, job, share, beat, follow)
    with ThreadPoolExecutor(1, thread_name_prefix="gym-spark-adopt") as behind:
        try:
            with _in_background(lake.spark, collected(pending, job)) as action:
                adoption: Future[None] | None = None
                due = time.monotonic() + ADOPT_SECONDS
                while not action.done():
                    show(desk.watch())
                    if adoption is not None and adoption.done():
                        adoption.result()
                        adoption, due = None, time.monotonic() + ADOPT_SECONDS
                    if adoption is None and time.monotonic() >= due:
                        adoption = behind.submit(desk.adopt_and_follow)
                    time.sleep(POLL_SECONDS)
        finally:
            behind.shutdown()
            desk.adopt()  # also after Ctrl-C: what is paid for is kept
    last = desk.progress()
    show(last)
    error = action.exception()
    if error is not None:
        kept = f"{last.done} of {beat.total} rollouts are stored; continue with --resume"
        raise StorageError(f"Spark gave up collecting ({first_line(error)}); {kept}.") from error
    job.staging.remove()
    return last


@dataclass(slots=True)
class _Desk:
    """What the driver does for a collect job while it runs."""

    lake: Lake
    job: CollectJob
    share: Share
    beat: JobBeat
    follow: Callable[[], float | None]
    started: float = field(default_factory=time.monotonic)
    adopted: set[str] = field(default_factory=set)
    mean_reward: float | None = None
    stopped: Stop | None = None

    def adopt(self) -> None:
        """Adopt the parts that came since the last time."""
        fresh = [part for part in self.job.staging.parts() if part not in self.adopted]
        adopt_parts(self.lake, self.job.run_id, fresh, self.share)
        self.adopted.update(fresh)

    def adopt_and_follow(self) -> None:
        """Adopt, and let verification follow."""
        self.adopt()
        self.mean_reward = self.follow()

    def progress(self) -> Progress:
        return Progress.of(
            self.job.staging.statuses(),
            self.beat.total,
            time.monotonic() - self.started,
            mean_reward=self.mean_reward,
            stopped=self.stopped,
        )

    def watch(self) -> Progress:
        """Show that the driver lives, and stop a job that cannot come to anything; returns where it stands."""
        self.job.staging.beat(self.beat)
        seen = self.progress()
        failed = sum(seen.failures.values())
        if self.stopped is None and failed > FAILED_SHARE * max(seen.done, FAILED_BASE):
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.failures.items()))
            self.stopped = Stop("too_many_failures", f"{failed} of the first {seen.done} rollouts failed ({kinds})")
            self.job.staging.order_stop(self.stopped)
        return seen


@contextlib.contextmanager
def _in_background(spark: SparkSession, frame: DataFrame) -> Iterator[Future[object]]:
    """Run the frame's one action in a thread; leaving early (Ctrl-C, an error) cancels the Spark job first."""
    tag = f"gym-spark-{uuid.uuid4().hex[:12]}"

    def act() -> object:
        spark.addTag(tag)
        return frame.collect()

    with ThreadPoolExecutor(1, thread_name_prefix="gym-spark-collect") as pool:
        action = pool.submit(act)
        try:
            yield action
        except BaseException:
            with contextlib.suppress(PySparkException):
                spark.interruptTag(tag)
            raise
