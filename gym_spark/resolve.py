"""From what the user gave to one complete `RunSpec`: benchmark defaults, config files, flags, overrides, in layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gym_spark.config import JsonObject, RunSpec, validate
from gym_spark.errors import ConfigError
from gym_spark.layers import given, merge, parse_overrides, read_yaml
from gym_spark.prepare.catalog import Benchmark, BenchmarkSpec, find_benchmark, search_path


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A complete specification, and the benchmark that it is about."""

    spec: RunSpec
    benchmark: Benchmark


def resolve_run(
    flags: Mapping[str, Any] | None = None,
    *,
    stored: RunSpec | None = None,
    config: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    search_dirs: Sequence[Path] = (),
) -> Evaluation:
    """Merge the layers and check the result; nothing but files is touched.

    Args:
        flags: Fields of `RunSpec`, nested; a None inside means "not given".
        stored: The run that is to be resumed, below all layers; None for a run whose layers tell all.
        config: YAML files with fields of `RunSpec`, later ones winning.
        overrides: ``a.b=value`` assignments, which win over all.
        search_dirs: Folders with benchmark folders, before the shipped ones.

    Raises:
        ConfigError: a key or value is wrong, or the benchmark is unknown.
    """
    layers = [] if stored is None else [("the stored run", stored.model_dump(mode="json", exclude_none=True))]
    layers += [(str(path), read_yaml(path)) for path in config]
    layers += [("the command line", given(flags or {})), ("--set", parse_overrides(overrides))]
    merged: JsonObject = merge(*(layer for _, layer in layers))
    name = merged.get("benchmark")
    if not isinstance(name, str):
        raise ConfigError("Name the benchmark to run with --benchmark; `gym-spark list benchmarks` shows them.")
    benchmark = find_benchmark(name, search_path(search_dirs))
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    defaults = {"run_id": f"{name}-{stamp}"} | _defaults(benchmark.spec, merged)
    return Evaluation(validate(RunSpec, merge(defaults, merged), partial(_origin, layers)), benchmark)


def _origin(layers: Sequence[tuple[str, JsonObject]], path: Sequence[str]) -> str:
    """Name the layer that a key's value came from: the last that has the longest part of its path."""
    found, depth = "the run", 0
    for name, layer in layers:
        value: Any = layer
        for length, part in enumerate(path, start=1):
            if not isinstance(value, Mapping) or part not in value:
                break
            value = value[part]
            found, depth = (name, length) if length >= depth else (found, depth)
    return found


def _defaults(spec: BenchmarkSpec, chosen: Mapping[str, Any]) -> JsonObject:
    """Return the benchmark's defaults; parameters of a part stay out when another part is chosen in its place."""
    defaults = spec.model_dump(mode="json", include={"num_repeats", "sampling"}, exclude_none=True)
    for part in ("harness", "verifier"):
        own, other = getattr(spec, part), chosen.get(part)
        replaced = isinstance(other, Mapping) and other.get("name", own.name) != own.name
        defaults |= {} if replaced else {part: own.model_dump(mode="json")}
    return defaults
