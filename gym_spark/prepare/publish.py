"""Put a prepared benchmark into the lake: its tasks first, then the manifest row that makes the version current."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import functions as F

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.prepare.tasks import PreparedTasks
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import BENCHMARKS, TASKS


@dataclass(frozen=True, slots=True)
class BenchmarkVersion:
    """One stored version of a benchmark."""

    benchmark: str
    version: str
    tasks: int
    shards: int
    duplicates: int
    manifest: JsonObject


def version_of(prepared: PreparedTasks) -> BenchmarkVersion:
    """Return the version that prepared tasks will be."""
    return BenchmarkVersion(
        benchmark=prepared.benchmark,
        version=prepared.version,
        tasks=prepared.table.num_rows,
        shards=prepared.shards,
        duplicates=prepared.duplicates,
        manifest=prepared.manifest,
    )


def publish(lake: Lake, prepared: PreparedTasks) -> BenchmarkVersion:
    """Store one version and make it the current one.

    The tasks are one atomic commit that replaces only the same version; readers see a version once its manifest row is
    there, so a failure on the way leaves the old version current. What is current already is left as it is.
    """
    wanted = version_of(prepared)
    if find_version(lake, prepared.benchmark) == wanted:
        return wanted
    lake.ensure(TASKS, BENCHMARKS)
    rows = lake.spark.createDataFrame(prepared.table).repartition(prepared.shards, "shard")
    lake.replace(TASKS, rows, benchmark=prepared.benchmark, version=prepared.version)
    lake.append_rows(
        BENCHMARKS,
        [
            {
                "benchmark": prepared.benchmark,
                "version": prepared.version,
                "prepared_at": datetime.now(UTC),
                "split": prepared.split,
                "tasks": prepared.table.num_rows,
                "shards": prepared.shards,
                "duplicates": prepared.duplicates,
                "gym_spark_version": prepared.manifest.get("gym_spark_version"),
                "manifest": json.dumps(prepared.manifest, ensure_ascii=False),
            }
        ],
    )
    return wanted


def find_version(lake: Lake, benchmark: str, version: str | None = None) -> BenchmarkVersion | None:
    """Return the benchmark's current version, or the one asked for, or None if the lake has none."""
    if not lake.exists(BENCHMARKS):
        return None
    rows = lake.read(BENCHMARKS, benchmark=benchmark)
    if version is not None:
        rows = rows.where(F.col("version") == version)
    row = rows.orderBy(F.desc("prepared_at")).first()
    if row is None:
        return None
    return BenchmarkVersion(
        benchmark=row["benchmark"],
        version=row["version"],
        tasks=row["tasks"],
        shards=row["shards"],
        duplicates=row["duplicates"],
        manifest=json.loads(row["manifest"]),
    )


def get_version(lake: Lake, benchmark: str, version: str | None = None) -> BenchmarkVersion:
    """Return the benchmark's version, or raise a `ConfigError` that says how to prepare it."""
    found = find_version(lake, benchmark, version)
    if found is None:
        known = lake.read(BENCHMARKS).select("benchmark").distinct() if lake.exists(BENCHMARKS) else None
        names = [row["benchmark"] for row in known.collect()] if known is not None else []
        what = f"version '{version}' of '{benchmark}'" if version else f"prepared benchmark '{benchmark}'"
        raise ConfigError(
            f"The lake '{lake.root}' has no {what}{did_you_mean(benchmark, set(names) - {benchmark}).rstrip('.')}; "
            f"run `gym-spark eval prepare --benchmark {benchmark}` first."
        )
    return found
