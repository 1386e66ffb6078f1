"""What a check is, and how one reads its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gym_spark.config import JsonObject

#: Tells whether a text follows an instruction with these arguments; wrong arguments raise ValueError.
Check = Callable[[str, JsonObject], bool]

_RELATIONS: Final = {"at least": int.__ge__, "less than": int.__lt__}


def number(arguments: JsonObject, name: str) -> int:
    """Return an argument that must be a whole number."""
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{name} is {value!r}; it must be a whole number")
    return int(value)


def text(arguments: JsonObject, name: str) -> str:
    """Return an argument that must be a text."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}; it must be text")
    return value


def texts(arguments: JsonObject, name: str) -> list[str]:
    """Return an argument that must be a list of texts."""
    value = arguments.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise ValueError(f"{name} is {value!r}; it must be a list of texts")
    return value


def related(count: int, arguments: JsonObject, relation: str, wanted: str) -> bool:
    """Tell whether a count is as wanted: ``at least`` a number, or ``less than`` it."""
    given: Any = arguments.get(relation)
    if given not in _RELATIONS:
        raise ValueError(f"{relation} is {given!r}; it must be one of {', '.join(_RELATIONS)}")
    return bool(_RELATIONS[given](count, number(arguments, wanted)))
