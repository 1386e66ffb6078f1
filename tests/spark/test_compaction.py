"""Files of `rollouts`: how many an adoption writes, how many a compaction leaves, and that no row gets lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gym_spark.rollout.adoption import PARTS_PER_FILE, adopt_parts, staging_of
from gym_spark.rollout.records import to_batch
from gym_spark.rollout.share import WHOLE
from gym_spark.tables.lake import MANY_FILES, Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.spark.frames import RUN, rollout, rollouts


def files(lake: Lake, run_id: str = RUN) -> list[str]:
    """Return the run's files in `rollouts`."""
    return sorted(lake.read(ROLLOUTS, run_id=run_id).inputFiles())


def newest(lake: Lake) -> Any:
    """Return the newest commit of `rollouts`."""
    return lake.spark.sql(f"DESCRIBE HISTORY {lake.name(ROLLOUTS)} LIMIT 1").first()


def append_many(lake: Lake, run_id: str, count: int) -> None:
    """Add one rollout per file."""
    rows = [rollout(f"{number:03d}", run_id=run_id) for number in range(count)]
    # By key, not round robin, which would put two rows into one file and none into another.
    frame = rollouts(lake.spark, *rows).repartitionByRange(count, "task_id")
    lake.append(ROLLOUTS, frame)


@pytest.mark.parametrize("kind", ["folder", "uri", "catalog"])
def test_many_small_files_of_a_run_become_few_and_its_rows_and_other_runs_stay(
    lake: Lake, kind: str, request: pytest.FixtureRequest
) -> None:
    """The second time there is nothing to do, and no commit; nor is there for a run of few files."""
    place = {"folder": lake.root, "uri": f"file://{lake.root}", "catalog": "spark_catalog.compaction"}[kind]
    if kind == "catalog":
        lake.spark.sql(f"CREATE DATABASE {place} LOCATION '{lake.root}'")
        request.addfinalizer(lambda: lake.spark.sql(f"DROP DATABASE {place} CASCADE"))
    lake = Lake(lake.spark, place)
    lake.ensure(ROLLOUTS)
    append_many(lake, RUN, MANY_FILES + 1)
    append_many(lake, "it's", MANY_FILES)
    before = files(lake, "it's")
    assert (len(files(lake)), len(before)) == (MANY_FILES + 1, MANY_FILES)
    for run_id in (RUN, "it's"):
        lake.compact(ROLLOUTS, run_id=run_id)
    assert len(files(lake)) == 1
    assert files(lake, "it's") == before
    assert {row["task_id"] for row in lake.read(ROLLOUTS, run_id=RUN).collect()} == {
        f"{number:03d}" for number in range(MANY_FILES + 1)
    }
    last = newest(lake)
    assert last["operation"] == "OPTIMIZE"
    lake.compact(ROLLOUTS, run_id=RUN)
    assert newest(lake)["version"] == last["version"]


def test_a_compaction_beside_writers_fails_neither_and_loses_no_row(lake: Lake) -> None:
    """Appends of the same run while its files are rewritten."""
    lake.ensure(ROLLOUTS)
    append_many(lake, RUN, MANY_FILES + 4)
    with ThreadPoolExecutor(1) as beside:
        compaction = beside.submit(lake.compact, ROLLOUTS, run_id=RUN)
        for number in range(3):
            lake.append_rows(ROLLOUTS, [rollout(f"new-{number}")])
        compaction.result()
    assert lake.read(ROLLOUTS, run_id=RUN).count() == MANY_FILES + 4 + 3


def test_p50_an_adoption_is_one_blind_append_and_its_files_do_not_grow_with_shards_or_workers(lake: Lake) -> None:
    """40 parts of 40 workers with a shard each: two files. A blind append conflicts with no other writer."""
    lake.ensure(ROLLOUTS)
    staging = staging_of(lake, RUN).job("job1")
    count = PARTS_PER_FILE + 8
    for number in range(count):
        staging.put_part(number, "0", to_batch([rollout(f"{number}", shard=number)]))
    adopt_parts(lake, RUN, staging.parts(), WHOLE)
    assert len(files(lake)) == 2
    assert lake.read(ROLLOUTS).count() == count
    assert newest(lake)["isBlindAppend"]
