"""Staged parts become rows of `rollouts`, each exactly once: while a job runs, at its end, and after a crash."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.rollout.place import staging_of
from gym_spark.rollout.retake import LOOK_S, Silence, still_working
from gym_spark.rollout.share import Share
from gym_spark.rollout.staging import JobBeat, Staging, Stop, share_of
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import Lake
from gym_spark.tables.linked import link_files
from gym_spark.tables.schemas import ROLLOUTS

#: Parts that one task reads and makes one file of: it bounds the file (a part has 8 MB of text, or one rollout), and
#: the time that opening them takes on an object store.
PARTS_PER_FILE: Final = 32
#: Parts of one commit: it bounds the keys that are broadcast. Only a crash leaves so many.
PARTS_PER_COMMIT: Final = 2000
#: Mean size of parts, uncompressed, from which on they are files good enough for the table until it is compacted.
LINKED_BYTES: Final = 1 << 20


def in_share(share: Share) -> Column:
    """Return the condition that a row's `shard` belongs to a share."""
    return F.col("shard") % F.lit(share.of) == F.lit(share.index - 1)


def adopt_parts(lake: Lake, run_id: str, parts: Sequence[str], share: Share, *, are_new: bool = False) -> None:
    """Move staged rows of a share into `rollouts`; rows whose key is stored already are left out.

    One commit, unless there are very many parts. A part can hold stored rows when an earlier driver died between its
    commit and the removal of its parts, or when Spark ran one task twice.

    Args:
        lake: The lake.
        run_id: The run.
        parts: Paths of the parts.
        share: The part of the run whose rows are taken.
        are_new: All rows are of the share, none is stored already, and none is there twice.
    """
    if are_new and _linked(lake, run_id, [Path(part) for part in parts]):
        return
    for start in range(0, len(parts), PARTS_PER_COMMIT):
        chunk = parts[start : start + PARTS_PER_COMMIT]
        lake.append(ROLLOUTS, _new_rows(lake, run_id, chunk, share).coalesce(math.ceil(len(chunk) / PARTS_PER_FILE)))


def _linked(lake: Lake, run_id: str, parts: Sequence[Path]) -> bool:
    """Make the parts themselves files of the table, where they are of some size; tell whether that was done.

    Small ones come where rollouts are slow. They would be very many files in the end, and there is time to join them.
    """
    root = lake.location.folder
    if root is None or not parts or not all(part.exists() for part in parts):
        return False
    size = sum(part.stat().st_size for part in parts) / len(parts)
    return size >= LINKED_BYTES and link_files(root, ROLLOUTS, parts, run_id=run_id)


def _new_rows(lake: Lake, run_id: str, parts: Sequence[str], share: Share) -> DataFrame:
    """Return the staged rows of a share whose keys are not stored yet, each key once; only keys are ever shuffled."""
    key = list(ATTEMPT_KEY)
    rows = lake.read(ROLLOUTS, run_id=run_id)
    staged = lake.spark.read.schema(rows.schema).parquet(*parts).where(in_share(share))
    named = staged.withColumn("_part", F.col("_metadata.file_path"))
    keys = named.select(*key, "_part")
    # The staged keys are the few: a run's stored ones are streamed past them.
    stored = rows.select(*key).join(F.broadcast(keys.select(*key)), on=key, how="left_semi")
    if keys.select(*key).unionAll(stored).groupBy(*key).count().where(F.col("count") > 1).isEmpty():
        # The usual case. The append reads nothing of its own table, so it never conflicts with another writer.
        return staged
    winners = keys.groupBy(*key).agg(F.min("_part").alias("_part")).join(stored, on=key, how="left_anti")
    return named.join(F.broadcast(winners), on=[*key, "_part"], how="left_semi").drop("_part")


def adopt_leftovers(lake: Lake, run_id: str, own: Staging, share: Share, say: Callable[[str], None]) -> None:
    """Adopt what dead jobs of this run left behind of a share, before anything is planned.

    Waits while workers of theirs are still alive: what those have in flight is paid for.

    Args:
        lake: The lake.
        run_id: The run.
        own: The folder of the job that asks, which has claimed the share.
        share: Its share.
        say: Told what is waited for.
    """
    for job in staging_of(lake, run_id).jobs():
        beat = job.last_beat()
        if job == own or not share.overlaps(share_of(beat)) or (beat is not None and beat.is_alive()):
            continue
        if beat is not None:
            _wait_for_workers(job, beat, say)
        adopted: set[str] = set()
        while fresh := [part for part in job.parts() if part not in adopted]:  # some may come late
            adopt_parts(lake, run_id, fresh, share)
            adopted.update(fresh)
        if share.covers(share_of(beat)):
            job.remove()


def _wait_for_workers(job: Staging, beat: JobBeat, say: Callable[[str], None]) -> None:
    job.order_stop(Stop("driver_gone", "another job takes over"))
    silences: dict[int, Silence] = {}
    told = False
    while in_flight := still_working(job, beat, silences):
        if not told:
            say(f"Waiting for workers of an interrupted job, which still have {in_flight} rollouts in flight.")
            told = True
        time.sleep(LOOK_S)
