"""One repeat of all tasks as one observation: statistics within each repeat, and across them.

Student intervals are mean ± t(0.975, n - 1)·se, over the tasks of a repeat or over the repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from gym_spark.results.describe import Bools, Floats, Ints, Statistic, describe, quantile, sort_groups

#: In the order in which NeMo Gym writes them.
REPEAT_STATISTICS: Final = (
    "mean",
    "median",
    "std",
    "sem",
    "min",
    "max",
    "p25",
    "p75",
    "ci_low_95",
    "ci_high_95",
)

#: Names that count or number something: averaging them over repeats says nothing.
_BOOKKEEPING: Final = frozenset(
    {
        "_ng_task_index",
        "_ng_rollout_index",
        "_ng_attempt_index",
        "sample_count",
        "missing_count",
        "num_repeats",
        "token_usage_version",
    }
)
#: Names of statistics that describe a spread or a bound of another one.
_SECONDARY_PREFIXES: Final = (
    *("max/", "min/", "median/", "std/", "sem/", "se/", "p25/", "p75/", "ci_low_95/", "ci_high_95/"),
    "histogram/",
)
_SECONDARY_SUFFIXES: Final = (
    *("/max", "/min", "/median", "/p5", "/p25", "/p75", "/p95", "/ci_low_95", "/ci_high_95"),
    *("/ci_lower", "/ci_upper", "_ci_lower", "_ci_upper", "_ci95_lower", "_ci95_upper"),
    *("/_ng_attempt_index", "/std_dev_across_runs", "/std_err_across_runs", "/avg_sample_std_dev"),
)


def repeat_statistics(
    values: npt.ArrayLike, present: Bools, repeats: npt.NDArray[np.integer], n_repeats: int
) -> dict[str, Statistic]:
    """Describe a column in each repeat.

    Args:
        values: Value of each row; anything where it is not present.
        present: Whether the row has a value.
        repeats: Repeat of each row, 0 ... n_repeats - 1.
        n_repeats: Number of repeats.

    Returns:
        One :class:`Statistic` over the repeats for each of :data:`REPEAT_STATISTICS`: std is the sample deviation, 0.0
        for one value; sem = std / √n; quartiles are linear; the interval is defined from two values on, and is the mean
        twice where sem is 0. A repeat without values, or with one that is not finite, has none.
    """
    described = describe(repeats, n_repeats, values, present)
    column = np.asarray(values, dtype=np.float64)
    groups = sort_groups(repeats, n_repeats, column, present & ~described.non_finite[repeats])
    plain = described.statistics
    single = groups.counts == 1
    std = Statistic(np.where(single, 0.0, plain["std"].values), plain["std"].defined | single)
    sem = Statistic(std.values / np.sqrt(np.maximum(groups.counts, 1)), std.defined)
    low, high = _interval(plain["mean"].values, sem.values, groups.counts)
    bounded = plain["mean"].defined & sem.defined & (groups.counts > 1)
    some = plain["mean"].defined
    return {
        "mean": plain["mean"],
        "median": plain["median"],
        "std": std,
        "sem": sem,
        "min": plain["min"],
        "max": plain["max"],
        "p25": Statistic(quantile(groups, 0.25), some),
        "p75": Statistic(quantile(groups, 0.75), some),
        "ci_low_95": Statistic(low, bounded),
        "ci_high_95": Statistic(high, bounded),
    }


def samples_per_repeat(
    tasks: npt.NDArray[np.integer], repeats: npt.NDArray[np.integer], n_repeats: int
) -> tuple[Ints, int]:
    """Count the distinct tasks.

    Both numbers add up over partitions of whole tasks; the tasks missing from a repeat are the second less the first.

    Args:
        tasks: Code of each row's task, from 0 on.
        repeats: Repeat of each row, 0 ... n_repeats - 1.
        n_repeats: Number of repeats, at least 1.

    Returns:
        Distinct tasks in each repeat (int64), and in all of them.
    """
    pairs = _distinct(tasks.astype(np.int64) * n_repeats + repeats)
    return np.bincount(pairs % n_repeats, minlength=n_repeats), len(_distinct(pairs // n_repeats))


def is_primary(name: str) -> bool:
    """Tell whether a metric is a result in itself, whose spread across repeats is worth telling."""
    return not (
        name in _BOOKKEEPING
        or name.startswith(_SECONDARY_PREFIXES)
        or name.endswith(_SECONDARY_SUFFIXES)
        or "_across_repeats/" in name
    )


def across_repeats(entries: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Describe each primary metric of the repeats, every repeat counting the same.

    Args:
        entries: The metrics of each repeat. What is not a finite number is left out.

    Returns:
        ``<statistic>_across_repeats/<metric>`` for mean, median, std (sample, 0.0 for one repeat), min, max, se
        (std / √n) and, from two repeats on, ci_low_95 and ci_high_95; metrics in code-point order.
    """
    metrics: dict[str, float] = {}
    for name in sorted({name for entry in entries for name in entry if is_primary(name)}):
        observed = _numbers(entry.get(name) for entry in entries)
        if len(observed):
            one = repeat_statistics(observed, np.ones(len(observed), bool), np.zeros(len(observed), np.int64), 1)
            for statistic in ("mean", "median", "std", "min", "max", "sem", "ci_low_95", "ci_high_95"):
                value, defined = one[statistic]
                if defined[0]:
                    short = "se" if statistic == "sem" else statistic
                    metrics[f"{short}_across_repeats/{name}"] = float(value[0])
    return metrics


def _distinct(values: Ints) -> Ints:
    # numpy's unique hashes integers, which takes several times as long as sorting them.
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _numbers(values: Iterable[object]) -> Floats:
    return np.array(
        [
            value
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ],
        dtype=np.float64,
    )


def _interval(mean: Floats, sem: Floats, counts: Ints) -> tuple[Floats, Floats]:
    half = stdtrit(np.maximum(counts - 1, 1), 0.975) * sem
    return mean - half, mean + half
