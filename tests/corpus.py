"""The conformance corpus: what NeMo Gym 0.7.0 computed from real and synthetic runs, and how to compare with it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SHARED = Path(__file__).parents[2] / "shared"
#: Differences that are shown.
_SHOWN = 5


@dataclass(frozen=True)
class Case:
    """One folder of the corpus."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    def steps(self) -> dict[str, dict[str, Any]]:
        """Options by step. Steps whose options are not written down have none."""
        named = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))["steps"]
        return {path.stem: named.get(path.stem, {}) for path in sorted((self.folder / "expected").glob("*.json"))}

    def expected(self, step: str) -> Any:
        """What the peer computed, with references to other outputs of the case replaced by what they stand for."""
        raw = json.loads((self.folder / "expected" / f"{step}.json").read_text(encoding="utf-8"))
        return self._resolved(raw)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$same_as" in value:
            return self._referred(value)
        return {name: self._resolved(item) for name, item in value.items()}

    def _referred(self, value: dict[str, Any]) -> Any:
        match = re.fullmatch(
            r"(\w+)\.json(?: (\w+))?(?: where agent_ref\.name is (.+))?", value["$same_as"], flags=re.DOTALL
        )
        assert match, value
        step, part, agent = match.groups()
        target = self.expected(step)
        if part is None:
            return target | {name: item for name, item in value.items() if not name.startswith("$")}
        entries = target[part]
        if agent is not None:
            entries = [entry for entry in entries if entry["agent_ref"]["name"] == agent]
        # The only kind of reference with exceptions: groups of a profile that stand in an aggregate.
        return [_as_aggregated(entry) for entry in entries] if "except" in value else entries


def _as_aggregated(group: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in group.items() if name != "agent_ref"} | {
        "sample": {"agent_ref": {"name": "agent"}},
        "expected_num_rollouts": group["num_rollouts"],
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
    }


def corpus() -> Path:
    """The corpus' folder; a test that asks for it is skipped where there is none."""
    folder = Path(os.environ.get("GYM_SPARK_CORPUS", _SHARED / "corpus"))
    if not folder.is_dir():
        pytest.skip("the conformance corpus is not here; name its folder in GYM_SPARK_CORPUS", allow_module_level=True)
    return folder


def benchmark_files(name: str) -> Path:
    """The folder of a benchmark's published files; a test that asks for it is skipped where there is none."""
    folder = Path(os.environ.get("GYM_SPARK_BENCHMARK_FILES", _SHARED / "data")) / name
    if not folder.is_dir():
        pytest.skip(
            f"the files of {name} are not here; name the folder that has it in GYM_SPARK_BENCHMARK_FILES",
            allow_module_level=True,
        )
    return folder


def cases(step: str = "") -> list[Case]:
    """The cases that have a step whose name starts so."""
    found = [Case(path.parent) for path in sorted(corpus().glob("*/case.json"))]
    return [case for case in found if any(name.startswith(step) for name in case.steps())]


def steps(prefix: str, *, short: Collection[str] = ()) -> list[Any]:
    """The parameters of a test for each case and step whose name starts so; those not in a short form are long."""
    return [
        pytest.param(
            case,
            step,
            id=f"{case.name}-{step}",
            marks=[pytest.mark.long] if short and case.name not in short else [],
        )
        for case in cases(prefix)
        for step in case.steps()
        if step.startswith(prefix)
    ]


def differences(actual: Any, expected: Any) -> list[str]:
    """The first few differences as ``/path/to/value: ours, not theirs``; empty for equal values.

    Numbers are equal within 1e-9 relatively or 1e-12 absolutely; NaN and infinities stand in the corpus as texts;
    order matters in lists only; a ``$brief`` list names the keys of its entries that matter.
    """
    found = []
    for difference in _differences(actual, expected, ""):
        found.append(difference)
        if len(found) == _SHOWN:
            break
    return found


def _differences(actual: Any, expected: Any, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and "$brief" in expected:
        yield from _brief_differences(actual, expected["$brief"], path)
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for name in {**expected, **actual}:
            if name not in actual:
                yield f"{path}/{name}: absent, not {_short(expected[name])}"
            elif name not in expected:
                yield f"{path}/{name}: {_short(actual[name])}, not absent"
            else:
                yield from _differences(actual[name], expected[name], f"{path}/{name}")
    elif isinstance(expected, list) and isinstance(actual, list | tuple):
        if len(actual) != len(expected):
            yield f"{path}: {len(actual)} entries, not {len(expected)}"
        for position, (ours, theirs) in enumerate(zip(actual, expected, strict=False)):
            yield from _differences(ours, theirs, f"{path}/{position}")
    elif not _same(actual, expected):
        yield f"{path or '/'}: {_short(actual)}, not {_short(expected)}"


def _brief_differences(actual: Any, brief: list[dict[str, Any]], path: str) -> Iterator[str]:
    if len(actual) != len(brief):
        yield f"{path}: {len(actual)} entries, not {len(brief)}"
    for position, (ours, theirs) in enumerate(zip(actual, brief, strict=False)):
        shown = {name: item for name, item in ours.items() if name in theirs}
        yield from _differences(shown, theirs, f"{path}/{position}")


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(actual, float) and not math.isfinite(actual):
        actual = "NaN" if math.isnan(actual) else "Infinity" if actual > 0 else "-Infinity"
    if _is_number(actual) and _is_number(expected):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12)
    return type(actual) is type(expected) and actual == expected


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return f"{value!r:.60}"
