"""Bootstrap intervals over tasks: the same for the same seed, whatever the partitions; no task leaves its partition.

A cluster bootstrap, for rollouts of one task are not independent. Each replicate weighs every task with a Poisson(1)
count in place of drawing tasks with replacement, which needs no count of all tasks and adds up over partitions
(Chamandy et al. 2012, "Estimating Uncertainty for Massive Data Streams"). The weight of a task is drawn by a hash of
its id, the seed and the replicate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from scipy.stats import poisson

from gym_spark.results.run_profile import Denominator, Metric
from gym_spark.results.uncertainty import Floats

#: Upper ends of a uniform draw for 0, 1, 2, ... counts.
_CUMULATIVE: Final = poisson.cdf(np.arange(20), 1.0)
#: Weights that are in memory at once: replicates times tasks.
_WEIGHTS: Final = 4_000_000
#: Of `task_profiles`: what the metrics are made of.
_COLUMNS: Final = ("planned", "n", "passes", "strict_mean", "mean")
_PERCENTS: Final = (2.5, 97.5)

Name = tuple[str, Denominator]
Unsigned = npt.NDArray[np.uint64]


def bootstrap_intervals(
    profiles: DataFrame, *, max_k: int, replicates: int, seed: int
) -> dict[Name, tuple[float, float]]:
    """Return 95 % percentile intervals; collects one row per partition.

    Args:
        profiles: One row per planned task (`results.passes.profiles_of`).
        max_k: Largest k of pass@k.
        replicates: How often the tasks are weighed anew.
        seed: Another one gives other weights.

    Returns:
        By name and denominator; a metric that has the same value in every replicate has none.
    """
    names = _names(max_k)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        sums = np.zeros((replicates, 2 * len(names)))
        for batch in batches:
            columns = {name: _floats(batch.column(name)) for name in _COLUMNS}
            values = _parts(columns, max_k)
            hashes = np.asarray(batch.column("hash")).astype(np.uint64)
            step = max(1, _WEIGHTS // replicates)
            for first in range(0, len(hashes), step):
                sums += weights(hashes[first : first + step], replicates) @ values[first : first + step]
        yield pa.record_batch({"sums": pa.array([sums.tobytes()], pa.binary())})

    rows = profiles.select(F.xxhash64("task_id", F.lit(seed)).alias("hash"), *_COLUMNS)
    partials = rows.mapInArrow(work, "sums binary").collect()
    total = np.zeros((replicates, 2 * len(names)))
    for row in partials:
        total += np.frombuffer(row["sums"]).reshape(total.shape)
    found = {}
    for place, name in enumerate(names):
        above, below = total[:, 2 * place], total[:, 2 * place + 1]
        values = above[below > 0] / below[below > 0]
        if len(values) and values.min() < values.max():
            low, high = np.percentile(values, _PERCENTS)
            found[name] = (float(low), float(high))
    return found


def with_intervals(metrics: Iterable[Metric], found: dict[Name, tuple[float, float]]) -> tuple[Metric, ...]:
    """Return the metrics with the bootstrap's intervals in place of Student's, where it has one."""
    return tuple(
        metric.between(*found[metric.name, metric.denominator])
        if (metric.name, metric.denominator) in found
        else metric
        for metric in metrics
    )


def weights(hashes: Unsigned, replicates: int) -> Floats:
    """Return the Poisson(1) weight of each task in each replicate: (replicates, tasks)."""
    with np.errstate(over="ignore"):
        # splitmix64 (Steele et al. 2014), a step for each replicate.
        mixed = hashes[None, :] + np.arange(1, replicates + 1, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    drawn = np.searchsorted(_CUMULATIVE, (mixed >> np.uint64(11)) * 2.0**-53, side="right")
    return np.asarray(drawn, np.float64)


def _names(max_k: int) -> list[Name]:
    both: tuple[Denominator, ...] = ("planned", "scored")
    return [(name, kind) for kind in both for name in ("mean_reward", *(f"pass@{k}" for k in range(1, max_k + 1)))]


def _parts(columns: dict[str, Floats], max_k: int) -> Floats:
    """Return what each task adds to numerator and denominator of each metric: (tasks, 2 x metrics)."""
    passes = columns["passes"]
    parts = []
    for count, mean in ((columns["planned"], columns["strict_mean"]), (columns["n"], columns["mean"])):
        parts += [mean * count, count]
        # 1 - C(count - passes, k) / C(count, k), a factor for each k (Chen et al. 2021, §2.1).
        all_wrong = np.ones(len(count))
        for k in range(1, max_k + 1):
            enough = count >= k
            left = np.maximum(count - passes - (k - 1), 0.0)
            all_wrong = np.where(enough, all_wrong * left / np.maximum(count - (k - 1), 1.0), all_wrong)
            parts += [np.where(enough, 1.0 - all_wrong, 0.0), enough.astype(np.float64)]
    return np.stack(parts, axis=1)


def _floats(column: pa.Array) -> Floats:
    return np.asarray(column.cast(pa.float64()).fill_null(0.0), np.float64)
