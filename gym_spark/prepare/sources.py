"""What a prepare reads: local files, a checked download, or nothing at all (generated) come in, rows leave.

Caches are read only: a download becomes visible whole and checked, or not at all, and is never written to again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

import httpx

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import SourceSpec

#: Between two chunks of a download, not for the whole of it.
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file, with what the manifest keeps of it: its name and content, no path of this machine."""

    path: Path
    name: str
    sha256: str
    bytes: int
    #: Rows, where they are lines; None for other formats.
    rows: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """The resolved input of one prepare."""

    kind: Literal["file", "url", "generated"]
    spec: SourceSpec
    files: tuple[SourceFile, ...] = ()

    @property
    def params(self) -> JsonObject:
        """The parameters that benchmark.yaml gives the prepare script."""
        return self.spec.params

    def records(self, *required: str) -> Iterator[tuple[str, JsonObject]]:
        """Yield ``("file.jsonl:3", row)`` for each row of the JSONL files, in order.

        Args:
            *required: Keys that every row must have.

        Raises:
            ConfigError: a line is malformed or lacks a key; the message names file and line.
        """
        for file in self.files:
            for line, row in read_jsonl(file.path):
                missing = [key for key in required if key not in row]
                if missing:
                    raise ConfigError(
                        f"{file.path}:{line}: the row has no '{missing[0]}' (it has: {', '.join(row) or 'nothing'}); "
                        "check that this is the benchmark's file."
                    )
                yield f"{file.name}:{line}", row


def resolve_source(
    spec: SourceSpec, files: Sequence[Path] = (), *, transport: httpx.BaseTransport | None = None
) -> Source:
    """Find a benchmark's input: the given files, else the URL's file from cache or network, else none (generated).

    Args:
        spec: The benchmark's source.
        files: ``--source FILE``, in order.
        transport: Replaces the network.

    Raises:
        ConfigError: a file is missing, the download failed or differs from its sha256, or there is nothing to read.
    """
    if spec.format == "generated":
        if files:
            raise ConfigError(f"This benchmark generates its rows; leave out --source '{files[0]}'.")
        return Source("generated", spec)
    if files:
        return Source("file", spec, tuple(_describe(path, spec, path.name) for path in files))
    if spec.url is None:
        raise ConfigError("This benchmark has no address to download from; give its file with --source FILE.")
    name = spec.name() or "source"
    return Source("url", spec, (_describe(_cached(spec, spec.url, name, transport), spec, name),))


def read_jsonl(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """Yield ``(line number from 1, object)`` for each line of a JSON Lines file (UTF-8, also ``.gz``).

    Blank lines are counted but yield nothing.

    Raises:
        ConfigError: the file is missing or unreadable, or a line is not strict JSON (NaN and Infinity are not) or no
            object; the message names file and line.
    """
    for number, line in enumerate(_lines(path), start=1):
        try:
            # The mark of some editors stands only at the head of the file.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if not text.strip():
                continue
            row = json.loads(text, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path}:{number}: the line is not UTF-8 (byte {error.start + 1}); re-encode it."
            ) from error
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}:{number}: the line is not JSON ({error.msg}, column {error.colno}).") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: the line is not JSON ({error}).") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number}: the line holds a JSON {type(row).__name__}, not an object.")
        yield number, row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield from stream
    except FileNotFoundError as error:
        raise ConfigError(f"There is no source file '{path}'; check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"Source file '{path}' cannot be read ({error}).") from error


def _describe(path: Path, spec: SourceSpec, name: str) -> SourceFile:
    rows = sum(1 for line in _lines(path) if line.strip()) if spec.format == "jsonl" else None
    return SourceFile(path, name, _sha256(path), path.stat().st_size, rows)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ConfigError(f"There is no source file '{path}'; check the path.") from error
    except OSError as error:
        raise ConfigError(f"Source file '{path}' cannot be read ({error}).") from error


def cache_folder() -> Path:
    """Return the folder of downloads: ``$XDG_CACHE_HOME/gym-spark/sources``, by default below ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The base directory specification has relative values ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "gym-spark" / "sources"


def _cached(spec: SourceSpec, url: str, name: str, transport: httpx.BaseTransport | None) -> Path:
    target = cache_folder() / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    if not target.is_file():
        _download(spec, url, target, transport)
    elif spec.sha256 not in (None, _sha256(target)):
        raise ConfigError(f"The cached '{target}' is not the file that benchmark.yaml names by sha256; delete it.")
    return target


def _download(spec: SourceSpec, url: str, target: Path, transport: httpx.BaseTransport | None) -> None:
    remedy = f"download '{target.name}' by other means and give it with --source FILE."
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, so that processes that prepare at once do not meet in one file.
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as stream:
            part = Path(stream.name)
            with (
                httpx.Client(transport=transport, timeout=_TIMEOUT_S, follow_redirects=True) as client,
                client.stream("GET", url) as reply,
            ):
                reply.raise_for_status()
                for chunk in reply.iter_bytes():
                    stream.write(chunk)
        found = _sha256(part)
        if spec.sha256 not in (None, found):
            raise ConfigError(
                f"'{url}' has changed: its sha256 is {found}, benchmark.yaml names {spec.sha256}; "
                "give the right file with --source FILE."
            )
        part.replace(target)
    except httpx.HTTPStatusError as error:
        raise ConfigError(f"'{url}' answered {error.response.status_code}; {remedy}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"'{url}' cannot be downloaded ({error}); {remedy}") from error
    except OSError as error:
        raise ConfigError(f"The cache folder '{target.parent}' cannot be written ({error}); {remedy}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
