"""A folder on any file system that pyarrow knows, whose files appear whole or not at all. No pyspark."""

from __future__ import annotations

import contextlib
import functools
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gym_spark.errors import StorageError

#: Spark's spelling of a scheme -> pyarrow's.
_SCHEMES: Final = {"s3a://": "s3://", "s3n://": "s3://", "dbfs:/Volumes/": "/Volumes/"}


@functools.cache
def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Open the file system of a URI: once, for an object store is asked where its bucket is."""
    opened = uri
    for spark_scheme, arrow_scheme in _SCHEMES.items():
        if uri.startswith(spark_scheme):
            opened = arrow_scheme + uri.removeprefix(spark_scheme)
    filesystem, path = fs.FileSystem.from_uri(opened)
    return filesystem, path


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder at `uri`: a path, or a URI that Spark and pyarrow can both open. Every failure is a `StorageError`."""

    uri: str

    @property
    def is_known(self) -> bool:
        """Whether pyarrow has a file system for it."""
        try:
            _opened(self.uri)
        except pa.ArrowException:  # a scheme it does not know, or was built without
            return False
        except OSError as error:  # of HDFS, its library; otherwise the store does not answer, or refuses
            return not str(error).startswith("Unable to load")
        return True

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk, mounted ones included."""
        with self._at("opened") as (filesystem, _):
            return isinstance(filesystem, fs.LocalFileSystem)

    @contextlib.contextmanager
    def _at(self, done: str, name: str = "") -> Iterator[tuple[fs.FileSystem, str]]:
        """Give the file system and the path of a file of the folder, and tell what cannot be done there."""
        try:
            filesystem, folder = _opened(self.uri)
            yield filesystem, posixpath.join(folder, name)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            place = f"{self.uri}/{name}" if name else self.uri
            raise StorageError(f"'{place}' cannot be {done}: {error}.") from error

    def put(self, name: str, data: pa.Buffer) -> None:
        """Write a file that appears whole: an object store's put is atomic, elsewhere it is renamed into place."""
        with self._at("written", name) as (filesystem, target):
            if not isinstance(filesystem, fs.LocalFileSystem):
                with filesystem.open_output_stream(target) as stream:
                    stream.write(data)
                return
            folder = posixpath.dirname(target)
            filesystem.create_dir(folder, recursive=True)
            hidden = posixpath.join(folder, f".{name}")
            with filesystem.open_output_stream(hidden) as stream:
                stream.write(data)
            filesystem.move(hidden, target)

    def put_json(self, name: str, value: Any) -> None:
        """Write a small JSON file."""
        self.put(name, pa.py_buffer(json.dumps(value).encode()))

    def get_json(self, name: str) -> Any | None:
        """Read a small JSON file, or return None where it is not there."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._at("read", name) as (filesystem, path),
            filesystem.open_input_stream(path) as stream,
        ):
            return json.loads(stream.read())
        return None

    def names(self, *, folders: bool = False) -> list[str]:
        """List the names of the visible files (or folders) in the folder; none where it is not there."""
        kind = fs.FileType.Directory if folders else fs.FileType.File
        with self._at("listed") as (filesystem, folder):
            found = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == kind and not info.base_name.startswith("."))

    def read_columns(self, name: str, columns: list[str]) -> pa.Table:
        """Read some columns of a Parquet file in the folder."""
        with self._at("read", name) as (filesystem, path):
            return pq.read_table(path, columns=columns, filesystem=filesystem)

    def remove(self) -> None:
        """Delete the folder and all below it; fine if it is not there."""
        with self._at("removed") as (filesystem, folder):
            if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
                filesystem.delete_dir(folder)
