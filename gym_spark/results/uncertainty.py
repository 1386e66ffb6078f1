"""Intervals around a mean over tasks."""

from __future__ import annotations

from scipy.special import stdtrit


def interval_95(mean: float, se: float, tasks: int) -> tuple[float, float]:
    """Return mean ± t(0.975, tasks - 1)·se: Student's interval with the tasks as the independent units.

    It is not cut at 0 and 1: an interval that leaves the range says that there are too few tasks for it.
    """
    half = float(stdtrit(tasks - 1, 0.975)) * se
    return mean - half, mean + half
