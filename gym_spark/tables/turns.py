"""One writer of a table at a time, for lakes that are folders; other lakes need no turns.

Delta commits version n by creating file n, which must fail if it exists. Object stores and HDFS can do that; on a local
disk Hadoop looks first and then renames over whatever is there, so that of two processes which commit in the same
moment both are told that they succeeded, and the rows of one are gone. docs/decisions/0006-one-partition-per-run.md.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def writers_turn(folder: Path | None, table: str) -> Iterator[None]:
    """Wait until no other writer of the table is at work, in this process or another; then keep the others out.

    Args:
        folder: Root of the lake; None if it is no folder.
        table: Name of the table.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            # A disk without locks, or of the machine that a Spark Connect server runs on: Delta's own care is all
            # there is then.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                # The system gives the lock up with the file, and with a killed process.
                fcntl.flock(stack.enter_context((folder / f".{table}.lock").open("ab")), fcntl.LOCK_EX)
        yield
