"""The staging folder of one collect job: finished rollouts as small immutable Parquet parts, and who works on what.

Workers write parts and their status as rollouts finish; the driver writes a beat that shows it is alive, and the order
to stop. No pyspark.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from gym_spark.config import digest
from gym_spark.rollout.folder import Folder
from gym_spark.rollout.share import WHOLE, Share, parse_share
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.schemas import ROLLOUTS

#: A driver that has not beaten for so long counts as dead: it beats every second.
DEAD_AFTER_S: Final = 60.0
_BEAT: Final = "job.json"
_STOP: Final = "stop.json"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a job starts no further rollout; those in flight are finished."""

    kind: Literal[
        "budget_exhausted",
        "driver_gone",
        "endpoint_down",
        "endpoint_refuses",
        "interrupted",
        "overtaken",
        "too_many_failures",
    ]
    reason: str


@dataclass(slots=True)
class WorkerStatus:
    """What one worker has done so far; written every second or so, read by the driver and by `eval status`."""

    partition: int
    #: How often Spark has started this task.
    tries: int = 1
    done: int = 0
    #: Failed rollouts by kind.
    failures: dict[str, int] = field(default_factory=dict)
    #: Rollouts begun and not ended.
    in_flight: int = 0
    #: Requests at a replica; calls that back off; calls that wait for a slot, the rate limits or a live replica.
    sent: int = 0
    retrying: int = 0
    waiting: int = 0
    #: Requests that may be in flight now.
    limit: int = 0
    requests: int = 0
    retries: int = 0
    #: Requests of dead tries of this Spark task whose rollouts were not staged: they are paid for again.
    wasted: int = 0
    #: The oldest model calls that have not ended: rollout, state, age_s, requests, last_failure.
    oldest: list[dict[str, Any]] = field(default_factory=list)
    latency_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    first_failure: str | None = None
    stop: dict[str, Any] | None = None
    #: The worker has ended: nothing more will come of it.
    is_over: bool = False
    updated_at: float = 0.0


@functools.cache
def this_machine() -> str:
    """Return a name of this machine and of this view of its processes: two containers of one host have two.

    Host names do not tell: many machines are `localhost`.
    """
    seen = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on Linux
        seen += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return digest(seen)


@dataclass(slots=True)
class JobBeat:
    """Who collects, and that it lives."""

    share: str
    started_at: float
    #: Rollouts to do; 0 until they are counted.
    total: int = 0
    updated_at: float = 0.0
    #: All that was staged is adopted: nothing is left to the next job.
    is_done: bool = False
    #: The claim is given up: the next job may take it at once.
    is_released: bool = False
    #: Others took the job for dead. Known to its own process only.
    is_lost: bool = False
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    machine: str = field(default_factory=this_machine)

    @property
    def is_here(self) -> bool:
        """Whether its processes can be looked up from here, and its clock is ours."""
        return self.machine == this_machine()

    def is_alive(self) -> bool:
        """Tell whether the job's driver still works: its process exists, if that can be seen, and the beat is fresh."""
        if self.is_released or (self.is_here and not _process_exists(self.pid)):
            return False
        return time.time() - self.updated_at < DEAD_AFTER_S


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


@dataclass(frozen=True, slots=True)
class Staged:
    """What the parts of one partition hold."""

    #: (task_id, rollout_index, attempt)
    keys: frozenset[tuple[str, int, int]] = frozenset()
    #: What their rollouts sent and are known to have cost.
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Failed ones by kind.
    failures: Counter[str] = field(default_factory=Counter)


#: Columns of a part that `Staged` is made of.
_STAGED: Final = ("requests", "usage", "failure_kind")


_Read = TypeVar("_Read", JobBeat, Stop, WorkerStatus)


def _read(kind: type[_Read], loaded: dict[str, Any]) -> _Read:
    """Read what this or another version of gym-spark wrote: keys that this one does not know are passed over."""
    known = {one.name for one in fields(kind)}
    return kind(**{name: value for name, value in loaded.items() if name in known})


def part_name(partition: int, name: str) -> str:
    """Return the file name of a partition's part."""
    return f"p{partition:05d}-{name}.parquet"


def _status_name(partition: int) -> str:
    return f"status-{partition:05d}.json"


@dataclass(frozen=True, slots=True)
class Staging(Folder):
    """The staging folder of one collect job."""

    def put_part(self, partition: int, name: str, batch: pa.RecordBatch) -> None:
        """Write one Parquet part of a partition's rollouts."""
        # A part lives for seconds: on a disk, compressing it costs a worker more than writing it.
        compression = "none" if self.is_local else "zstd"
        table = pa.Table.from_batches([batch])
        narrow = ROLLOUTS.columns[: -ROLLOUTS.large]
        sink = pa.BufferOutputStream()
        # Dictionaries and statistics of transcripts would be copies of them, and of no use.
        pq.write_table(table, sink, compression=compression, use_dictionary=narrow, write_statistics=narrow)
        self.put(part_name(partition, name), sink.getvalue())
        del sink
        pa.default_memory_pool().release_unused()  # after a part of large answers, of which there may be no other soon

    def parts(self) -> list[str]:
        """List the parts, as paths that Spark can open."""
        return [f"{self.uri}/{name}" for name in self.names() if name.endswith(".parquet")]

    def missing(self, names: Iterable[str]) -> set[str]:
        """Return which of some parts are not to be seen from here."""
        return set(names) - set(self.names())

    def staged(self, partition: int) -> Staged:
        """Return what a partition's parts hold: what an earlier try of its Spark task has finished."""
        keys: set[tuple[str, int, int]] = set()
        requests, input_tokens, output_tokens = 0, 0, 0
        failures: Counter[str] = Counter()
        for name in self.names():
            if name.startswith(f"p{partition:05d}-") and name.endswith(".parquet"):
                table = self.read_columns(name, [*ATTEMPT_KEY, *_STAGED])
                keys.update(zip(*(table.column(column).to_pylist() for column in ATTEMPT_KEY), strict=True))
                for row in table.select(_STAGED).to_pylist():
                    requests += row["requests"]
                    usage = row["usage"] or {}
                    input_tokens += usage.get("input_tokens") or 0
                    output_tokens += usage.get("output_tokens") or 0
                    if row["failure_kind"] is not None:
                        failures[row["failure_kind"]] += 1
        return Staged(frozenset(keys), requests, input_tokens, output_tokens, failures)

    def put_status(self, status: WorkerStatus) -> None:
        """Replace the worker's status."""
        self.put_json(_status_name(status.partition), asdict(status))

    def status_of(self, partition: int) -> WorkerStatus | None:
        """Read the newest status of a partition's worker, if there is one."""
        loaded = self.get_json(_status_name(partition))
        return None if loaded is None else _read(WorkerStatus, loaded)

    def statuses(self) -> list[WorkerStatus]:
        """Read every worker's newest status."""
        found = (self.get_json(name) for name in self.names() if name.startswith("status-"))
        return [_read(WorkerStatus, loaded) for loaded in found if loaded is not None]

    def beat(self, beat: JobBeat) -> None:
        """Show that the job's driver is alive."""
        beat.updated_at = time.time()
        self.put_json(_BEAT, asdict(beat))

    def release(self, beat: JobBeat) -> None:
        """Give the claim up: the next job need not wait until the beat is old."""
        beat.is_released = True
        self.beat(beat)

    def last_beat(self) -> JobBeat | None:
        """Return the newest beat of the job's driver."""
        loaded = self.get_json(_BEAT)
        return _read(JobBeat, loaded) if loaded is not None else None

    def order_stop(self, stop: Stop) -> None:
        """Tell the workers to start no further rollout."""
        self.put_json(_STOP, asdict(stop))

    def ordered_stop(self) -> Stop | None:
        """Return why the workers shall stop, or None."""
        loaded = self.get_json(_STOP)
        return None if loaded is None else _read(Stop, loaded)


@dataclass(frozen=True, slots=True)
class RunStaging(Folder):
    """The staging folder of a run: one folder per collect job that is at work or was interrupted."""

    def job(self, job_id: str) -> Staging:
        """Return one job's folder."""
        return Staging(f"{self.uri}/{job_id}")

    def jobs(self) -> list[Staging]:
        """List the jobs."""
        return [self.job(name) for name in self.names(folders=True)]


def share_of(beat: JobBeat | None) -> Share:
    """Return the share of a job; one that never beat may hold anything."""
    return WHOLE if beat is None else parse_share(beat.share)
