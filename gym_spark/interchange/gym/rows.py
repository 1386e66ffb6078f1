"""What the metrics need of a NeMo Gym row: its key, who made it, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError

#: NeMo Gym numbers tasks, but any text is a task id too.
Index = int | str
#: (task, repeat)
Key = tuple[Index, Index]

TASK: Final = "_ng_task_index"
REPEAT: Final = "_ng_rollout_index"
STAMP: Final = "_ng_environment_server"
#: What a row made for an input's sake takes over from its result.
_INPUT_FIELDS: Final = (TASK, REPEAT, "agent_ref", STAMP, "responses_create_params")


@dataclass(frozen=True, slots=True)
class GymRow:
    """One result row.

    Attributes:
        key: (task, repeat).
        agent: `agent_ref.name`, or None.
        stamp: The environment server that it names, or None.
        masked: It counts in no metric of quality.
        has_reward: Whether it has the field `reward` at all.
        reward: The field as it stands: a number, a boolean, null, or an odd shape.
    """

    key: Key
    agent: str | None
    stamp: str | None
    masked: bool
    has_reward: bool
    reward: Any

    @property
    def run_key(self) -> str | None:
        """The stamp, else the agent, else None: rows of one run key belong together."""
        return self.agent if self.stamp is None else self.stamp


def result_row(row: JsonObject, where: str, *, absent_index: int | None = None) -> GymRow:
    """Read a result row.

    Args:
        row: The row.
        where: ``FILE:LINE``.
        absent_index: What an absent task or repeat number stands for; None: such a row is refused.

    Raises:
        ConfigError: an id, the agent, the stamp, the response or its usage has the wrong shape.
    """
    agent, stamp = origin(row, where)
    _object(_object(row, "response", where), "usage", where)
    return GymRow(
        key=row_key(row, where, absent_index=absent_index),
        agent=agent,
        stamp=stamp,
        # NeMo Gym asks for Python's truth: 1 and even "false" mask.
        masked=bool(row.get("mask_sample")),
        has_reward="reward" in row,
        reward=row.get("reward"),
    )


def row_key(row: JsonObject, where: str, *, absent_index: int | None = None) -> Key:
    """Return (task, repeat) of a result, input or sidecar row.

    Raises:
        ConfigError: an id is absent (without `absent_index`), or neither an integer nor a text.
    """
    return _index(row, TASK, where, absent_index), _index(row, REPEAT, where, absent_index)


def origin(row: JsonObject, where: str) -> tuple[str | None, str | None]:
    """Return agent and stamp of a row, None where it names none.

    Raises:
        ConfigError: `agent_ref` is no object, or a name is no text.
    """
    agent_ref = _object(row, "agent_ref", where)
    return _text(agent_ref, "name", where), _text(row, STAMP, where)


def index_order(index: Index) -> tuple[bool, int, str]:
    """Return the sort key of an id: integers before texts, so that a run with both has an order too."""
    return (True, 0, index) if isinstance(index, str) else (False, index, "")


def key_order(key: Key) -> tuple[tuple[bool, int, str], tuple[bool, int, str]]:
    """Return the sort key of a key: by task, then by repeat."""
    return index_order(key[0]), index_order(key[1])


def answer_text(value: Any, where: str) -> str | None:
    """Return a text that is equal for two answers exactly where Python calls them equal; None for no answer.

    ``1``, ``1.0`` and ``true`` are one answer, ``"1"`` is another; ``""`` is an answer.

    Raises:
        ConfigError: the answer is a list or an object, which cannot be counted as votes.
    """
    match value:
        case None:
            return None
        case str():
            return f'"{value}"'
        case int():
            return str(int(value))
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
    raise ConfigError(f"{where}: the answer is a JSON {type(value).__name__}; a text, number or null can be counted.")


def input_row(row: JsonObject) -> JsonObject:
    """Return the input row that a result row stands for, where a run's inputs are not at hand."""
    return {field: row[field] for field in _INPUT_FIELDS if field in row}


def _index(row: JsonObject, field: str, where: str, absent: int | None) -> Index:
    if field not in row:
        if absent is None:
            raise ConfigError(f"{where}: the row has no '{field}'; it is needed to tell rollouts apart.")
        return absent
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{where}: '{field}' is {value!r:.60}; it must be an integer or a text.")
    return value


def _object(row: Mapping[str, Any], field: str, where: str) -> JsonObject:
    value = row.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: '{field}' is a JSON {type(value).__name__}; it must be an object or null.")
    return value


def _text(row: Mapping[str, Any], field: str, where: str) -> str | None:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}: '{field}' is a JSON {type(value).__name__}; it must be a text or null.")
    return value
