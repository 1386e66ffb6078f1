"""Mean, extremes, median and deviation of a column in every group at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: In the order in which NeMo Gym writes them.
STATISTICS: Final = ("mean", "max", "min", "median", "std")


class Statistic(NamedTuple):
    """One value per group: float64 and bool arrays of equal length; only defined values mean anything."""

    values: Floats
    defined: Bools


@dataclass(frozen=True, slots=True)
class Sorted:
    """The values of each group, ascending.

    Attributes:
        values: float64, all groups one after the other.
        starts: int64, one per group: where its values start.
        counts: int64, one per group: how many it has; may be 0.
    """

    values: Floats
    starts: Ints
    counts: Ints


@dataclass(frozen=True, slots=True)
class Described:
    """Statistics of one column, one entry per group.

    Attributes:
        count: int64, values present.
        non_finite: bool, a NaN or an infinity is among them: the reason why no statistic is defined.
        statistics: By name, in the order of :data:`STATISTICS`.
    """

    count: Ints
    non_finite: Bools
    statistics: dict[str, Statistic]


def describe(codes: npt.NDArray[np.integer], n_groups: int, values: npt.ArrayLike, present: Bools) -> Described:
    """Describe a column in each group.

    Args:
        codes: Group of each row, 0 ... n_groups - 1. Sorted codes are fastest. Rows without a value stand here too,
            since the number of rows matters.
        n_groups: Number of groups.
        values: Value of each row, numbers or booleans; anything where it is not present.
        present: Whether the row has a value.

    Returns:
        Over the present values of each group: mean, max, min, median and the sample deviation (n - 1). Nothing is
        defined for a group without values, nor where a value is NaN or infinite (`non_finite`), nor what overflows.
        The deviation of a single value is undefined, except that it is 0 in a group of one row.

    The exception is NeMo Gym's: if in a set of rows no column has a deviation, the deviation is 0 for the columns that
    every row has. A column in every one of two or more rows has a deviation, so that means sets of one row.
    """
    rows = np.bincount(codes, minlength=n_groups)
    column = np.asarray(values, dtype=np.float64)
    infinite = present & ~np.isfinite(column)
    non_finite = np.bincount(codes[infinite], minlength=n_groups) > 0
    usable = present & ~non_finite[codes] if infinite.any() else present
    groups = sort_groups(codes, n_groups, column, usable)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = _moments(groups)
        median = quantile(groups, 0.5)
    some = groups.counts > 0
    low, high = _ends(groups)
    statistics = {
        "mean": _finite(mean, some),
        "max": Statistic(high, some),
        "min": Statistic(low, some),
        "median": _finite(median, some),
        "std": _finite(std, (groups.counts > 1) | (some & (rows == 1))),
    }
    return Described(np.bincount(codes[present], minlength=n_groups), non_finite, statistics)


def sort_groups(codes: npt.NDArray[np.integer], n_groups: int, values: Floats, present: Bools) -> Sorted:
    """Sort the present values within each group.

    Args:
        codes: Group of each row.
        n_groups: Number of groups.
        values: Value of each row; no NaN among the present ones.
        present: Whether the row has a value.
    """
    chosen, column = (codes, values.copy()) if present.all() else (codes[present], values[present])
    if (chosen[1:] < chosen[:-1]).any():
        # numpy sorts integers of 16 bits by radix, in linear time.
        order = np.argsort(chosen.astype(np.uint16) if n_groups <= 1 << 16 else chosen, kind="stable")
        chosen, column = chosen[order], column[order]
    counts = np.bincount(chosen, minlength=n_groups)
    starts = np.cumsum(counts) - counts
    groups = Sorted(column, starts, counts)
    # Groups of equal size are rows of a matrix. There are few sizes, at most √(2·rows).
    for size, members in _by_size(groups):
        if size > 1:
            cells = starts[members][:, None] + np.arange(size)
            column[cells] = np.sort(column[cells], axis=1)
    return groups


def quantile(groups: Sorted, q: float) -> Floats:
    """Return the q-quantile of each group, linear between order statistics (Hyndman & Fan 1996, type 7).

    The value is meaningless for a group without values.
    """
    if not len(groups.values):
        return np.zeros(len(groups.counts))
    last = np.maximum(groups.counts - 1, 0)
    position = q * last
    below = position.astype(np.int64)
    # A group without values may start past the end.
    first = np.minimum(groups.starts, len(groups.values) - 1)
    low = groups.values[np.minimum(first + below, len(groups.values) - 1)]
    high = groups.values[np.minimum(first + np.minimum(below + 1, last), len(groups.values) - 1)]
    fraction = position - below
    # Halving first keeps the median of two large values from overflowing.
    interpolated: Floats = low * (1.0 - fraction) + high * fraction
    return np.where(low == high, low, interpolated)


def _by_size(groups: Sorted) -> Iterator[tuple[int, Ints]]:
    if not len(groups.counts):
        return
    order = np.argsort(groups.counts, kind="stable")
    sizes, first = np.unique(groups.counts[order], return_index=True)
    yield from zip(sizes.tolist(), np.split(order, first[1:]), strict=True)


def _moments(groups: Sorted) -> tuple[Floats, Floats]:
    """Return mean and sample deviation (0.0 for one value) of each group, in two passes with pairwise sums."""
    mean, std = np.zeros(len(groups.counts)), np.zeros(len(groups.counts))
    filled = np.flatnonzero(groups.counts)
    if not len(filled):
        return mean, std
    counts, starts = groups.counts[filled], groups.starts[filled]
    low, high = groups.values[starts], groups.values[starts + counts - 1]
    # Equal values have exactly their value as mean and no spread, which rounding would hide.
    mean[filled] = np.where(low == high, low, np.add.reduceat(groups.values, starts) / counts)
    squares = (groups.values - np.repeat(mean[filled], counts)) ** 2
    std[filled] = np.sqrt(np.add.reduceat(squares, starts) / np.maximum(counts - 1, 1))
    return mean, std


def _ends(groups: Sorted) -> tuple[Floats, Floats]:
    low, high = np.zeros(len(groups.counts)), np.zeros(len(groups.counts))
    filled = np.flatnonzero(groups.counts)
    starts = groups.starts[filled]
    low[filled] = groups.values[starts]
    high[filled] = groups.values[starts + groups.counts[filled] - 1]
    return low, high


def _finite(values: Floats, defined: Bools) -> Statistic:
    return Statistic(values, defined & np.isfinite(values))
