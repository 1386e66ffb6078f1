"""A Spark task that runs again: what its earlier try left behind, and whether that one is really dead. No pyspark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from gym_spark.rollout.staging import Staging, WorkerStatus

#: A worker writes its status every second; one that has not for so long is dead.
SILENT_S: Final = 5.0
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier tries of one Spark task have done."""

    #: Rollouts that are staged: (task_id, rollout_index, attempt).
    keys: frozenset[tuple[str, int, int]] = frozenset()
    #: Where they stood; a first try stands at nothing.
    status: WorkerStatus = field(default_factory=lambda: WorkerStatus(0))


def taken_over(staging: Staging, partition: int) -> Earlier:
    """Return what earlier tries of a Spark task have done, once none of them works any more.

    Spark starts a task again when its worker died, but also when it takes the worker for dead (a lost heartbeat) or for
    slow (speculation). In both latter cases the earlier try still calls the model, and two would pay for the same
    rollouts: so as long as its status changes it is waited for. Statuses are compared, not clocks. And they tell that
    there was an earlier try, not Spark's attempt number: that starts at 0 again where a lost executor makes Spark
    repeat the whole stage.

    Args:
        staging: The job's folder.
        partition: The Spark task's partition.
    """
    seen, since = staging.status_of(partition), time.monotonic()
    if seen is None:
        return Earlier(status=WorkerStatus(partition))
    while time.monotonic() - since < SILENT_S:
        time.sleep(_LOOK_S)
        newest = staging.status_of(partition) or seen
        if newest != seen:
            seen, since = newest, time.monotonic()
    staged = staging.staged(partition)
    # Requests whose rollouts were not staged were for nothing: their rollouts are done again.
    seen.wasted = max(seen.wasted, seen.requests - staged.requests)
    seen.done = len(staged.keys)
    seen.tries += 1
    seen.stop = None
    return Earlier(staged.keys, seen)
