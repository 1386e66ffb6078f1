"""The staging folder of one collect job: finished rollouts as small immutable Parquet parts, and each worker's status.

Workers write here as rollouts finish; the driver reads. A file appears whole or not at all. No pyspark.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gym_spark.errors import StorageError

#: Spark's spelling of a scheme -> pyarrow's.
_SCHEMES: Final = {"s3a://": "s3://", "s3n://": "s3://", "dbfs:/Volumes/": "/Volumes/"}


@dataclass(slots=True)
class WorkerStatus:
    """What one worker has done so far; written every second or so, read by the driver and by `eval status`."""

    partition: int
    done: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    requests: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    first_failure: str | None = None
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Staging:
    """Access to the staging folder at `uri` (a path, or a URI that Spark and pyarrow can both open)."""

    uri: str

    def _open(self) -> tuple[fs.FileSystem, str]:
        uri = self.uri
        for spark_scheme, arrow_scheme in _SCHEMES.items():
            if uri.startswith(spark_scheme):
                uri = arrow_scheme + uri.removeprefix(spark_scheme)
        filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, path

    def _put(self, name: str, data: pa.Buffer) -> None:
        filesystem, folder = self._open()
        target = posixpath.join(folder, name)
        try:
            if not isinstance(filesystem, fs.LocalFileSystem):
                with filesystem.open_output_stream(target) as stream:  # an object store's put is atomic by itself
                    stream.write(data)
                return
            filesystem.create_dir(folder, recursive=True)
            hidden = posixpath.join(folder, f".{name}")
            with filesystem.open_output_stream(hidden) as stream:
                stream.write(data)
            filesystem.move(hidden, target)
        except OSError as error:
            raise StorageError(f"Writing '{target}' failed: {error}.") from error

    def put_part(self, name: str, batch: pa.RecordBatch) -> None:
        """Write one Parquet part."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([batch]), sink, compression="zstd")
        self._put(f"{name}.parquet", sink.getvalue())

    def put_status(self, status: WorkerStatus) -> None:
        """Replace the worker's status."""
        self._put(f"status-{status.partition:05d}.json", pa.py_buffer(json.dumps(asdict(status)).encode()))

    def _names(self, suffix: str) -> list[str]:
        filesystem, folder = self._open()
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        found = (info.path for info in filesystem.get_file_info(selector) if info.is_file)
        return sorted(path for path in found if path.endswith(suffix) and not posixpath.basename(path).startswith("."))

    def parts(self) -> list[str]:
        """List the parts below the folder, as paths that Spark can open."""
        _, folder = self._open()
        prefix = self.uri.rstrip("/")
        return [prefix + path.removeprefix(folder.rstrip("/")) for path in self._names(".parquet")]

    def statuses(self) -> list[WorkerStatus]:
        """Read every worker's newest status."""
        filesystem, _ = self._open()
        found = []
        for path in self._names(".json"):
            with filesystem.open_input_stream(path) as stream:
                loaded: dict[str, Any] = json.loads(stream.read())
            found.append(WorkerStatus(**loaded))
        return found

    def remove(self) -> None:
        """Delete the folder and all below it; fine if it is not there."""
        filesystem, folder = self._open()
        if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
            filesystem.delete_dir(folder)
