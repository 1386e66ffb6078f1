"""The `runs` table: an append-only log in which the newest row of a run stands. Appends never conflict."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pyspark.sql import functions as F

from gym_spark.config import JsonObject, RunSpec, differences, validate
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import RUNS

Status = Literal["running", "finished", "incomplete", "budget_exhausted", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the lake knows it."""

    spec: RunSpec
    status: Status
    verification_id: str
    planned_tasks: int
    planned_rollouts: int
    versions: Mapping[str, str]


def record_run(lake: Lake, record: RunRecord, *, error: str | None = None) -> None:
    """Add the run's newest state."""
    spec = record.spec
    lake.append_rows(
        RUNS,
        [
            {
                "run_id": spec.run_id,
                "recorded_at": datetime.now(UTC),
                "status": record.status,
                "benchmark": spec.benchmark,
                "dataset_version": spec.dataset_version,
                "model": spec.endpoint.model,
                "identity": spec.identity(),
                "verification_id": record.verification_id,
                "planned_tasks": record.planned_tasks,
                "planned_rollouts": record.planned_rollouts,
                "error": error,
                "versions": json.dumps(dict(record.versions)),
                "spec": spec.model_dump_json(),
            }
        ],
    )


def find_run(lake: Lake, run_id: str) -> RunRecord | None:
    """Return the run's newest state, or None if the lake has no such run."""
    if not lake.exists(RUNS):
        return None
    row = lake.read(RUNS, run_id=run_id).orderBy(F.desc("recorded_at")).first()
    if row is None:
        return None
    return RunRecord(
        spec=validate(RunSpec, json.loads(row["spec"]), f"the stored run '{run_id}'"),
        status=row["status"],
        verification_id=row["verification_id"],
        planned_tasks=row["planned_tasks"],
        planned_rollouts=row["planned_rollouts"],
        versions=json.loads(row["versions"]),
    )


def list_runs(lake: Lake) -> list[JsonObject]:
    """Return the newest state of every run, the newest first: `run_id`, `status`, `benchmark`, `model`, and so on."""
    if not lake.exists(RUNS):
        return []
    shown = ("status", "benchmark", "model", "planned_tasks", "planned_rollouts", "recorded_at")
    newest = F.max_by(F.struct(*shown), "recorded_at").alias("newest")
    rows = lake.read(RUNS).groupBy("run_id").agg(newest).select("run_id", "newest.*").collect()
    ordered = sorted(rows, key=lambda row: row["recorded_at"], reverse=True)
    return [row.asDict() | {"recorded_at": row["recorded_at"].isoformat()} for row in ordered]


def get_run(lake: Lake, run_id: str) -> RunRecord:
    """Return the run's newest state, or raise a `ConfigError` that names the nearest run."""
    record = find_run(lake, run_id)
    if record is None:
        known = [] if not lake.exists(RUNS) else lake.read(RUNS).select("run_id").distinct().limit(200).collect()
        raise ConfigError(
            f"The lake '{lake.root}' has no run '{run_id}'" + did_you_mean(run_id, [row["run_id"] for row in known])
        )
    return record


def check_resumable(stored: RunRecord, wanted: RunRecord) -> None:
    """Stop if `wanted` would not continue the stored run.

    Raises:
        ConfigError: something that can change a score differs (every such key is named), or the plan would shrink.
    """
    run_id = wanted.spec.run_id
    changed = differences(stored.spec.identity_parts(), wanted.spec.identity_parts())
    if changed:
        raise ConfigError(
            f"The run '{run_id}' was made with other settings ({'; '.join(changed)}); "
            "use the old ones to resume it, or another --run-id."
        )
    sizes = {
        "tasks": (stored.planned_tasks, wanted.planned_tasks),
        "repeats": (stored.spec.num_repeats, wanted.spec.num_repeats),
    }
    for what, (old, new) in sizes.items():
        if new < old:
            raise ConfigError(
                f"The run '{run_id}' has {old} {what} and would be left with {new}; a resumed run can only grow, "
                "so give the old size or a larger one, or another --run-id."
            )


def versions(extra: Mapping[str, str]) -> JsonObject:
    """Return the versions that a run records: ours, the engine's, and what `extra` adds."""
    packages = ("gym-spark", "pyspark", "delta-spark", "pyarrow", "numpy", "httpx", "aiohttp")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **found, **extra}
