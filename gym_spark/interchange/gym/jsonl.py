"""NeMo Gym's JSON Lines files, read as strictly as NeMo Gym reads them.

Its rules are those of orjson, so orjson it is: NaN, Infinity, numbers beyond a double, lone surrogates, trailing commas
and a byte order mark are malformed; of equal keys the last one counts; what underflows is 0.0; an integer outside 64
bits becomes a float.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal

import orjson

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError

#: Bytes that are read at once from a file's end.
_BLOCK: Final = 1 << 20


def beside(rollouts: Path, what: str) -> Path:
    """Return the file that NeMo Gym keeps beside a file of results: `X_what` for `X.jsonl`."""
    return rollouts.with_name(f"{rollouts.stem}_{what}")


def parse_line(line: bytes, where: str) -> JsonObject:
    """Return the object that one line holds.

    Args:
        line: The line's bytes, with or without its end (LF or CRLF).
        where: ``FILE:LINE``, the line counted from 1, for the message.

    Raises:
        ConfigError: the line is blank, is not strict JSON, or holds no object.
    """
    if not line.strip():
        raise ConfigError(f"{where}: the line is blank; remove it.")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{where}: the line is not strict JSON ({error.msg}, column {error.colno}).") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: the line holds a JSON {type(row).__name__}, not an object.")
    return row


def read_lines(
    path: Path, *, blank: Literal["refuse", "skip"], torn: Literal["refuse", "skip"] = "refuse"
) -> Iterator[tuple[str, JsonObject]]:
    """Yield ``("FILE:LINE", object)`` for each line of a file, in order.

    Args:
        path: The file.
        blank: What to do with a blank line, also a trailing one.
        torn: What to do with a last line that has no line end and is not strict JSON: what a writer leaves that was
            killed. :func:`torn_bytes` tells how long it is.

    Raises:
        ConfigError: the file is missing or unreadable, or a line is malformed; the message names file and line.
    """
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}:{number}"
        if (blank == "skip" and not line.strip()) or (torn == "skip" and _is_torn(line)):
            continue
        yield where, parse_line(line, where)


def torn_bytes(path: Path) -> int:
    """Return the length of a file's torn last line in bytes, 0 if it ends well.

    Raises:
        ConfigError: the file is missing or unreadable.
    """
    try:
        with path.open("rb") as stream:
            start = _last_line(stream)
            stream.seek(start)
            last = stream.read()
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file '{path}'; check the path.") from error
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read ({error}).") from error
    return len(last) if _is_torn(last) else 0


def _last_line(stream: BinaryIO) -> int:
    """Return where what follows the last line end begins, looking from the end."""
    place = stream.seek(0, io.SEEK_END)
    while place:
        block = min(place, _BLOCK)
        stream.seek(place - block)
        if (end := stream.read(block).rfind(b"\n")) >= 0:
            return place - block + end + 1
        place -= block
    return 0


def _is_torn(line: bytes) -> bool:
    # Only a file's last line can lack its end.
    if line.endswith(b"\n") or not line.strip():
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    return False


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            yield from stream
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file '{path}'; check the path.") from error
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read ({error}).") from error
