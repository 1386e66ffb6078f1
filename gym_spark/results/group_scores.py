"""Scores of groups of tasks (a subject, a language), and two ways to average them, each with the error that fits it.

Micro: every task counts the same. Macro: every group does. With group means m_g, sample variances v_g of the tasks'
means and n_g tasks, a weighted mean sum w_g m_g has the variance sum w_g^2 v_g / n_g, since groups are fixed strata
(Cochran 1977, "Sampling Techniques", §5.3): w_g = n_g / sum n for micro, 1 / (number of groups) for macro.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.results.run_profile import Denominator, Metric
from gym_spark.results.uncertainty import interval_95

#: Groups that a field may make: more of them are not groups but names.
MOST: Final = 1000
#: Denominator -> column of `task_profiles` that holds a task's mean, and what counts its rollouts.
_COLUMNS: Final[dict[Denominator, tuple[str, str]]] = {"planned": ("strict_mean", "planned"), "scored": ("mean", "n")}


def group_scores(profiles: DataFrame, tasks: DataFrame, field: str) -> tuple[Metric, ...]:
    """Average mean rewards by a field of the tasks; collects one row per group.

    Args:
        profiles: One row per planned task (`results.passes.profiles_of`).
        tasks: `task_id`, and `verifier_inputs` and `metadata` (JSON), in one of which the field stands.
        field: Name of the field.

    Returns:
        For either denominator ``mean_reward/micro:FIELD``, ``mean_reward/macro:FIELD`` and ``mean_reward/FIELD=VALUE``;
        tasks without the field are the group ``(none)``.

    Raises:
        ConfigError: no task has the field, or it has more values than groups can be.
    """
    rows = profiles.join(tasks.select("task_id", task_field(field).alias("group")), on="task_id").groupBy("group")
    found = rows.agg(
        *(
            number
            for mean, count in _COLUMNS.values()
            for number in (
                F.count(mean).alias(f"tasks_{mean}"),
                F.avg(mean).alias(f"mean_{mean}"),
                F.when(F.count(mean) > 1, F.var_samp(mean)).alias(f"variance_{mean}"),
                F.sum(F.when(F.col(mean).isNotNull(), F.col(count))).alias(f"rollouts_{mean}"),
            )
        ),
        F.min("min").alias("lowest"),
        F.max("max").alias("highest"),
    )
    groups = sorted(found.limit(MOST + 1).collect(), key=lambda row: (row["group"] is None, row["group"] or ""))
    if all(row["group"] is None for row in groups):
        raise ConfigError(f"No task has the field '{field}'; --by takes a field of the tasks' metadata.")
    if len(groups) > MOST:
        raise ConfigError(f"The field '{field}' has more than {MOST} values; --by takes one that makes groups.")
    return tuple(metric for denominator in _COLUMNS for metric in _metrics(groups, field, denominator))


def task_field(field: str) -> Column:
    """Return a field of a task as text, from `metadata` or else `verifier_inputs`; null where it has none."""
    path = f"$['{field}']"
    return F.coalesce(F.get_json_object("metadata", path), F.get_json_object("verifier_inputs", path))


def _metrics(groups: Sequence[Row], field: str, denominator: Denominator) -> list[Metric]:
    column, _ = _COLUMNS[denominator]
    used = [row for row in groups if row[f"tasks_{column}"]]
    counts = np.array([row[f"tasks_{column}"] for row in used], dtype=float)
    # One task in a group tells nothing of the spread in it.
    variances = np.array([row[f"variance_{column}"] for row in used], dtype=float)
    means = np.array([row[f"mean_{column}"] for row in used], dtype=float)
    rollouts = sum(row[f"rollouts_{column}"] for row in used)
    in_unit = all(row["lowest"] >= 0 and row["highest"] <= 1 for row in groups if row["lowest"] is not None)
    metric = partial(_metric, denominator=denominator, bounded=in_unit)

    def averaged(name: str, weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Metric:
        if not used:
            return metric(name, value=None, se=None, tasks=0, rollouts=0, reason="no rollout is scored")
        error = float(np.sqrt(np.sum(weights**2 * variances / counts)))
        value = float(weights @ means)
        return metric(name, value=value, se=error, tasks=int(counts.sum()), rollouts=rollouts, reason=None)

    found = [
        averaged(f"mean_reward/micro:{field}", counts / max(counts.sum(), 1.0)),
        averaged(f"mean_reward/macro:{field}", np.full(len(used), 1.0 / max(len(used), 1))),
    ]
    for row, mean, variance, count in zip(used, means, variances, counts, strict=True):
        value = "(none)" if row["group"] is None else row["group"]
        error = float(np.sqrt(variance / count))
        name, rolled = f"mean_reward/{field}={value}", row[f"rollouts_{column}"]
        found.append(metric(name, value=float(mean), se=error, tasks=int(count), rollouts=rolled, reason=None))
    return found


def _metric(
    name: str,
    *,
    denominator: Denominator,
    value: float | None,
    se: float | None,
    tasks: int,
    rollouts: int,
    reason: str | None,
    bounded: bool,
) -> Metric:
    low = high = None
    if se is not None and np.isnan(se):
        se, reason = None, "an interval needs two tasks in every group"
    elif se == 0:
        reason = "every task of a group has the same value: no interval can be estimated from that"
    elif se is not None and value is not None:
        low, high = interval_95(value, se, tasks, bounded=bounded)
    return Metric(name, denominator, value, se, low, high, tasks, rollouts, reason)
