"""`json_schema`: the answer is one JSON or YAML document that its task's schema allows, by the library jsonschema.

The whole answer must be the document: no prose and, unless `fenced`, no code fence around it, since whoever asks for
structured output parses it as it comes. JSON is strict: no NaN, no key twice in an object. A task is a row as NeMo
Gym's structured_outputs has it:

- ``schema_str`` (JSON text) or ``schema`` (an object), in the dialect that its ``$schema`` names, 2020-12 without.
- ``schema_type``: ``json`` (default) or ``yaml``. Others of NeMo Gym (xml, toml, csv) are refused: each needs rules of
  its own for which text is which type, and verdicts would depend on these.
- ``response_mode`` ``tool_call``: the document is the arguments of the only call, of ``tool_name``; with a
  ``tool_payload_key`` it is the argument of that name, and the only one.

Isolated, for an expression in a schema can hang on the right answer, and YAML's aliases make a few lines endless.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator as Checker
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from gym_spark.config import JsonObject
from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text
from gym_spark.verify.tool_call import function_calls, strict_json

_FENCE: Final = re.compile(r"\s*```[A-Za-z]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)

#: Keywords whose value is a schema, a list of schemas, or schemas by name. Not `allOf`, `if` and `not`: these are
#: parts of one object's schema, and made strict each would refuse the others' properties.
_SCHEMA: Final = ("items", "additionalProperties", "additionalItems", "contains", "unevaluatedItems")
_LISTED: Final = ("anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

_REASON_CHARS: Final = 300

#: What parsers raise in words of their own; others are told by their type too.
_SAID: Final = (ValueError, yaml.YAMLError, RecursionError)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML has it (an unquoted date is no text), but what would be no JSON object is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(set(written)) < len(written) or not all(isinstance(key, str) for key in found):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice, or is no text", node.start_mark)
        return found


class JsonSchema(Verifier):
    """Reward 1 if the answer is a document that the schema allows, else 0; ``detail`` says the first fault.

    Args:
        strict: Objects that list `properties` must have all of these and no others, as the structured-output modes of
            endpoints and NeMo Gym have it; an optional value is spelled as one that may be null.
        formats: Check ``format`` too (``date``, ``email``, ...), as far as the library can without further packages.
        fenced: Accept one code fence around the document.
    """

    name = "json_schema"
    version = f"2 jsonschema=={version('jsonschema')} PyYAML=={version('PyYAML')}"
    isolated = True
    needs_response = True

    def __init__(self, *, strict: bool = True, formats: bool = False, fenced: bool = False) -> None:
        self._strict = strict
        self._formats = FormatChecker() if formats else None
        self._fenced = fenced

    def verify(self, item: Judgeable) -> Verdict:
        """Parse and check; a schema that is none, or of an unknown type, raises."""
        checker = self._checker(item.verifier_inputs)
        kind = item.verifier_inputs.get("schema_type", "json")
        if kind not in ("json", "yaml"):
            raise ValueError(f"the task's schema_type is {kind!r}; json_schema knows json and yaml alone")
        try:
            found = self._document(item, kind)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a parser raises over a text, that text is no document
            return _refused(f"no document: {error}" if isinstance(error, _SAID) else f"no document ({error!r})")
        try:
            fault = best_match(checker.iter_errors(found))
        except Unresolvable as error:
            raise ValueError(f"the task's schema refers to what it does not hold ({error})") from error
        except (MemoryError, re.error):  # the machine's fault, and the schema's
            raise
        except Exception as error:  # noqa: BLE001  the schema is a right one: it is the document's values, or depth
            return _refused(f"the document cannot be checked ({error!r})")
        return Verdict.scored(1.0) if fault is None else _refused(f"{fault.json_path}: {fault.message}")

    def _checker(self, task: JsonObject) -> Checker:
        schema = task.get("schema_str", task.get("schema"))
        try:
            if isinstance(schema, str):
                schema = json.loads(schema)
            if not isinstance(schema, dict | bool):
                raise ValueError(f"it is {type(schema).__name__}, not an object")
            dialect = validator_for(schema, default=Draft202012Validator)
            dialect.check_schema(schema)
        except (ValueError, SchemaError) as error:
            raise ValueError(f"the task's schema is none: {_short(str(error))}") from error
        if self._strict:
            schema = _made_strict(schema)
        # A registry of its own and empty: the library's default one fetches a reference over the network.
        return dialect(schema, registry=Registry(), format_checker=self._formats)

    def _document(self, item: Judgeable, kind: str) -> Any:
        if item.verifier_inputs.get("response_mode") == "tool_call":
            return _payload(item)
        text = answer_text(item)
        if self._fenced and (fence := _FENCE.fullmatch(text)):
            text = fence[1]
        if not text.strip():
            raise ValueError("the answer is empty")
        return strict_json(text) if kind == "json" else yaml.load(text, _Loader)


def _payload(item: Judgeable) -> Any:
    """Return the document that the answer's only call hands over."""
    calls = function_calls(item.response)
    name, key = item.verifier_inputs.get("tool_name"), item.verifier_inputs.get("tool_payload_key")
    if len(calls) != 1:
        raise ValueError(f"the answer has {len(calls)} calls, not one")
    if calls[0].fault or calls[0].name != name:
        raise ValueError(calls[0].fault or f"{calls[0].name} is called, not {name}")
    if key is None:
        return calls[0].arguments
    if list(calls[0].arguments) != [key]:
        raise ValueError(f"the call's arguments are {', '.join(calls[0].arguments)}, not {key} alone")
    return calls[0].arguments[key]


def _made_strict(schema: Any) -> Any:
    """Return a copy where each object with `properties` requires all of them and allows no others."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for keyword in _SCHEMA:
        if keyword in made:
            made[keyword] = _made_strict(made[keyword])
    for keyword in _LISTED:
        if isinstance(made.get(keyword), list):
            made[keyword] = [_made_strict(inner) for inner in made[keyword]]
    for keyword in _NAMED:
        if isinstance(made.get(keyword), dict):
            made[keyword] = {name: _made_strict(inner) for name, inner in made[keyword].items()}
    if isinstance(made.get("properties"), dict):
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    return made


def _refused(reason: str) -> Verdict:
    return Verdict.scored(0.0, detail={"reason": _short(reason)})


def _short(text: str) -> str:
    return text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "..."
