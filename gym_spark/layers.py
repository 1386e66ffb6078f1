"""Layers of configuration: YAML files and ``--set`` assignments come in, nested mappings leave, merged in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError


def read_yaml(path: Path) -> JsonObject:
    """Read a YAML mapping, or raise a `ConfigError` that names the file and line, or the key."""
    loaded = _load(_text_of(path), f"'{path}'")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"'{path}' must hold a mapping of keys to values, not a {type(loaded).__name__}.")
    return loaded


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file '{path}'; check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' cannot be read as text ({error}).") from error


class _Loader(yaml.SafeLoader):
    """Reads YAML whose keys are text, as JSON's are."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                problem = f"the key '{key.value}' is not read as text; write it in quotes"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep=deep)


def _load(text: str, where: str, remedy: str = "") -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"{where}{line} is not valid YAML: {problem}{remedy}.") from error
    except (ValueError, RecursionError) as error:  # such as a date that does not exist
        raise ConfigError(f"{where} is not valid YAML: {error}{remedy}.") from error


def parse_overrides(assignments: Sequence[str]) -> JsonObject:
    """Turn ``a.b=value`` assignments into a nested object; values are read as YAML (``1``, ``true``, ``[a, b]``).

    ``a.b=@FILE`` is the file's text as it is, a judge's prompt say. (No YAML value begins with @.)
    What follows ``spark.`` is one key, for the names of Spark's settings have dots.
    """
    merged: JsonObject = {}
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes KEY=VALUE, not '{assignment}'.")
        remedy = f"; write text in quotes (--set '{key}=\"...\"'), or take it from a file (--set {key}=@FILE)"
        value: Any = _text_of(Path(text[1:])) if text.startswith("@") else _load(text, f"--set {key}", remedy)
        for part in reversed(key.split(".", 1 if key.startswith("spark.") else -1)):
            value = {part: value}
        merged = merge(merged, value)
    return merged


def merge(*layers: Mapping[str, Any]) -> JsonObject:
    """Merge nested mappings, later layers winning; anything but a mapping is replaced whole."""
    merged: JsonObject = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            merged[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return merged


def given(flags: Mapping[str, Any]) -> JsonObject:
    """Leave out what the user did not give: None and what is empty, at any depth."""
    found: JsonObject = {}
    for key, value in flags.items():
        kept = given(value) if isinstance(value, Mapping) else value
        if kept not in (None, {}, (), []):
            found[key] = kept
    return found
