"""A run's profile: coverage against the plan, mean reward and pass@k, each number with what it was computed over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from gym_spark.results.outcomes import breakdown, coverage_row
from gym_spark.results.pass_at_k import pass_curve
from gym_spark.results.reward_profile import mean_reward
from gym_spark.results.uncertainty import interval_95

Denominator = Literal["planned", "scored"]

#: Denominator -> (column that counts a task's rollouts, column with the mean over them).
_OVER: Final[dict[Denominator, tuple[str, str]]] = {"planned": ("planned", "strict_mean"), "scored": ("n", "mean")}


@dataclass(frozen=True, slots=True)
class Metric:
    """One number over the whole run. `value` and the interval are None where undefined, and `reason` says why."""

    name: str
    denominator: Denominator
    value: float | None
    se: float | None
    ci_low: float | None
    ci_high: float | None
    n_tasks: int
    n_rollouts: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the plan, in rollouts unless named tasks."""

    planned_tasks: int
    planned: int
    completed: int
    failed: int
    missing: int
    scored: int
    unscored: int
    tasks_without_score: int
    input_tokens: int | None
    output_tokens: int | None
    failures: dict[str, int]
    answer_states: dict[str, int]
    verdicts: dict[str, int]

    @property
    def fraction(self) -> float:
        """Scored rollouts over planned ones."""
        return self.scored / self.planned if self.planned else 0.0

    def summary(self) -> str:
        """Say in one line how much of the plan the numbers rest on."""
        text = f"{self.scored} of {self.planned} planned rollouts scored ({100 * self.fraction:.1f} %)"
        gaps = {"failed": self.failed, "missing": self.missing, "answered but not scored": self.unscored}
        named = [f"{count} {what}" for what, count in gaps.items() if count]
        if self.tasks_without_score:
            named.append(f"{self.tasks_without_score} of {self.planned_tasks} tasks have no score at all")
        return "; ".join([text, *named])


@dataclass(frozen=True, slots=True)
class RunProfile:
    """Everything `eval profile` shows of one run."""

    run_id: str
    benchmark: str
    dataset_version: str
    model: str | None
    verification_id: str
    num_repeats: int
    status: str
    coverage: Coverage
    metrics: tuple[Metric, ...]

    def metric(self, name: str, denominator: Denominator) -> Metric:
        """Return one metric by its name."""
        return next(item for item in self.metrics if (item.name, item.denominator) == (name, denominator))

    def to_json(self) -> str:
        """Return the profile as strict JSON."""
        body: dict[str, Any] = asdict(self)
        body["coverage"]["fraction"] = self.coverage.fraction
        return json.dumps(body, indent=2, allow_nan=False)


def coverage(outcomes: DataFrame) -> Coverage:
    """Count outcomes against the plan; collects one row, and one per combination of failure kind and states."""
    counts = coverage_row(outcomes).first()
    if counts is None:
        raise AssertionError("an aggregate without groups always has one row")
    kinds: dict[str, dict[str, int]] = {"failure_kind": {}, "answer_state": {}, "verdict": {}}
    for row in breakdown(outcomes).collect():
        for column, seen in kinds.items():
            if row[column] is not None:
                seen[row[column]] = seen.get(row[column], 0) + row["rollouts"]
    return Coverage(
        **counts.asDict(),
        failures=kinds["failure_kind"],
        answer_states=kinds["answer_state"],
        verdicts=kinds["verdict"],
    )


def metrics(profiles: DataFrame, *, max_k: int) -> tuple[Metric, ...]:
    """Compute the run's metrics from its stored task profiles; collects two rows per metric.

    Args:
        profiles: One row per planned task (`results.reward_profile.task_profiles`).
        max_k: Largest k of pass@k: the repeats.
    """
    frames = []
    for denominator, (count, mean) in _OVER.items():
        curve = pass_curve(profiles, n=count, max_k=max_k)
        rewards = mean_reward(profiles, n=count, mean=mean)
        for frame, k in ((rewards, F.lit(0)), (curve, F.col("k"))):
            frames.append(
                frame.select(
                    F.lit(denominator).alias("denominator"), k.cast("int").alias("k"), "tasks", "samples", "mean", "se"
                )
            )
    joined = frames[0]
    for frame in frames[1:]:
        joined = joined.unionByName(frame)
    rows = sorted(joined.collect(), key=lambda row: (row["denominator"], row["k"]))
    return tuple(_metric(row) for row in rows)


def _metric(row: Row) -> Metric:
    name = f"pass@{row['k']}" if row["k"] else "mean_reward"
    mean, se, tasks = row["mean"], row["se"], row["tasks"] or 0
    reason = None
    low = high = None
    if mean is None:
        reason = f"no task has {row['k']} scored rollouts" if row["k"] else "no rollout is scored"
    elif se is None:
        reason = "an interval needs two tasks"
    else:
        low, high = interval_95(mean, se, tasks)
    return Metric(
        name=name,
        denominator=row["denominator"],
        value=mean,
        se=se,
        ci_low=low,
        ci_high=high,
        n_tasks=tasks,
        n_rollouts=row["samples"] or 0,
        reason=reason,
    )
