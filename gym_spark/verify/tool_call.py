"""`tool_call_match`: the answer's function calls are the expected ones, argument by argument.

What a task expects, in one of three forms (tests/unit/test_verify_tool_call.py has the table):

- ``ground_truth``: a list of ``{name: {argument: [accepted values]}}``, as the Berkeley Function-Calling Leaderboard
  has it. The accepted value ``""`` means that the argument may be left out; an object's own values are lists of
  accepted ones too. An empty list: no call is right. With ``function`` or ``tools``, the functions that were offered, a
  declared type counts: 5.0 is no integer, 5 is a float.
- ``expected_calls``: a list of ``{"name": ..., "arguments": {...}}``; arguments are equal as JSON values.
- ``expected_action``: one item of a Responses API answer, a ``function_call`` or a ``message`` (then no call is right).

A task whose expected arguments are nested more than 100 deep is refused, and one that expects more than 200 calls in
any order, for each is tried for each. An argument that is not expected is wrong, and so are arguments that are no JSON
object or name one key twice. Function names are compared as the APIs allow them: "math.sum" can only be offered, and
called, as "math_sum".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from gym_spark.config import JsonObject
from gym_spark.verify.base import Judgeable, Verdict, Verifier

_FORBIDDEN_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")

#: Levels of an expected argument, which are compared by recursion, and expected calls in any order: 200 take 0.5 s.
_DEEPEST: Final = 100
_MOST_CALLS: Final = 200

#: What does not count within texts of ``ground_truth``: "New York, NY" is "new york ny".
_LOOSE: Final = re.compile(r"[ ,./\-_*^]")

#: Declared type of a parameter, in Python's or JSON Schema's words, -> test of a JSON value.
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("string", "str"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("integer", "int"), lambda value: isinstance(value, int) and not isinstance(value, bool)),
    **dict.fromkeys(("number", "float"), lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    **dict.fromkeys(("boolean", "bool"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("array", "list", "tuple"), lambda value: isinstance(value, list)),
    **dict.fromkeys(("object", "dict"), lambda value: isinstance(value, dict)),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A function call that an answer holds."""

    name: str
    arguments: JsonObject
    #: The arguments as they were written, or sorted by key where they are right.
    text: str
    #: Why they are no JSON object; `arguments` is empty then.
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    #: Returns what is wrong with the arguments of a call, or None.
    fault_of: Callable[[JsonObject], str | None]


class ToolCallMatch(Verifier):
    """Reward 1 if the answer calls the expected functions with the expected arguments and no others, else 0.

    `extracted_answer` is the calls, one a line; the score ``calls`` their number.

    Args:
        order: ``any``: several calls may come in any order; ``fixed``: in that of the task.
        texts: How texts of ``ground_truth`` are compared: ``loose`` (case, blanks and ``,./-_*^`` do not count, as the
            leaderboard does) or ``exact``.
    """

    name = "tool_call_match"
    version = "2"
    needs_response = True

    def __init__(self, *, order: Literal["any", "fixed"] = "any", texts: Literal["loose", "exact"] = "loose") -> None:
        self._order = order
        self._loose = texts == "loose"

    def verify(self, item: Judgeable) -> Verdict:
        """Pair the calls with the expected ones; a task that expects nothing in a known form raises."""
        wanted = _wanted(item.verifier_inputs, loose=self._loose)
        if self._order == "any" and len(wanted) > _MOST_CALLS:
            raise ValueError(f"the task expects {len(wanted)} calls; over {_MOST_CALLS} can only be had in fixed order")
        calls = function_calls(item.response)
        fault = self._fault(calls, wanted)
        return Verdict.scored(
            float(fault is None),
            extracted_answer="\n".join(f"{call.name}({call.text})" for call in calls) or None,
            scores={"calls": len(calls)},
            detail={"reason": fault} if fault else {},
        )

    def _fault(self, calls: list[Call], wanted: list[_Wanted]) -> str | None:
        if len(calls) != len(wanted):
            return f"{len(calls)} calls where {len(wanted)} are expected"
        for call in calls:
            if call.fault:
                return f"call of {call.name}: {call.fault}"
        if self._order == "fixed" or len(calls) == 1:
            return next(
                (fault for call, want in zip(calls, wanted, strict=True) if (fault := _mismatch(call, want))), None
            )
        faults = [[_mismatch(call, want) for call in calls] for want in wanted]
        if _can_be_paired([[position for position, fault in enumerate(row) if fault is None] for row in faults]):
            return None
        return next((str(row[0]) for row in faults if None not in row), "two expected calls fit the same call only")


def function_calls(response: JsonObject | None) -> list[Call]:
    """Return the function calls of a Responses API object, in order."""
    output = (response or {}).get("output")
    items = output if isinstance(output, list) else []
    return [_call(item) for item in items if isinstance(item, dict) and item.get("type") == "function_call"]


def _call(item: JsonObject) -> Call:
    name, given = str(item.get("name")), item.get("arguments") or "{}"
    text = given if isinstance(given, str) else json.dumps(given)  # some servers send the object itself
    try:
        arguments = strict_json(text)
        if not isinstance(arguments, dict):
            raise ValueError(f"{type(arguments).__name__}, not an object")
        return Call(name, arguments, json.dumps(arguments, sort_keys=True, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        return Call(name, {}, text, f"its arguments are no JSON object ({error})"[:300])


def strict_json(text: str) -> Any:
    """Parse JSON as its standard has it.

    Raises:
        ValueError: It is not JSON, or an object in it has one key twice.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refused)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _mismatch(call: Call, want: _Wanted) -> str | None:
    if _api_name(call.name) != _api_name(want.name):
        return f"{call.name} is called, not {want.name}"
    fault = want.fault_of(call.arguments)
    return f"call of {call.name}: {fault}" if fault else None


def _api_name(name: str) -> str:
    return _FORBIDDEN_IN_NAMES.sub("_", name)


def _can_be_paired(fitting: list[list[int]]) -> bool:
    """Tell whether each expected call has a call of its own (Kuhn's matching by augmenting paths)."""
    owner: dict[int, int] = {}

    def found_one_for(want: int, tried: set[int]) -> bool:
        for call in fitting[want]:
            if call not in tried:
                tried.add(call)
                if call not in owner or found_one_for(owner[call], tried):
                    owner[call] = want
                    return True
        return False

    return all(found_one_for(want, set()) for want in range(len(fitting)))


def _wanted(task: JsonObject, *, loose: bool) -> list[_Wanted]:
    """Return the expected calls.

    Raises:
        ValueError: The task has none of the three forms, or one that is wrong.
    """
    try:
        if isinstance(task.get("ground_truth"), list):
            types = _declared_types(task)
            return [_accepting(call, types, loose=loose) for call in task["ground_truth"]]
        if isinstance(task.get("expected_calls"), list):
            return [_exactly(call) for call in task["expected_calls"]]
        if isinstance(action := task.get("expected_action"), dict):
            return [_exactly(action)] if action.get("type") == "function_call" else []
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the task's expected calls are in no known form ({error!r})") from error
    raise ValueError("the task has neither ground_truth, expected_calls nor expected_action")


def _exactly(call: JsonObject) -> _Wanted:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise TypeError(f"arguments are {arguments!r}")
    _check_depth(arguments)

    def fault_of(given: JsonObject) -> str | None:
        wrong = [name for name in {**arguments, **given} if name not in given or name not in arguments]
        wrong = wrong or [name for name, value in arguments.items() if not _same(given[name], value)]
        return f"argument {wrong[0]!r} differs" if wrong else None

    return _Wanted(str(call["name"]), fault_of)


def _accepting(call: JsonObject, types: dict[str, JsonObject], *, loose: bool) -> _Wanted:
    ((name, accepted),) = call.items()
    declared = types.get(_api_name(name), {})
    _check_depth(accepted)

    def fault_of(given: JsonObject) -> str | None:
        return next(_faults(given, accepted, declared, loose=loose), None)

    for argument, values in accepted.items():
        if not isinstance(values, list) or not values:
            raise TypeError(f"argument {argument!r} of {name} has no list of accepted values")
    return _Wanted(name, fault_of)


def _check_depth(arguments: JsonObject) -> None:
    level: list[Any] = [arguments]
    for _ in range(_DEEPEST + 1):
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(f"an argument is nested more than {_DEEPEST} deep")


def _faults(given: JsonObject, accepted: JsonObject, declared: JsonObject, *, loose: bool) -> Iterator[str]:
    for name, values in accepted.items():
        if name not in given:
            if "" not in values:
                yield f"argument {name!r} is missing"
        elif given[name] is None and None in values:  # whatever is declared
            continue
        elif not _TYPES.get(declared.get(name, ""), lambda _: True)(given[name]):
            yield f"argument {name!r} is {json.dumps(given[name])[:80]}, not of type {declared[name]}"
        elif not any(_accepts(value, given[name], loose=loose) for value in values):
            yield f"argument {name!r} is {json.dumps(given[name])[:80]}"
    yield from (f"argument {name!r} is not expected" for name in given if name not in accepted)


def _accepts(accepted: Any, given: Any, *, loose: bool) -> bool:
    if isinstance(accepted, str) and isinstance(given, str):
        return _loosely(accepted) == _loosely(given) if loose else accepted == given
    if isinstance(accepted, list) and isinstance(given, list):
        return len(accepted) == len(given) and all(
            _accepts(one, other, loose=loose) for one, other in zip(accepted, given, strict=True)
        )
    if isinstance(accepted, dict) and isinstance(given, dict):
        lists = {name: values if isinstance(values, list) else [values] for name, values in accepted.items()}
        return next(_faults(given, lists, {}, loose=loose), None) is None
    return _same(accepted, given)


def _loosely(text: str) -> str:
    return _LOOSE.sub("", text).casefold().replace("'", '"')


def _same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def _declared_types(task: JsonObject) -> dict[str, JsonObject]:
    """Return the declared type of each parameter of each function that the task offered."""
    offered = task.get("function") or task.get("tools") or []
    types: dict[str, JsonObject] = {}
    for function in offered if isinstance(offered, list) else [offered]:
        function = function.get("function", function)  # Chat Completions' tools have one level more
        parameters = (function.get("parameters") or {}).get("properties") or {}
        types[_api_name(function["name"])] = {
            name: schema["type"] for name, schema in parameters.items() if isinstance(schema.get("type"), str)
        }
    return types
