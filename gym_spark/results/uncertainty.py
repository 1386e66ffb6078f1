"""Means over tasks, with errors that know that repeats of one task are not independent questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks: None where no task counts; `se` None below two tasks."""

    mean: float | None
    se: float | None
    tasks: int


def task_mean(values: Floats, weights: Floats) -> Estimate:
    """Average one value per task; `weights` counts the tasks that share a value, and NaN values do not count.

    se = sample deviation over tasks / √tasks.
    """
    used = ~np.isnan(values)
    values, weights = values[used], weights[used]
    tasks = int(weights.sum())
    if not tasks:
        return Estimate(None, None, 0)
    mean = float(weights @ values / tasks)
    squares = float(weights @ (values - mean) ** 2)
    return Estimate(mean, (squares / (tasks - 1) / tasks) ** 0.5 if tasks > 1 else None, tasks)


def rollout_mean(totals: Floats, variances: Floats, counts: Floats, weights: Floats) -> Estimate:
    """Average the reward over rollouts, with a standard error clustered by task.

    A ratio estimator: with S_i the sum of task i's rewards over its n_i rollouts and m = sum S_i / sum n_i,
    se^2 = T / (T - 1) * sum (S_i - n_i m)^2 / (sum n_i)^2 over the T tasks with n_i > 0 (Cochran 1977, "Sampling
    Techniques", §9A.7; Miller 2024, "Adding Error Bars to Evals", §2.2, with the small-sample factor).

    Args:
        totals: Mean of S_i in each group of tasks with equal n_i.
        variances: Population variance of S_i in the group.
        counts: n_i.
        weights: Tasks in the group.
    """
    used = counts > 0
    totals, variances, counts, weights = totals[used], variances[used], counts[used], weights[used]
    tasks, rollouts = int(weights.sum()), float(weights @ counts)
    if not tasks:
        return Estimate(None, None, 0)
    mean = float(weights @ totals / rollouts)
    squares = float(weights @ (variances + (totals - counts * mean) ** 2))
    return Estimate(mean, (tasks / (tasks - 1) * squares) ** 0.5 / rollouts if tasks > 1 else None, tasks)


def interval_95(mean: float, se: float, tasks: int, *, bounded: bool) -> tuple[float, float]:
    """Return mean ± t(0.975, tasks - 1)·se: Student's interval with the tasks as the independent units.

    Args:
        mean: The mean.
        se: Its standard error, above 0.
        tasks: Tasks it was taken over, at least two.
        bounded: The true value lies in [0, 1], so what lies outside is cut off; that costs no coverage.
    """
    half = float(stdtrit(tasks - 1, 0.975)) * se
    low, high = mean - half, mean + half
    return (max(low, 0.0), min(high, 1.0)) if bounded else (low, high)
