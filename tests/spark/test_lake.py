"""Access to the lake, and versions of a benchmark in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError, StorageError
from gym_spark.flow import draft
from gym_spark.prepare.catalog import find_benchmark
from gym_spark.prepare.publish import BenchmarkVersion, find_version, get_version, publish
from gym_spark.tables.lake import Lake, spark_schema
from gym_spark.tables.schemas import BENCHMARKS, METRICS, RUNS, TASKS

SAMPLES = Path(__file__).parents[1] / "data" / "benchmarks"


def metric(run_id: str, name: str, value: float | None = None) -> dict[str, Any]:
    """Return a row of `metrics`."""
    return {
        "run_id": run_id,
        "verification_id": "v",
        "name": name,
        "denominator": "planned",
        "value": value,
        "n_tasks": 1,
        "n_rollouts": 1,
    }


def stored(lake: Lake) -> list[tuple[str, str, float | None]]:
    """Return what `metrics` holds, in order."""
    rows = lake.read(METRICS).select("run_id", "name", "value").collect()
    return sorted((row["run_id"], row["name"], row["value"]) for row in rows)


def published(lake: Lake, folder: Path, questions: list[str], broken_at: int | None = None) -> BenchmarkVersion:
    """Prepare the quiz from a file with these questions; the source raises at row `broken_at`."""
    lines = [{"question": text, "answer": "4"} for text in questions]
    if broken_at is not None:
        lines[broken_at - 1]["broken"] = "yes"
    file = folder / "quiz.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return publish(lake, draft(find_benchmark("quiz", [SAMPLES]), sources=[file], num_shards=2))


def current(lake: Lake) -> tuple[str, int]:
    """Return the current version of the quiz, and the rows that `tasks` holds of it."""
    version = get_version(lake, "quiz").version
    return version, lake.read(TASKS, benchmark="quiz", version=version).count()


def test_ensure_a_second_time_leaves_tables_and_rows_as_they_are(lake: Lake) -> None:
    """A table that is there is neither made again nor emptied."""
    lake.ensure(METRICS)
    lake.append_rows(METRICS, [metric("a", "x", 1.0)])
    lake.ensure(METRICS, BENCHMARKS)
    assert lake.exists(BENCHMARKS)
    assert stored(lake) == [("a", "x", 1.0)]
    assert len(list(Path(lake.root, "metrics", "_delta_log").glob("*.json"))) == 2


def test_append_adds_and_replace_changes_only_the_rows_with_the_given_values(lake: Lake) -> None:
    """Replacing one partition leaves its neighbours; a value with a quote is a value, not SQL; replace may empty."""
    odd = "it's `odd' OR 'a' = 'a"
    lake.ensure(METRICS)
    lake.append_rows(METRICS, [metric("a", "x", 1.0), metric(odd, "x", 2.0)])
    lake.append_rows(METRICS, [metric("a", "y")])
    lake.replace(METRICS, lake.frame(METRICS, [metric(odd, "z", 3.0)]), run_id=odd, verification_id="v")
    assert stored(lake) == sorted([("a", "x", 1.0), ("a", "y", None), (odd, "z", 3.0)])
    lake.replace(METRICS, lake.frame(METRICS, []), run_id="a")
    assert stored(lake) == [(odd, "z", 3.0)]
    assert lake.read(METRICS, run_id=odd, name="x").isEmpty()


def test_a_write_that_fails_is_one_line_that_names_the_table_and_what_was_wrong(lake: Lake) -> None:
    """The null rule of a key is enforced; a worker's error is told by its own words; no Java frames, no row."""
    lake.ensure(METRICS)
    rows = lake.frame(METRICS, [metric("a", "x", 1.0)])
    keyless = rows.withColumn("n_tasks", F.lit(None).cast("long"))
    with pytest.raises(StorageError, match=r"^Writing 'metrics' in the lake '.*' failed: .*NOT NULL.*n_tasks\.$"):
        lake.append(METRICS, keyless)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            raise LookupError("no such verifier")
        yield from ()

    with pytest.raises(StorageError, match=r"^Writing 'metrics' .* failed: LookupError: no such verifier$"):
        lake.append(METRICS, rows.mapInArrow(work, spark_schema(METRICS)))
    assert lake.read(METRICS).isEmpty()


def test_what_is_in_a_tables_place_but_is_no_table_is_the_users_mistake(lake: Lake) -> None:
    """Delta would take the folder for an existing table, and the first write would fail."""
    Path(lake.root, "runs").mkdir(parents=True)
    Path(lake.root, "runs", "notes.txt").write_text("of another program")
    with pytest.raises(ConfigError, match=r"lake/runs' is there but is no Delta table; move it, or name"):
        lake.ensure(RUNS)


def test_reading_a_table_that_is_not_there_is_the_users_mistake(lake: Lake) -> None:
    """The message names lake, table and remedy; a benchmark nobody prepared says how to prepare it."""
    with pytest.raises(ConfigError, match=r"lake '.*' has no table 'metrics'; check --lake"):
        lake.read(METRICS)
    assert find_version(lake, "quiz") is None
    with pytest.raises(ConfigError, match=r"no prepared benchmark 'quiz'; run `gym-spark eval prepare"):
        get_version(lake, "quiz")


def test_p04_a_prepare_that_fails_leaves_the_old_version_current_with_its_rows(lake: Lake, tmp_path: Path) -> None:
    """12 rows prepared; the next source raises at row 5: still 12 rows, the same version, and nothing else."""
    first = published(lake, tmp_path, [f"{number}?" for number in range(12)])
    with pytest.raises(ConfigError, match=r"failed at row 5 \(LookupError: no such thing\); nothing was stored"):
        published(lake, tmp_path, [f"{number}!" for number in range(12)], broken_at=5)
    assert current(lake) == (first.version, 12)
    assert (lake.read(TASKS).count(), lake.read(BENCHMARKS).count()) == (12, 1)


def test_versions_stay_and_the_newest_prepare_decides_which_one_is_current(lake: Lake, tmp_path: Path) -> None:
    """The same content twice is one set of rows; other content is beside it; preparing the old one goes back to it."""
    old = published(lake, tmp_path, ["a?", "b?", "c?"])
    new = published(lake, tmp_path, ["a?", "d?"])
    assert current(lake) == (new.version, 2)
    again = published(lake, tmp_path, ["c?", "b?", "a?"])  # the order of a source is not content
    assert again.version == old.version
    assert current(lake) == (old.version, 3)
    assert get_version(lake, "quiz", new.version).tasks == 2
    assert lake.read(TASKS).count() == 5
    # Tasks without their row in `benchmarks`, as a driver that died in between leaves them, are no version.
    orphan = lake.read(TASKS).limit(1).collect()[0].asDict() | {"version": "half"}
    lake.append_rows(TASKS, [orphan])
    assert current(lake) == (old.version, 3)
    with pytest.raises(ConfigError, match=r"no version 'half' of 'quiz'"):
        get_version(lake, "quiz", "half")


def test_a_table_of_an_earlier_version_gets_the_columns_that_came_since(lake: Lake) -> None:
    """Before a run pays for anything: without them its rows could not be committed."""
    columns = [field for field in METRICS.schema if field.name not in ("label", "reason")]
    earlier = replace(METRICS, schema=pa.schema(columns))
    lake.ensure(earlier)
    lake.ensure(METRICS)
    assert set(lake.read(METRICS).columns) == set(METRICS.columns)
    bare = replace(RUNS, schema=pa.schema([field for field in RUNS.schema if field.name != "identity"]))
    lake.ensure(bare)
    with pytest.raises(ConfigError, match="another version of gym-spark and lacks identity;"):
        lake.ensure(RUNS)
