"""The manifest of a prepared version: what it was made from, by what, and which fields were kept or dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from gym_spark.config import JsonObject
from gym_spark.prepare.catalog import SCRIPT_FILE, Benchmark
from gym_spark.prepare.prompts import PromptSpec
from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def describe(
    benchmark: Benchmark, source: Source, tasks: Sequence[tuple[str, Row]], *, override: PromptSpec | None
) -> JsonObject:
    """Return the manifest as a JSON object.

    Args:
        benchmark: The benchmark.
        source: Its resolved input.
        tasks: Id and row of every task.
        override: The prompt that replaced the benchmark's own, if one did.
    """
    rows = [row for _, row in tasks]
    baked = sum(row.responses_create_params is not None for row in rows)
    prompt = (override or benchmark.spec.prompt) if baked < len(rows) else None
    return {
        "benchmark": benchmark.spec.name,
        "split": benchmark.spec.split,
        "license": benchmark.spec.license,
        "source": _source(source),
        "rows": len(rows),
        "prompt": prompt.model_dump(mode="json", exclude_none=True) if prompt else None,
        "prompt_from": "rows" if prompt is None else "prompt_config" if override else "benchmark",
        "baked_prompts": baked,
        "fields": _fields(rows, prompt),
        "patches": [{"task_id": task_id, "patch": row.patch} for task_id, row in tasks if row.patch is not None],
        "prepare_sha256": hashlib.sha256((benchmark.folder / SCRIPT_FILE).read_bytes()).hexdigest(),
        "gym_spark_version": version("gym-spark"),
    }


def _source(source: Source) -> JsonObject:
    spec = source.spec
    # A file that the user gave is the declared revision only if its content says so.
    declared = source.kind == "url" or spec.sha256 in [file.sha256 for file in source.files]
    return {
        "kind": source.kind,
        "files": [
            {"name": file.name, "sha256": file.sha256, "bytes": file.bytes, "rows": file.rows} for file in source.files
        ],
        "url": spec.url if source.kind == "url" else None,
        "revision": spec.revision if declared else None,
        "params": spec.params,
    }


def _fields(rows: Sequence[Row], prompt: PromptSpec | None) -> JsonObject:
    used = prompt.fields() if prompt else []
    baked = ["responses_create_params"] if any(row.responses_create_params is not None for row in rows) else []
    verifier, kept = _keys(row.verifier_inputs for row in rows), _keys(row.metadata for row in rows)
    raw = _keys(row.raw for row in rows)
    return {
        "prompt": used,
        "verifier_inputs": verifier,
        "metadata": kept,
        "dropped": sorted(set(raw) - {*used, *baked, *verifier, *kept}),
    }


def _keys(mappings: Iterable[JsonObject]) -> list[str]:
    return sorted({key for mapping in mappings for key in mapping})
