"""The input rows of a run while it is imported: on disk, for they hold prompts, in the order of their keys."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import orjson

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.rows import Key, key_order, origin

#: Run key and agent.
Run = tuple[str | None, str | None]


class InputRows:
    """Input rows that are added once and read several times; only keys, runs and places are in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        self._end = 0
        self._rows: list[tuple[Key, Run, int]] = []
        self._runs: dict[Run, Run] = {}

    def __enter__(self) -> InputRows:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take is tried once more
            self._file.close()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: Key, row: JsonObject, where: str) -> None:
        """Add a row.

        Raises:
            ConfigError: its agent or stamp has the wrong shape (named by `where`), or the disk is full.
        """
        agent, stamp = origin(row, where)
        run = (agent if stamp is None else stamp, agent)
        self._rows.append((key, self._runs.setdefault(run, run), self._end))
        try:
            self._end += self._file.write(orjson.dumps(row) + b"\n")
        except OSError as error:
            raise ConfigError(f"'{tempfile.gettempdir()}' cannot be written ({error}); set TMPDIR.") from error

    def sort(self) -> None:
        """Put the rows in the order of their keys."""
        self._rows.sort(key=lambda item: key_order(item[0]))

    def all_keys(self) -> list[Key]:
        """Return the key of each row."""
        return [key for key, _, _ in self._rows]

    def runs(self) -> list[tuple[Key, Run]]:
        """Return key and run of each row."""
        return [(key, run) for key, run, _ in self._rows]

    def rows(self) -> Iterator[tuple[Key, Run, JsonObject]]:
        """Read the rows; one reader at a time.

        Raises:
            ConfigError: the disk is full.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"'{tempfile.gettempdir()}' cannot be written ({error}); set TMPDIR.") from error
        for key, run, place in self._rows:
            self._file.seek(place)
            yield key, run, orjson.loads(self._file.readline())
