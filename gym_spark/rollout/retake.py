"""A Spark task that runs again: what its earlier try left behind, and whether that one is really dead. No pyspark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from gym_spark.errors import StorageError
from gym_spark.rollout.staging import JobBeat, Staged, Staging, WorkerStatus

#: A worker writes its status every second; one that has not for so long is dead.
SILENT_S: Final = 5.0
#: A driver beats every second; workers that have not heard of it for so long start nothing more. It is given up later
#: (`staging.DEAD_AFTER_S`), so that nobody else begins while they still do.
GONE_AFTER_S: Final = 30.0
LOOK_S: Final = 0.5


@dataclass(slots=True)
class Silence:
    """How long something has stayed as it is, by one clock: those of two machines differ."""

    seen: object = None
    since: float | None = None

    def seconds(self, now_seen: object) -> float:
        """Return the seconds since it last changed, given what it is now."""
        now = time.monotonic()
        if self.since is None or now_seen != self.seen:
            self.seen, self.since = now_seen, now
        return now - self.since


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier tries of one Spark task have done."""

    #: Rollouts that are staged: (task_id, rollout_index, attempt).
    keys: frozenset[tuple[str, int, int]] = frozenset()
    #: Where they stood; a first try stands at nothing.
    status: WorkerStatus = field(default_factory=lambda: WorkerStatus(0))


def taken_over(staging: Staging, partition: int) -> Earlier | None:
    """Return what earlier tries of a Spark task have done, once none of them works any more.

    Spark starts a task again when its worker died, but also when it takes the worker for dead (a lost heartbeat) or for
    slow (speculation). In both latter cases the earlier try still calls the model, and two would pay for the same
    rollouts: so as long as its status changes it is waited for. Statuses are compared, not clocks. And they tell that
    there was an earlier try, not Spark's attempt number: that starts at 0 again where a lost executor makes Spark
    repeat the whole stage.

    Args:
        staging: The job's folder.
        partition: The Spark task's partition.

    Returns:
        None where this worker and the driver do not share the folder: the driver's beat is not there, or nothing can be
        written.
    """
    try:
        if staging.last_beat() is None:
            return None
        seen = staging.status_of(partition)
        if seen is None:
            earlier = Earlier(status=WorkerStatus(partition))
        else:
            silence = Silence()
            while silence.seconds(seen) < SILENT_S:
                time.sleep(LOOK_S)
                seen = staging.status_of(partition) or seen
            staged = staging.staged(partition)
            earlier = Earlier(staged.keys, _next_try(seen, staged))
        staging.put_status(earlier.status)
    except StorageError:
        return None
    return earlier


def _next_try(seen: WorkerStatus, staged: Staged) -> WorkerStatus:
    """Return where a task that starts again stands: at what was staged, and at what was paid."""
    # Requests whose rollouts were not staged were for nothing: their rollouts are done again.
    seen.wasted = max(seen.wasted, seen.requests - staged.requests)
    seen.done = len(staged.keys)
    seen.failures = dict(staged.failures)
    # The last status may be older than the last part; what was not staged is paid all the same.
    seen.requests = max(seen.requests, staged.requests)
    seen.input_tokens = max(seen.input_tokens, staged.input_tokens)
    seen.output_tokens = max(seen.output_tokens, staged.output_tokens)
    seen.tries += 1
    seen.stop = None
    seen.is_over = False
    return seen


def still_working(job: Staging, beat: JobBeat, silences: dict[int, Silence]) -> int:
    """Return about how many rollouts the workers of a job whose driver is dead still have in flight; 0 if all are dead.

    They end by themselves some time after their driver has, but what they have begun is paid for, and will be staged.

    Args:
        job: The job's folder.
        beat: The last beat of its driver.
        silences: By partition; kept from look to look.
    """
    in_flight = 0
    for status in job.statuses():
        # Our own clock tells at once; another machine's may be off by less than a minute.
        silent_s = time.time() - status.updated_at - (0.0 if beat.is_here else GONE_AFTER_S)
        unchanged_s = silences.setdefault(status.partition, Silence()).seconds(status)
        if not status.is_over and max(silent_s, unchanged_s) < SILENT_S:
            in_flight += max(1, status.in_flight)
    return in_flight
