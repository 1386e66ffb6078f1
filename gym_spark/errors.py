"""The error model: few types, each naming the boundary that was crossed.

    GymSparkError
    ├── ConfigError    the user can fix it: one plain sentence, exit code 2, nothing written
    ├── RolloutError   one rollout or verdict failed: recorded in its row, never raised past the worker
    └── StorageError   the lake could not be read or written

Code that calls into a harness, a verifier or a user's class wraps the call in :func:`boundary`, the only place that
catches every exception, so that one bad row is one failed row.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GymSparkError(Exception):
    """Base of every error that gym-spark raises on purpose."""


class ConfigError(GymSparkError):
    """The user's mistake. The message is one sentence: what is wrong, the value seen, the remedy."""


class BusyError(ConfigError):
    """Somebody else is at work on the same thing; nothing was changed."""


class StorageError(GymSparkError):
    """A table or file of the lake could not be read or written."""


class RolloutError(GymSparkError):
    """A failure that belongs to one row, with what its row records about it.

    Attributes:
        kind: Short stable name (``unreachable``, ``timeout``, ``bad_request``, ...), the `failure_kind` column.
        stage: The boundary crossed (``endpoint``, ``harness``, ``verifier``), the `failure_stage` column.
        terminal: True where another attempt would fail the same way.
        requests: HTTP requests that were spent on it.
    """

    def __init__(self, kind: str, message: str, *, stage: str, terminal: bool = False, requests: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.stage = stage
        self.terminal = terminal
        self.requests = requests


@contextmanager
def boundary(stage: str) -> Iterator[None]:
    """Turn whatever the enclosed call raises into a :class:`RolloutError` of kind ``<stage>_error``.

    `sys.exit()` in a user's code too, and a cancelled wait that nobody asked it to end: either would end the Spark
    worker and with it everybody's rollouts.
    """
    try:
        yield
    except GymSparkError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
            raise
        message = f"{type(error).__name__}: {error}"
        raise RolloutError(f"{stage}_error", message, stage=stage) from error


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return False
    return task is not None and task.cancelling() > 0


def did_you_mean(value: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest option, else the list of options, as a sentence's tail."""
    known = sorted(options)
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(known)}." if known else "."
