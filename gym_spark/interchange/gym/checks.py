"""What makes a run's files unfit to be measured, told in one sentence with the keys it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.rows import Key, key_order

#: Keys that a message names.
_NAMED: Final = 10


def check_keys(inputs: Collection[Key], results: Collection[Key], *, allow_partial: bool) -> None:
    """Refuse files that do not belong together.

    Args:
        inputs: Key of each input row, masked ones included.
        results: Key of each result row, masked ones included.
        allow_partial: Inputs without a result are fine.

    Raises:
        ConfigError: a key is twice among inputs or results, or has no input, or (not `allow_partial`) has no result.
    """
    check_unique(inputs, "input row")
    check_unique(results, "result row")
    planned, done = set(inputs), set(results)
    if extra := done - planned:
        raise ConfigError(
            f"{_count(extra, 'result row')} without an input row: {_named(extra)}; give the run's inputs."
        )
    if not allow_partial and (missing := planned - done):
        raise ConfigError(
            f"{_count(missing, 'input row')} without a result: {_named(missing)}; "
            "finish the run, or allow partial rollouts."
        )


def check_unique(keys: Collection[Key], what: str) -> None:
    """Refuse keys that occur more than once.

    Args:
        keys: (task, repeat) of each row.
        what: What the rows are, for the message.

    Raises:
        ConfigError: names them.
    """
    if len(set(keys)) == len(keys):
        return
    repeated = [key for key, count in Counter(keys).items() if count > 1]
    raise ConfigError(f"More than one {what} for {_count(repeated, 'key')}: {_named(repeated)}; keep one of each.")


def _count(keys: Collection[Key], what: str) -> str:
    return f"{len(keys)} {what}{'' if len(keys) == 1 else 's'}"


def _named(keys: Collection[Key]) -> str:
    shown = sorted(keys, key=key_order)[:_NAMED]
    return ", ".join(f"({task!r}, {repeat!r})" for task, repeat in shown) + (", ..." if len(keys) > _NAMED else "")
