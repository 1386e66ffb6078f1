"""Which rollouts of an interrupted NeMo Gym run are still to be made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.interchange.gym.rows import REPEAT, TASK, Key

_CLASS: Final = "_ng_failure_class"
_TERMINAL: Final = "_ng_failure_terminal"
_ATTEMPT: Final = "_ng_attempt_index"
_REUSE: Final = "reuse_cached_deliverable"
_MIGRATED: Final = "_ng_migrated_invalid_judge_response"
#: Never final once terminal timeouts are retried.
_RETRIED_CLASSES: Final = frozenset({"timeout_exceeded", "reference_missing", "eval_missing", "transport_ineligible"})


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One rollout to make.

    Attributes:
        row: Its input row.
        attempt: Failed attempts before it.
        reuse_deliverable: An earlier attempt left a deliverable to go on from.
    """

    row: JsonObject
    attempt: int
    reuse_deliverable: bool


@dataclass(frozen=True, slots=True)
class Resumption:
    """What there is, and what is left to do.

    Attributes:
        dispatch: What is to be made, in order.
        results: The main file's rows, less those that moved to the sidecar.
        failures: The sidecar's rows, and those that moved there.
        done: Key of each of the results.
        failed_attempts: Sidecar rows that name a key.
        terminal: Keys that are given up.
        exhausted: Keys with as many failed attempts as are allowed.
    """

    dispatch: list[Dispatch]
    results: list[JsonObject]
    failures: list[JsonObject]
    done: list[Key]
    failed_attempts: int
    terminal: set[Key]
    exhausted: set[Key]


def plan_resume(
    inputs: Sequence[JsonObject],
    results: Sequence[JsonObject],
    failures: Sequence[JsonObject],
    *,
    max_attempts: int = 3,
    retry_terminal_timeouts: bool = False,
    longest_first: bool = False,
    retry_invalid_judge_responses: bool = False,
) -> Resumption:
    """Decide what a resumed run dispatches.

    Args:
        inputs: Input rows in order, each with its key (`rows.row_key` refuses those without).
        results: Rows of the main file, each with its key, its torn last line left out.
        failures: Rows of the sidecar, one for each failed attempt.
        max_attempts: Failed attempts after which a rollout is given up.
        retry_terminal_timeouts: Failures by time or missing data are no longer final, whatever their stamp.
        longest_first: Dispatch rollouts whose earlier attempts took long before the others.
        retry_invalid_judge_responses: Results with an invalid judge response become failed attempts.
    """
    kept, sidecar = list(results), list(failures)
    if retry_invalid_judge_responses:
        kept = [row for row in results if not row.get("invalid_judge_response")]
        sidecar += _migrated([row for row in results if row.get("invalid_judge_response")], failures)
    done = [_key(row) for row in kept]
    keyed = [(_key(row), row) for row in sidecar if TASK in row and REPEAT in row]
    attempts = Counter(key for key, _ in keyed)
    terminal = {key for key, row in keyed if _is_terminal(row, retry_terminal_timeouts)}
    exhausted = {key for key, count in attempts.items() if count >= max_attempts}
    reusable = {key for key, row in keyed if row.get(_REUSE)}
    closed = {*done, *terminal, *exhausted}
    remaining = [row for row in inputs if _key(row) not in closed]
    if longest_first:
        elapsed = _longest(keyed)
        remaining.sort(key=lambda row: -elapsed.get(_key(row), 0.0))
    dispatch = [Dispatch(row, attempts[_key(row)], _key(row) in reusable) for row in remaining]
    return Resumption(dispatch, kept, sidecar, done, len(keyed), terminal, exhausted)


def _key(row: JsonObject) -> Key:
    return row[TASK], row[REPEAT]


def _is_terminal(row: JsonObject, retry_terminal_timeouts: bool) -> bool:
    if retry_terminal_timeouts and row.get(_CLASS) in _RETRIED_CLASSES:
        return False
    if retry_terminal_timeouts and row.get(_CLASS) == "skipped":
        return True
    return bool(row.get(_TERMINAL))


def _migrated(flagged: Iterable[JsonObject], failures: Iterable[JsonObject]) -> list[JsonObject]:
    # A run that died between the two writes finds its row in the sidecar already.
    moved = {_identity(row) for row in failures if row.get(_MIGRATED)}
    rows = []
    for row in flagged:
        if _identity(row) not in moved:
            moved.add(_identity(row))
            kept = {name: value for name, value in row.items() if name != _TERMINAL}
            rows.append({_CLASS: "judge_invalid"} | kept | {_MIGRATED: True})
    return rows


def _identity(row: JsonObject) -> tuple[Any, ...]:
    return row.get("stage_index"), row.get(TASK), row.get(REPEAT), row.get(_ATTEMPT)


def _longest(keyed: Iterable[tuple[Key, JsonObject]]) -> dict[Key, float]:
    longest: dict[Key, float] = {}
    for key, row in keyed:
        longest[key] = max(longest.get(key, 0.0), _elapsed_seconds(row))
    return longest


def _elapsed_seconds(row: JsonObject) -> float:
    """Return the seconds of an attempt, 0.0 where none are told; metadata of a response holds texts."""
    value = row.get("elapsed_seconds")
    if value is None:
        response = row.get("response")
        metadata = response.get("metadata") if isinstance(response, dict) else None
        value = metadata.get("elapsed_seconds") if isinstance(metadata, dict) else None
    try:
        seconds = float(value) if isinstance(value, int | float | str) else 0.0
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
