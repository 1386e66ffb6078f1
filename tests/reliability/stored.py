"""What a lake holds of a run, read without Spark while the run works or lies dead: Delta's log and Parquet files.

Only appended tables are read: their log says which files count, in commits that stay there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

#: task_id, rollout_index, attempt
Key = tuple[str, int, int]
#: state, output text, output tokens: a server that counts up its tokens makes two plays of one rollout differ
Content = tuple[str, str | None, int | None]

_KEY: Final = ("task_id", "rollout_index", "attempt")


@dataclass(frozen=True)
class Stored:
    """The rollouts of a run that a kill can no longer take away.

    Attributes:
        committed: Rows of the table `rollouts`.
        staged: Keys in finished parts, which wait for their adoption or have just been adopted.
        twice: Keys that the table has more than once.
    """

    committed: dict[Key, Content] = field(default_factory=dict)
    staged: set[Key] = field(default_factory=set)
    twice: list[Key] = field(default_factory=list)

    @property
    def keys(self) -> set[Key]:
        """Keys of all rollouts that are durable."""
        return self.committed.keys() | self.staged

    def lost_since(self, before: Stored) -> list[str]:
        """Say what was stored before and is not, or is committed otherwise than it was."""
        gone = [f"{key} is gone" for key in before.keys - self.keys]
        changed = (
            f"{key} was committed as {content} and is now {self.committed.get(key)}"
            for key, content in before.committed.items()
            if self.committed.get(key) != content
        )
        return gone + list(changed)


def read_stored(lake: Path, run_id: str) -> Stored:
    """Return what is stored of a run. Parts are read first: what is adopted meanwhile is then in both."""
    while True:
        parts = sorted((lake / "_staging" / run_id).glob("*/*.parquet"))
        try:
            staged = {key for part in parts for key in _keys(part)}
            break
        except FileNotFoundError:  # adopted and removed since they were listed
            continue
    rows = [row for file in live_files(lake / "rollouts") for row in _contents(file)]
    counts = Counter(key for key, _ in rows)
    return Stored(dict(rows), staged, [key for key, count in counts.items() if count > 1])


def verdict_counts(lake: Path) -> Counter[Key]:
    """Return how many verdicts each attempt has."""
    return Counter(key for file in live_files(lake / "verifications") for key in _keys(file))


def live_files(table: Path) -> list[Path]:
    """Return the data files of a Delta table's newest version."""
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                del live[action["remove"]["path"]]
    return [table / unquote(path) for path in live]


@cache  # files never change
def _contents(file: Path) -> list[tuple[Key, Content]]:
    rows = _rows(file, [*_KEY, "state", "output_text", "usage"])
    return [(_key(row), (row["state"], row["output_text"], (row["usage"] or {}).get("output_tokens"))) for row in rows]


@cache
def _keys(file: Path) -> list[Key]:
    return [_key(row) for row in _rows(file, list(_KEY))]


def _key(row: dict[str, Any]) -> Key:
    return row["task_id"], row["rollout_index"], row["attempt"]


def _rows(file: Path, columns: list[str]) -> Iterable[dict[str, Any]]:
    # Not `read_table`, which would take the folders' names for columns.
    with pq.ParquetFile(file) as opened:
        rows: list[dict[str, Any]] = opened.read(columns=columns).to_pylist()
    return rows
