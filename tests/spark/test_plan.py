"""The plan: which tasks, which repeats, and what of them is still to do."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gym_spark.rollout.plan import MAX_ATTEMPTS, chosen_tasks, pending_rollouts, planned_rollouts
from tests.spark.frames import Row, failure, frame_of, rollout, rollouts, spread

NARROW = pa.schema([("task_id", pa.string()), ("task_index", pa.int64()), ("shard", pa.int32())])
#: 100 tasks sorted by kind, as a benchmark file often is: 50 a, 30 b, 20 c.
SORTED = [f"{letter}{number:02d}" for letter, count in (("a", 50), ("b", 30), ("c", 20)) for number in range(count)]


def tasks_named(spark: SparkSession, names: list[str]) -> DataFrame:
    """Return tasks as the plan takes them."""
    rows = [{"task_id": name, "task_index": index, "shard": 0} for index, name in enumerate(names)]
    return frame_of(spark, rows, NARROW)


def ids(frame: DataFrame) -> list[str]:
    """Return the task ids, sorted."""
    return sorted(row["task_id"] for row in frame.select("task_id").collect())


def todo(planned: DataFrame, stored: DataFrame) -> dict[tuple[str, int], int]:
    """Return the next attempt of each rollout that is still to do."""
    rows = pending_rollouts(planned, stored).collect()
    found = {(row["task_id"], row["rollout_index"]): row["attempt"] for row in rows}
    assert len(found) == len(rows), "a rollout is planned twice"
    return found


def test_p03_a_limit_picks_across_a_sorted_benchmark_whatever_the_partitions_or_order(spark: SparkSession) -> None:
    """10 of 50 a, 30 b, 20 c with seed 7 hold all letters, and are the same ten however the rows lie."""
    tasks = tasks_named(spark, SORTED)
    picked = ids(chosen_tasks(spread(tasks, 1), count=10, seed=7))
    assert Counter(name[0] for name in picked).keys() == {"a", "b", "c"}
    assert len(picked) == 10
    assert ids(chosen_tasks(spread(tasks, 8), count=10, seed=7)) == picked
    shuffled = tasks_named(spark, SORTED[::-1][37:] + SORTED[::-1][:37])
    assert ids(chosen_tasks(shuffled, count=10, seed=7)) == picked


def test_a_larger_limit_contains_the_smaller_and_another_seed_picks_others(spark: SparkSession) -> None:
    """A run can be extended to more tasks without giving up any that it has paid for."""
    tasks = tasks_named(spark, SORTED)
    ten = ids(chosen_tasks(tasks, count=10, seed=7))
    assert set(ten) < set(ids(chosen_tasks(tasks, count=25, seed=7)))
    assert ids(chosen_tasks(tasks, count=10, seed=8)) != ten
    assert ids(chosen_tasks(tasks, count=100, seed=7)) == SORTED


def test_every_task_is_planned_once_per_repeat(spark: SparkSession) -> None:
    """Repeats are counted from 0, with the column type that `rollouts` has."""
    planned = planned_rollouts(tasks_named(spark, ["x", "y"]), num_repeats=3)
    assert dict(planned.dtypes)["rollout_index"] == "int"
    rows = sorted((row["task_id"], row["rollout_index"]) for row in planned.collect())
    assert rows == list(product(["x", "y"], range(3)))


#: Stored attempts of one rollout -> its next attempt, or None where it is never done again.
CASES: dict[str, tuple[list[Row], int | None]] = {
    "new": ([], 1),
    "completed": ([rollout("completed")], None),
    "terminal": ([failure("terminal", terminal=True)], None),
    "failed": ([failure("failed")], 2),
    "failed_thrice": ([failure("failed_thrice", attempt=number) for number in (1, 2, 3)], 4),
    "last_chance": ([failure("last_chance", attempt=number) for number in range(1, MAX_ATTEMPTS)], MAX_ATTEMPTS),
    "used_up": ([failure("used_up", attempt=number) for number in range(1, MAX_ATTEMPTS + 1)], None),
    "passed_later": ([failure("passed_later"), rollout("passed_later", attempt=2)], None),
    # A late result of an old attempt does not bring a completed rollout back.
    "failed_late": ([rollout("failed_late"), failure("failed_late", attempt=2)], None),
    "terminal_later": ([failure("terminal_later"), failure("terminal_later", attempt=2, terminal=True)], None),
}


@pytest.mark.parametrize("partitions", [1, 7])
def test_what_is_done_again_is_what_may_still_pass(spark: SparkSession, partitions: int) -> None:
    """Completed and terminal rollouts never, others with the next attempt up to the last one, new ones first."""
    planned = planned_rollouts(tasks_named(spark, list(CASES)), num_repeats=1)
    stored = rollouts(spark, *(row for rows, _ in CASES.values() for row in rows))
    wanted = {(name, 0): attempt for name, (_, attempt) in CASES.items() if attempt is not None}
    assert todo(spread(planned, partitions), spread(stored, partitions)) == wanted


def test_p27_more_tasks_and_repeats_leave_only_what_is_new_to_do(spark: SparkSession) -> None:
    """5 tasks x 1 done, then 8 x 2: exactly the 11 others; the same 8 x 2 done as well: nothing."""
    tasks = tasks_named(spark, SORTED)
    first = ids(chosen_tasks(tasks, count=5, seed=0))
    planned = planned_rollouts(chosen_tasks(tasks, count=8, seed=0), num_repeats=2)
    new = todo(planned, rollouts(spark, *(rollout(name) for name in first)))
    assert len(new) == 11
    assert set(new.values()) == {1}
    assert not new.keys() & {(name, 0) for name in first}
    eight = ids(chosen_tasks(tasks, count=8, seed=0))
    done = rollouts(spark, *(rollout(name, index) for name, index in product(eight, range(2))))
    assert todo(planned, done) == {}


def test_empty_inputs_plan_nothing_or_everything(spark: SparkSession) -> None:
    """No tasks are no plan; no stored rollouts leave all of it."""
    nothing, none_stored = tasks_named(spark, []), rollouts(spark)
    assert todo(planned_rollouts(chosen_tasks(nothing, count=3, seed=0), num_repeats=2), none_stored) == {}
    planned = planned_rollouts(tasks_named(spark, ["x"]), num_repeats=2)
    assert todo(planned, none_stored) == {("x", 0): 1, ("x", 1): 1}
    # Rows of tasks that the plan no longer holds are left alone.
    assert todo(planned, rollouts(spark, failure("gone"))) == {("x", 0): 1, ("x", 1): 1}
