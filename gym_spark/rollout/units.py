"""Collection where workers reach no folder that the driver sees: units of some seconds, each one commit.

The fallback of DESIGN.md §3. A unit is a Spark job whose rows go straight into `rollouts`; several are in flight, so
that the stragglers of one do not hold up the next. A kill loses what the open units have done, not a second's worth.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.endpoint.failures import FATAL_KINDS
from gym_spark.rollout.adoption import in_share
from gym_spark.rollout.collect import POLL_SECONDS, in_background, too_many_failures
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.share import Share
from gym_spark.rollout.spending import spent_before
from gym_spark.rollout.stage import streamed
from gym_spark.rollout.staging import JobBeat, Stop
from gym_spark.rollout.worker import CollectJob
from gym_spark.tables.keys import ATTEMPT_KEY, ROLLOUT_KEY
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS

#: A unit's size is chosen so that it takes about so long.
UNIT_SECONDS: Final = 20.0
#: Units in flight (SPIKES.md: more gain little).
LANES: Final = 4
#: Rollouts of a lane's first unit, for each request that it may have in flight; and the most that a unit grows at once.
_FIRST: Final = 4
_GROWTH: Final = 4.0


def run_units(
    lake: Lake,
    pending: DataFrame,
    job: CollectJob,
    *,
    share: Share,
    beat: JobBeat,
    show: Callable[[Progress], None],
    follow: Callable[[], float | None],
) -> Progress:
    """Run one collect job to its end, a unit at a time.

    Args:
        lake: Where `rollouts` is.
        pending: The rollouts to do (`PENDING_SCHEMA`), the same ones whatever is stored later.
        job: What the workers need.
        share: The part of the run that the job works on.
        beat: Tells how many rollouts are pending.
        show: Called about twice a second.
        follow: Called after commits, in a thread: verifies what is new and returns the mean reward so far.

    Returns:
        The last progress; `stopped` says why if the job ended before its end.

    Raises:
        StorageError: Spark or the storage gave up; what was committed stays.
    """
    if job.endpoint.budget is None:
        # At least two units side by side, so that one commits while another asks.
        job = replace(job, workers=max(job.workers, min(2, job.endpoint.concurrency)))
        count = min(LANES, job.workers)
    else:
        # A budget is kept by knowing what is spent: units side by side would each spend the rest.
        count = 1
    board = _Board(lake, pending, job, share, beat.total)
    lanes = [_Lane(board, index, count) for index in range(count)]
    with (
        ThreadPoolExecutor(1, thread_name_prefix="gym-spark-follow") as behind,
        in_background(lake.spark, *(lane.run for lane in lanes)) as running,
    ):
        try:
            following: Future[float | None] = behind.submit(lambda: None)
            followed = 0
            while not all(lane.done() for lane in running):
                if following.done():
                    board.mean_reward = following.result()
                    if board.commits > followed:
                        followed = board.commits
                        following = behind.submit(follow)
                show(board.progress)
                wait(running, timeout=POLL_SECONDS)
        finally:
            board.over.set()
        for lane in running:
            lane.result()
    last = board.look()
    show(last)
    return last


@dataclass(slots=True)
class _Board:
    """What the lanes share: the work, and how far it has come by what is stored."""

    lake: Lake
    pending: DataFrame
    job: CollectJob
    share: Share
    total: int
    started: float = field(default_factory=time.monotonic)
    commits: int = 0
    mean_reward: float | None = None
    stopped: Stop | None = None
    over: threading.Event = field(default_factory=threading.Event)
    progress: Progress = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.progress = Progress(total=self.total, elapsed_s=0.0)

    def left(self) -> DataFrame:
        """Return the rollouts of this job that are not stored yet."""
        stored = self.lake.read(ROLLOUTS, run_id=self.job.run_id).select(*ATTEMPT_KEY)
        return self.pending.join(stored, on=list(ATTEMPT_KEY), how="left_anti")

    def look(self) -> Progress:
        """Count what this job has stored, and decide whether it goes on."""
        mine = self.lake.read(ROLLOUTS, run_id=self.job.run_id).join(
            self.pending.select(*ATTEMPT_KEY), on=list(ATTEMPT_KEY), how="left_semi"
        )
        counts = mine.groupBy("failure_kind").agg(
            F.count("*").alias("rollouts"),
            F.sum("requests").alias("requests"),
            F.sum("usage.output_tokens").alias("output_tokens"),
            F.min("error").alias("error"),
        )
        rows = counts.collect()
        failures = {row.failure_kind: row.rollouts for row in rows if row.failure_kind is not None}
        progress = Progress(
            total=self.total,
            elapsed_s=time.monotonic() - self.started,
            done=sum(row.rollouts for row in rows),
            requests=sum(row.requests for row in rows),
            output_tokens=sum(row.output_tokens or 0 for row in rows),
            failures=failures,
            first_failure=next((f"{row.failure_kind}: {row.error}" for row in rows if row.failure_kind), None),
            mean_reward=self.mean_reward,
        )
        fatal = next((kind for kind in sorted(failures) if kind in FATAL_KINDS), None)
        if fatal is not None:
            self.stopped = Stop("endpoint_refuses", progress.first_failure or fatal)
        self.stopped = self.stopped or too_many_failures(progress)
        self.progress = replace(progress, stopped=self.stopped)
        return self.progress

    def committed(self, *, is_whole: bool) -> None:
        """Note a commit. Workers that end a unit before its end say why to nobody: it is concluded."""
        with self.lock:
            self.commits += 1
            seen = self.look()
            if is_whole or self.stopped is not None:
                return
            if self.job.endpoint.budget is not None:
                self.stopped = Stop("budget_exhausted", "the next rollout would pass the budget")
            else:
                self.stopped = Stop("endpoint_down", f"no replica has answered for long ({seen.first_failure})")


@dataclass(slots=True)
class _Lane:
    """Does the rollouts of one slice of the keys, unit after unit."""

    board: _Board
    index: int
    count: int

    def run(self) -> None:
        """Work until nothing is left, or the job is stopped."""
        board = self.board
        workers = range(self.index, board.job.workers, self.count)
        slots = sum(map(board.job.share, workers))
        size, left = _FIRST * slots, self._left().count()
        while left and board.stopped is None and not board.over.is_set():
            began = time.monotonic()
            # The keys of one unit pass through the driver: a frame that reads `rollouts` in order to append to it
            # conflicts with every other writer, and what the loser has paid for is gone.
            keys = self._left().select(*ATTEMPT_KEY).limit(size).toArrow()
            unit = board.lake.spark.createDataFrame(keys).join(board.pending, on=list(ATTEMPT_KEY))
            board.lake.append_once(ROLLOUTS, streamed(unit, self._job(), workers=workers))
            took, before, left = time.monotonic() - began, left, self._left().count()
            board.committed(is_whole=before - left >= min(size, before))
            size = max(slots, int(size * min(_GROWTH, UNIT_SECONDS / took)))

    def _left(self) -> DataFrame:
        return self.board.left().where(F.pmod(F.xxhash64(*ROLLOUT_KEY), F.lit(self.count)) == self.index)

    def _job(self) -> CollectJob:
        if self.board.job.endpoint.budget is None:
            return self.board.job
        stored = self.board.lake.read(ROLLOUTS, run_id=self.board.job.run_id).where(in_share(self.board.share))
        return replace(self.board.job, spent=spent_before(stored, self.board.job.endpoint))
