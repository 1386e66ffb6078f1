"""Who collects a share of a run: a claim that is kept by beating, so that nobody else pays for the same rollouts."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Final

from gym_spark.errors import BusyError, StorageError
from gym_spark.rollout.share import Share
from gym_spark.rollout.staging import DEAD_AFTER_S, JobBeat, RunStaging, Staging, share_of

#: How often a job shows that it lives.
BEAT_SECONDS: Final = 1.0


@contextlib.contextmanager
def claimed(run: RunStaging, share: Share) -> Iterator[tuple[Staging, JobBeat]]:
    """Claim a share of a run for one collect job.

    The claim is written first and the others are looked at then: of two jobs that start at once, the later one leaves.

    Args:
        run: The run's staging folder.
        share: What the job will work on.

    Yields:
        The job's staging folder, and the beat that keeps the claim. An empty folder is removed at the end; one with
        parts is left to the next job, which may take it at once.

    Raises:
        BusyError: a live job works on some of the same shards.
    """
    job = run.job(uuid.uuid4().hex[:12])
    beat = JobBeat(share=str(share), started_at=time.time())
    job.beat(beat)
    over = threading.Event()
    # In a thread of its own: planning, the start of a model server and a large adoption take longer than a claim lasts.
    beating = threading.Thread(target=_keep_beating, args=(job, beat, over), name="gym-spark-beat", daemon=True)
    beating.start()
    try:
        check_claim(run, job, beat)
        yield job, beat
    finally:
        over.set()
        beating.join()
        if beat.is_lost:
            pass  # the folder belongs to whoever took over
        elif not beat.is_done and job.parts():
            # A full disk takes no release: the claim then ends with this process, and what went wrong is told.
            with contextlib.suppress(StorageError):
                job.release(beat)
        else:
            job.remove()


def check_claim(run: RunStaging, job: Staging, beat: JobBeat) -> None:
    """Stop if another job has claimed some of the same shards earlier.

    To be asked again before the first request: on a slow storage an earlier claim may show only by then.

    Raises:
        BusyError: one has.
    """
    share = share_of(beat)
    for other in run.jobs():
        theirs = other.last_beat()
        if other == job or theirs is None or not theirs.is_alive() or not share.overlaps(share_of(theirs)):
            continue
        if (theirs.started_at, other.uri) < (beat.started_at, job.uri):
            raise BusyError(
                f"This run is being collected by another job (shards {theirs.share}, process {theirs.pid} on "
                f"{theirs.host}); wait for it or end it, or share the run out with --shards i/n."
            )


def is_at_work(run: RunStaging) -> bool:
    """Tell whether some live job still collects for the run."""
    return any(beat is not None and beat.is_alive() for beat in (job.last_beat() for job in run.jobs()))


def _keep_beating(job: Staging, beat: JobBeat, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        # The disk may have room again, and the storage answer again, before the claim is given up for old.
        with contextlib.suppress(StorageError):
            if time.time() - beat.updated_at > DEAD_AFTER_S or job.last_beat() is None:
                # The process was suspended, or could not write for so long: others took it for dead.
                beat.is_lost = True
                return
            job.beat(beat)
