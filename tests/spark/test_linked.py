"""Parts that become files of the table as they are: the same rows as an append gives, and nothing lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_spark.rollout import adoption
from gym_spark.rollout.adoption import adopt_parts
from gym_spark.rollout.place import staging_of
from gym_spark.rollout.records import to_batch
from gym_spark.rollout.share import WHOLE
from gym_spark.rollout.staging import Staging
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.spark.frames import RUN, failure, rollout

LARGE = "x" * adoption.LINKED_BYTES


@pytest.fixture
def staging(lake: Lake) -> Staging:
    """The staging folder of a job, with two large parts; the second holds a failure."""
    lake.ensure(ROLLOUTS)
    folder = staging_of(lake, RUN).job("job1")
    folder.put_part(0, "a-0", to_batch([rollout("x", 0, output_text=LARGE), rollout("x", 1, shard=3)]))
    folder.put_part(1, "b-0", to_batch([rollout("y", output_text=LARGE), failure("z")]))
    return folder


def rows(lake: Lake) -> list[dict[str, Any]]:
    """Return the stored rows, in order of their keys."""
    found = [row.asDict(recursive=True) for row in lake.read(ROLLOUTS, run_id=RUN).collect()]
    return sorted(found, key=lambda row: (row["task_id"], row["rollout_index"]))


def operations(lake: Lake) -> list[str | None]:
    """Return who wrote each commit, the newest first."""
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.name(ROLLOUTS)}").collect()
    return ["spark" if "Spark" in (row.engineInfo or "") else "linked" for row in history]


def test_linked_parts_hold_what_an_append_would_store_and_are_compacted_like_others(
    lake: Lake, staging: Staging
) -> None:
    """Every column, the partition's too; the staging folder can go, for the table has its own names of the files."""
    adopt_parts(lake, RUN, staging.parts(), WHOLE, are_new=True)
    assert operations(lake) == ["linked", "spark"]
    linked = rows(lake)
    assert lake.read(ROLLOUTS).count() == 4
    staging.remove()
    assert rows(lake) == linked
    lake.compact(ROLLOUTS, above=1, run_id=RUN)
    assert len(lake.read(ROLLOUTS).inputFiles()) == 1
    assert rows(lake) == linked

    appended = Lake(lake.spark, f"{lake.root}-appended")
    appended.ensure(ROLLOUTS)
    again = staging_of(appended, RUN).job("job1")
    again.put_part(0, "a-0", to_batch([rollout("x", 0, output_text=LARGE), rollout("x", 1, shard=3)]))
    again.put_part(1, "b-0", to_batch([rollout("y", output_text=LARGE), failure("z")]))
    adopt_parts(appended, RUN, again.parts(), WHOLE)
    assert operations(appended) == ["spark", "spark"]
    assert rows(appended) == linked


def test_parts_that_are_adopted_twice_are_stored_once(lake: Lake, staging: Staging) -> None:
    """A driver that died or failed after the commit comes back with the same parts: no file of the table is touched."""
    for are_new in (True, True, False):
        adopt_parts(lake, RUN, staging.parts(), WHOLE, are_new=are_new)
        assert len(rows(lake)) == 4
    assert operations(lake).count("linked") == 1


def test_small_parts_and_other_disks_are_appended(
    lake: Lake, staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small parts would be very many files; a file of another disk cannot be linked, and leaves nothing behind."""
    small = staging_of(lake, RUN).job("job2")
    small.put_part(0, "c-0", to_batch([rollout("small")]))
    adopt_parts(lake, RUN, small.parts(), WHOLE, are_new=True)
    assert [row["task_id"] for row in rows(lake)] == ["small"]

    monkeypatch.setenv("GYM_SPARK_STAGING", "/dev/shm/gym-spark-test-linked")
    elsewhere = staging_of(lake, RUN).job("job3")
    elsewhere.put_part(0, "d-0", to_batch([rollout("far", output_text=LARGE)]))
    adopt_parts(lake, RUN, elsewhere.parts(), WHOLE, are_new=True)
    elsewhere.remove()
    assert [row["task_id"] for row in rows(lake)] == ["far", "small"]
    assert "linked" not in operations(lake)
    assert not list(Path(lake.root, "rollouts").rglob("p00000-d-0.parquet"))
