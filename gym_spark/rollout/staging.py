"""The staging folder of one collect job: finished rollouts as small immutable Parquet parts, and who works on what.

Workers write parts and their status as rollouts finish; the driver writes a beat that shows it is alive, and the order
to stop. A file appears whole or not at all. No pyspark.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gym_spark.errors import StorageError
from gym_spark.rollout.share import WHOLE, Share, parse_share
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.schemas import ROLLOUTS

#: Spark's spelling of a scheme -> pyarrow's.
_SCHEMES: Final = {"s3a://": "s3://", "s3n://": "s3://", "dbfs:/Volumes/": "/Volumes/"}
#: A driver that has not beaten for so long counts as dead: it beats every second.
DEAD_AFTER_S: Final = 60.0
_BEAT: Final = "job.json"
_STOP: Final = "stop.json"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a job starts no further rollout; those in flight are finished."""

    kind: Literal["budget_exhausted", "endpoint_down", "endpoint_refuses", "too_many_failures"]
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
    updated_at: float = 0.0


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
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    def is_alive(self) -> bool:
        """Tell whether the job's driver still works: on this host its process exists, and its last beat is not old."""
        if self.host == socket.gethostname() and not _process_exists(self.pid):
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


@functools.cache
def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Open the file system of a URI: once, for an object store is asked where its bucket is."""
    opened = uri
    for spark_scheme, arrow_scheme in _SCHEMES.items():
        if uri.startswith(spark_scheme):
            opened = arrow_scheme + uri.removeprefix(spark_scheme)
    try:
        filesystem, path = fs.FileSystem.from_uri(opened)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"The folder '{uri}' cannot be opened from Python: {error}.") from error
    return filesystem, path


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder at `uri`: a path, or a URI that Spark and pyarrow can both open."""

    uri: str

    def _open(self) -> tuple[fs.FileSystem, str]:
        return _opened(self.uri)

    def put(self, name: str, data: pa.Buffer) -> None:
        """Write a file that appears whole: an object store's put is atomic, elsewhere it is renamed into place."""
        filesystem, folder = self._open()
        target = posixpath.join(folder, name)
        try:
            if not isinstance(filesystem, fs.LocalFileSystem):
                with filesystem.open_output_stream(target) as stream:
                    stream.write(data)
                return
            filesystem.create_dir(folder, recursive=True)
            hidden = posixpath.join(folder, f".{name}")
            with filesystem.open_output_stream(hidden) as stream:
                stream.write(data)
            filesystem.move(hidden, target)
        except OSError as error:
            raise StorageError(f"Writing '{target}' failed: {error}.") from error

    def put_json(self, name: str, value: Any) -> None:
        """Write a small JSON file."""
        self.put(name, pa.py_buffer(json.dumps(value).encode()))

    def get_json(self, name: str) -> Any | None:
        """Read a small JSON file, or return None where it is not there."""
        filesystem, folder = self._open()
        try:
            with filesystem.open_input_stream(posixpath.join(folder, name)) as stream:
                return json.loads(stream.read())
        except FileNotFoundError:
            return None

    def names(self, *, folders: bool = False) -> list[str]:
        """List the names of the visible files (or folders) in the folder; none where it is not there."""
        filesystem, folder = self._open()
        kind = fs.FileType.Directory if folders else fs.FileType.File
        try:
            found = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        except OSError as error:
            raise StorageError(f"The folder '{self.uri}' cannot be listed: {error}.") from error
        return sorted(info.base_name for info in found if info.type == kind and not info.base_name.startswith("."))

    def read_columns(self, name: str, columns: list[str]) -> pa.Table:
        """Read some columns of a Parquet file in the folder."""
        filesystem, folder = self._open()
        return pq.read_table(posixpath.join(folder, name), columns=columns, filesystem=filesystem)

    def remove(self) -> None:
        """Delete the folder and all below it; fine if it is not there."""
        filesystem, folder = self._open()
        if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
            filesystem.delete_dir(folder)


@dataclass(frozen=True, slots=True)
class Staged:
    """Rollouts in the parts of one partition: their keys (task_id, rollout_index, attempt), and what they sent."""

    keys: frozenset[tuple[str, int, int]]
    requests: int


def _status_name(partition: int) -> str:
    return f"status-{partition:05d}.json"


@dataclass(frozen=True, slots=True)
class Staging(Folder):
    """The staging folder of one collect job."""

    def put_part(self, partition: int, name: str, batch: pa.RecordBatch) -> None:
        """Write one Parquet part of a partition's rollouts."""
        # A part lives for seconds: on a disk, compressing it costs a worker more than writing it.
        compression = "none" if isinstance(self._open()[0], fs.LocalFileSystem) else "zstd"
        table = pa.Table.from_batches([batch])
        narrow = ROLLOUTS.columns[: -ROLLOUTS.large]
        sink = pa.BufferOutputStream()
        # Dictionaries and statistics of transcripts would be copies of them, and of no use.
        pq.write_table(table, sink, compression=compression, use_dictionary=narrow, write_statistics=narrow)
        self.put(f"p{partition:05d}-{name}.parquet", sink.getvalue())
        del sink
        pa.default_memory_pool().release_unused()  # after a part of large answers, of which there may be no other soon

    def parts(self) -> list[str]:
        """List the parts, as paths that Spark can open."""
        return [f"{self.uri}/{name}" for name in self.names() if name.endswith(".parquet")]

    def staged(self, partition: int) -> Staged:
        """Return what a partition's parts hold: what an earlier try of its Spark task has finished."""
        keys: set[tuple[str, int, int]] = set()
        requests = 0
        for name in self.names():
            if name.startswith(f"p{partition:05d}-") and name.endswith(".parquet"):
                table = self.read_columns(name, [*ATTEMPT_KEY, "requests"])
                keys.update(zip(*(table.column(column).to_pylist() for column in ATTEMPT_KEY), strict=True))
                requests += sum(table.column("requests").to_pylist())
        return Staged(frozenset(keys), requests)

    def put_status(self, status: WorkerStatus) -> None:
        """Replace the worker's status."""
        self.put_json(_status_name(status.partition), asdict(status))

    def status_of(self, partition: int) -> WorkerStatus | None:
        """Read the newest status of a partition's worker, if there is one."""
        loaded = self.get_json(_status_name(partition))
        return None if loaded is None else WorkerStatus(**loaded)

    def statuses(self) -> list[WorkerStatus]:
        """Read every worker's newest status."""
        found = (self.get_json(name) for name in self.names() if name.startswith("status-"))
        return [WorkerStatus(**loaded) for loaded in found if loaded is not None]

    def beat(self, beat: JobBeat) -> None:
        """Show that the job's driver is alive."""
        beat.updated_at = time.time()
        self.put_json(_BEAT, asdict(beat))

    def release(self, beat: JobBeat) -> None:
        """Give the claim up: the next job need not wait until the beat is old."""
        beat.updated_at = 0.0
        self.put_json(_BEAT, asdict(beat))

    def last_beat(self) -> JobBeat | None:
        """Return the newest beat of the job's driver."""
        loaded = self.get_json(_BEAT)
        return JobBeat(**loaded) if loaded is not None else None

    def order_stop(self, stop: Stop) -> None:
        """Tell the workers to start no further rollout."""
        self.put_json(_STOP, asdict(stop))

    def ordered_stop(self) -> Stop | None:
        """Return why the workers shall stop, or None."""
        loaded = self.get_json(_STOP)
        return None if loaded is None else Stop(**loaded)


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
