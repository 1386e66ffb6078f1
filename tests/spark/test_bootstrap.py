"""Bootstrap intervals: seeded, by task, the same in any partitioning."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from gym_spark.results.bootstrap import bootstrap_intervals, weights
from tests.spark.frames import spread

REPEATS = 4
TASKS = 60


def drawn() -> list[tuple[str, int, int, int, float, float | None]]:
    """Return tasks of which some are only half scored, and one not at all."""
    draw = np.random.default_rng(5)
    found = []
    for number in range(TASKS):
        scored = 0 if number == 7 else int(draw.integers(2, REPEATS + 1))
        passes = int(draw.binomial(scored, draw.random()))
        mean = passes / scored if scored else None
        found.append((f"t{number}", REPEATS, scored, passes, passes / REPEATS, mean))
    return found


def profiles(spark: SparkSession, rows: list[tuple[str, int, int, int, float, float | None]]) -> DataFrame:
    columns = "task_id string, planned long, n long, passes long, strict_mean double, mean double"
    return spark.createDataFrame(rows, columns)


def test_the_interval_is_the_same_in_any_partitioning_and_another_with_another_seed(spark: SparkSession) -> None:
    frame = profiles(spark, drawn())
    one = bootstrap_intervals(spread(frame, 1), max_k=REPEATS, replicates=300, seed=3)
    seven = bootstrap_intervals(spread(frame, 7), max_k=REPEATS, replicates=300, seed=3)
    other = bootstrap_intervals(frame, max_k=REPEATS, replicates=300, seed=4)
    assert one.keys() == seven.keys()
    assert len(one) == 2 * (1 + REPEATS)
    for name, interval in one.items():
        assert seven[name] == pytest.approx(interval, rel=1e-12)
        assert other[name] != interval


def test_it_agrees_with_drawing_tasks_with_replacement(spark: SparkSession) -> None:
    """Both ends of mean reward and pass@2, over the plan and over scored rollouts, by a plain loop over resamples."""
    rows = drawn()
    found = bootstrap_intervals(profiles(spark, rows), max_k=2, replicates=4000, seed=0)
    draw = np.random.default_rng(1)
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in found}
    for _ in range(4000):
        picked = [rows[place] for place in draw.integers(0, TASKS, TASKS)]
        samples["mean_reward", "planned"].append(sum(row[3] for row in picked) / sum(row[1] for row in picked))
        samples["mean_reward", "scored"].append(sum(row[3] for row in picked) / sum(row[2] for row in picked))
        for kind, count in (("planned", 1), ("scored", 2)):
            for k in (1, 2):
                enough = [row for row in picked if row[count] >= k]
                missed = [comb(row[count] - row[3], k) / comb(row[count], k) for row in enough]
                samples[f"pass@{k}", kind].append(1 - sum(missed) / len(enough))
    for name, values in samples.items():
        low, high = np.percentile(values, (2.5, 97.5))
        assert found[name] == pytest.approx((low, high), abs=0.012), name


def test_a_metric_without_spread_has_no_interval(spark: SparkSession) -> None:
    """Every task passed every time: no resample tells how far that could be from the truth. Nor do no tasks."""
    same = profiles(spark, [(f"t{number}", 2, 2, 2, 1.0, 1.0) for number in range(5)])
    assert bootstrap_intervals(same, max_k=2, replicates=100, seed=0) == {}
    assert bootstrap_intervals(same.limit(0), max_k=2, replicates=100, seed=0) == {}


def test_weights_are_poisson_counts_of_mean_one() -> None:
    hashes = np.random.default_rng(2).integers(0, 2**63, 2000).astype(np.uint64)
    found = weights(hashes, 500)
    assert found.mean() == pytest.approx(1.0, abs=0.005)
    assert found.var() == pytest.approx(1.0, abs=0.01)
    # Neighbouring replicates and tasks are drawn apart from each other.
    assert np.corrcoef(found[0], found[1])[0, 1] == pytest.approx(0.0, abs=0.08)
    assert np.corrcoef(found[:, 0], found[:, 1])[0, 1] == pytest.approx(0.0, abs=0.15)
