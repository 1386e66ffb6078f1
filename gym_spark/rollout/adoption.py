"""Staged parts become rows of `rollouts`, each exactly once: while a job runs, at its end, and after a crash."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.rollout.share import Share
from gym_spark.rollout.staging import JobBeat, RunStaging, Staging, share_of
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS


def staging_of(lake: Lake, run_id: str) -> RunStaging:
    """Return the folder of a run's unadopted parts."""
    return RunStaging(f"{lake.staging_root()}/{run_id}")


def in_share(share: Share) -> Column:
    """Return the condition that a row's `shard` belongs to a share."""
    return F.col("shard") % F.lit(share.of) == F.lit(share.index - 1)


def adopt_parts(lake: Lake, run_id: str, parts: list[str], share: Share) -> None:
    """Move staged rows of a share into `rollouts`, as one commit; rows whose key is stored already are left out.

    A part can hold stored rows when an earlier driver died between its commit and the removal of its parts, or when
    Spark ran one task twice.
    """
    if not parts:
        return
    key = list(ATTEMPT_KEY)
    staged = lake.spark.read.schema(lake.read(ROLLOUTS).schema).parquet(*parts).where(in_share(share))
    named = staged.withColumn("_part", F.col("_metadata.file_path"))
    # Only keys are shuffled, never transcripts: the keys to adopt are worked out narrow and broadcast.
    stored = lake.read(ROLLOUTS, run_id=run_id).select(*key)
    winners = named.groupBy(*key).agg(F.min("_part").alias("_part")).join(stored, on=key, how="left_anti")
    lake.append(ROLLOUTS, named.join(F.broadcast(winners), on=[*key, "_part"], how="left_semi"))


@contextlib.contextmanager
def claimed(run: RunStaging, share: Share) -> Iterator[tuple[Staging, JobBeat]]:
    """Claim a share of a run for one collect job, so that nobody else pays for the same rollouts.

    The claim is written first and the others are looked at then: of two jobs that start at once, the later one leaves.

    Args:
        run: The run's staging folder.
        share: What the job will work on.

    Yields:
        The job's staging folder, and the beat that keeps the claim. An empty folder is removed at the end; one with
        parts is left to the next job, which may take it at once.

    Raises:
        ConfigError: a live job works on some of the same shards.
    """
    job = run.job(uuid.uuid4().hex[:12])
    beat = JobBeat(share=str(share), started_at=time.time())
    job.beat(beat)
    try:
        for other in run.jobs():
            theirs = other.last_beat()
            if other == job or theirs is None or not theirs.is_alive() or not share.overlaps(share_of(theirs)):
                continue
            if (theirs.started_at, other.uri) < (beat.started_at, job.uri):
                raise ConfigError(
                    f"This run is being collected by another job (shards {theirs.share}, process {theirs.pid} on "
                    f"{theirs.host}); wait for it or end it, or share the run out with --shards i/n."
                )
        yield job, beat
    finally:
        if job.parts():
            job.release(beat)
        else:
            job.remove()


def adopt_leftovers(lake: Lake, run_id: str, own: Staging, share: Share) -> None:
    """Adopt what dead jobs of this run left behind of a share, before anything is planned.

    Args:
        lake: The lake.
        run_id: The run.
        own: The folder of the job that asks, which has claimed the share.
        share: Its share.
    """
    for job in staging_of(lake, run_id).jobs():
        beat = job.last_beat()
        if job == own or not share.overlaps(share_of(beat)) or (beat is not None and beat.is_alive()):
            continue
        adopt_parts(lake, run_id, job.parts(), share)
        if share.covers(share_of(beat)):
            job.remove()
