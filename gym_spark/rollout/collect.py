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
from gym_spark.rollout.stage import collected
from gym_spark.rollout.staging import Staging, WorkerStatus
from gym_spark.rollout.worker import CollectJob
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import Lake, first_line
from gym_spark.tables.schemas import ROLLOUTS

#: Finished parts are adopted into Delta this often: fewer, larger commits keep every later read fast (SPIKES.md).
ADOPT_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a collect job stands, summed over its workers."""

    total: int
    elapsed_s: float
    done: int = 0
    in_flight: int = 0
    requests: int = 0
    retries: int = 0
    output_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    first_failure: str | None = None

    @classmethod
    def of(cls, statuses: list[WorkerStatus], total: int, elapsed_s: float) -> Progress:
        """Sum the workers' statuses."""
        failures: dict[str, int] = {}
        for status in statuses:
            for kind, count in status.failures.items():
                failures[kind] = failures.get(kind, 0) + count
        return cls(
            total=total,
            elapsed_s=elapsed_s,
            done=sum(status.done for status in statuses),
            in_flight=sum(status.in_flight for status in statuses),
            requests=sum(status.requests for status in statuses),
            retries=sum(status.retries for status in statuses),
            output_tokens=sum(status.output_tokens for status in statuses),
            failures=failures,
            first_failure=next((status.first_failure for status in statuses if status.first_failure), None),
        )


def staging_of(lake: Lake, run_id: str) -> Staging:
    """Return the folder of a run's unadopted parts."""
    return Staging(f"{lake.staging_root()}/{run_id}")


def adopt_parts(lake: Lake, run_id: str, parts: list[str]) -> None:
    """Move staged rows into `rollouts`, as one commit; rows whose key is stored already are left out.

    A part can hold stored rows when an earlier driver died between its commit and the removal of its parts, or when
    Spark ran one task twice.
    """
    if not parts:
        return
    key = list(ATTEMPT_KEY)
    staged = lake.spark.read.schema(lake.read(ROLLOUTS).schema).parquet(*parts)
    named = staged.withColumn("_part", F.col("_metadata.file_path"))
    # Only keys are shuffled, never transcripts: the keys to adopt are worked out narrow and broadcast.
    stored = lake.read(ROLLOUTS, run_id=run_id).select(*key)
    winners = named.groupBy(*key).agg(F.min("_part").alias("_part")).join(stored, on=key, how="left_anti")
    lake.append(ROLLOUTS, named.join(F.broadcast(winners), on=[*key, "_part"], how="left_semi"))


def adopt_leftovers(lake: Lake, run_id: str) -> None:
    """Adopt what an earlier job of this run left in its staging folder, then remove the folder."""
    left = staging_of(lake, run_id)
    adopt_parts(lake, run_id, left.parts())
    left.remove()


def free_slots(spark: SparkSession) -> int:
    """Return how many Spark tasks run at once, by looking: under Spark Connect there is no context to ask."""
    return spark.range(1000).select(F.spark_partition_id()).distinct().count()


def worker_count(slots: int, concurrency: int, rollouts: int) -> int:
    """Return how many Spark tasks shall call the model: some slots stay free for adoption and verification."""
    return max(1, min(slots - max(1, slots // 8), concurrency, rollouts))


def run_collect_job(
    lake: Lake, pending: DataFrame, job: CollectJob, *, total: int, show: Callable[[Progress], None]
) -> Progress:
    """Run one collect job to its end, adopting parts as they come.

    Args:
        lake: Where `rollouts` and the staging folder are.
        pending: The rollouts to do.
        job: What the workers need; its staging folder is this job's own.
        total: Rows in `pending`, for the progress.
        show: Called about twice a second.

    Returns:
        The last progress.

    Raises:
        StorageError: Spark gave up; what was finished is adopted first.
    """
    started, adopted = time.monotonic(), set[str]()
    next_adoption = started + ADOPT_SECONDS

    def adopt() -> None:
        fresh = [part for part in job.staging.parts() if part not in adopted]
        adopt_parts(lake, job.run_id, fresh)
        adopted.update(fresh)

    def progress() -> Progress:
        return Progress.of(job.staging.statuses(), total, time.monotonic() - started)

    try:
        with _in_background(lake.spark, collected(pending, job)) as action:
            while not action.done():
                time.sleep(POLL_SECONDS)
                show(progress())
                if time.monotonic() >= next_adoption:
                    adopt()
                    next_adoption = time.monotonic() + ADOPT_SECONDS
    finally:
        adopt()  # also after Ctrl-C: what is paid for is kept
    last = progress()
    show(last)
    error = action.exception()
    if error is not None:
        kept = f"{last.done} of {total} rollouts are stored; continue with --resume"
        raise StorageError(f"Spark gave up collecting ({first_line(error)}); {kept}.") from error
    job.staging.remove()
    return last


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
