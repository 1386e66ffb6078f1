"""A run's profile: coverage against the plan, mean reward and pass@k, each number with what it was computed over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from pyspark.sql import DataFrame, Row

from gym_spark.config import ExceptionPolicy
from gym_spark.results.assembly import EXCLUDED
from gym_spark.results.reward_profile import task_groups
from gym_spark.results.samples import Sample
from gym_spark.results.summary import Counts, Kind, Tally
from gym_spark.results.uncertainty import Estimate, Floats, interval_95, rollout_mean, task_mean

#: ``completed``: tokens and times of what was answered; ``measured``: NeMo Gym's, over unmasked results, in percent;
#: ``custom``: the benchmark's own metric says what it is over.
Denominator = Literal["planned", "scored", "completed", "measured", "custom"]

#: A spread this small beside the mean is rounding.
SAME: Final = 1e-12
#: Shards that a line names before it counts the rest.
_SHARDS_NAMED: Final = 8
_COUNTS_AS: Final[dict[ExceptionPolicy, str]] = {
    "count": "counted with their scores",
    "zero": "counted as zero",
    "exclude": "not counted",
}
#: Denominator -> column that counts a task's rollouts.
_COUNTS: Final[dict[Denominator, str]] = {"planned": "planned", "scored": "n"}


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

    def between(self, low: float, high: float) -> Metric:
        """Return the metric with another interval."""
        return replace(self, ci_low=low, ci_high=high)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are resampled."""

    replicates: int
    seed: int = 0


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
    #: Rollouts by what cut them short that a verifier scored all the same, whatever they count as.
    graded_with_exception: dict[str, int]
    exceptions_count_as: ExceptionPolicy
    answer_states: dict[str, int]
    verdicts: dict[str, int]
    #: An example of why, for each verdict that is not a score.
    reasons: dict[str, str]
    #: Mean reward over the scored rollouts whose answer was complete; the others are scored as they stand.
    mean_of_complete: float | None
    #: Rollouts missing in each shard that misses some, by the `shard` column: a shard that no job took stands out. In
    #: words shards count from 1, as in --shards.
    missing_shards: dict[int, int]

    @property
    def fraction(self) -> float:
        """Scored rollouts over planned ones."""
        return self.scored / self.planned if self.planned else 0.0

    def summary(self) -> str:
        """Say in one line how much of the plan the numbers rest on."""
        text = f"{self.scored} of {self.planned} planned rollouts scored ({100 * self.fraction:.1f} %)"
        gaps = {"failed": self.failed, "missing": self.missing, "answered but not scored": self.unscored}
        named = [f"{count} {what}" for what, count in gaps.items() if count]
        if self.missing_shards:
            shown = [
                f"{shard + 1} misses {count}" for shard, count in list(self.missing_shards.items())[:_SHARDS_NAMED]
            ]
            more = len(self.missing_shards) - len(shown)
            named.append(f"shard {', '.join(shown)}" + (f" and {more} more shards" if more else ""))
        if cut := sum(self.graded_with_exception.values()):
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.graded_with_exception.items())
            named.append(f"{cut} graded with exception ({kinds}), {_COUNTS_AS[self.exceptions_count_as]}")
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
    #: Why the run was stopped before its end, if it was.
    stopped: str | None
    coverage: Coverage
    metrics: tuple[Metric, ...]
    #: Names of the headline, as the benchmark gives them.
    key_metrics: tuple[str, ...] = ()
    #: Seed and replicates of the bootstrap that the intervals are of; None: Student's.
    bootstrap: Bootstrap | None = None
    #: NeMo Gym's pass@k, pass@1[avg-of-k] and majority@k over rewards, in percent, of a run with one agent; only where
    #: its files were written.
    curves: Mapping[str, float] = field(default_factory=dict)
    #: Some verdicts were forced: their verifier needs more than what is stored, so they may mean nothing.
    unsafe: bool = False

    def metric(self, name: str, denominator: Denominator) -> Metric:
        """Return one metric by its name."""
        return next(item for item in self.metrics if (item.name, item.denominator) == (name, denominator))

    def headline(self, name: str) -> float | None:
        """Return the value of a key metric: the benchmark's own, else over the plan."""
        return next((item.value for item in self.metrics if item.name == name and item.denominator != "scored"), None)

    def to_json(self, *, samples: Sequence[Sample] = ()) -> str:
        """Return the profile as strict JSON, with some rollouts if they are given."""
        body: dict[str, Any] = asdict(self)
        if samples:
            body["samples"] = [asdict(sample) for sample in samples]
        body["coverage"]["fraction"] = self.coverage.fraction
        return json.dumps(body, indent=2, allow_nan=False)


def profile_numbers(
    counts: Counts, profiles: DataFrame, *, max_k: int, exceptions_count_as: ExceptionPolicy = "count"
) -> tuple[Coverage, tuple[Metric, ...]]:
    """Compute what a run's profile shows; collects one row per group of like tasks.

    Args:
        counts: What became of the planned rollouts (`results.passes.counts_of`).
        profiles: One row per planned task (`results.passes.profiles_of`).
        max_k: Largest k of pass@k: the repeats.
        exceptions_count_as: What the counts were made with.
    """
    groups = task_groups(profiles, max_k=max_k).collect()
    return _coverage(counts.kinds, groups, exceptions_count_as), _metrics(groups, max_k)


def _coverage(kinds: Mapping[Kind, Tally], groups: Sequence[Row], exceptions_count_as: ExceptionPolicy) -> Coverage:
    def count(matches: Callable[[Kind], bool]) -> int:
        return sum(tally.rollouts for kind, tally in kinds.items() if matches(kind))

    def by(column: str, matches: Callable[[Kind], bool] = lambda kind: True) -> dict[Any, int]:
        counts: Counter[Any] = Counter()
        for kind, tally in kinds.items():
            if matches(kind):
                counts[getattr(kind, column)] += tally.rollouts
        return {value: counts[value] for value in sorted(counts.keys() - {None})}

    def tokens(column: str) -> int | None:
        known = [value for tally in kinds.values() if (value := getattr(tally, column)) is not None]
        return sum(known) if known else None

    def is_graded(kind: Kind) -> bool:
        return kind.is_scored or kind.verdict == EXCLUDED

    states = by("state")
    complete = [tally for kind, tally in kinds.items() if kind.is_scored and kind.answer_state == "complete"]
    whole = sum(tally.rollouts for tally in complete)
    return Coverage(
        planned_tasks=sum(group["tasks"] for group in groups),
        planned=count(lambda kind: True),
        completed=states.get("completed", 0),
        failed=states.get("failed", 0),
        missing=states.get("missing", 0),
        scored=count(lambda kind: kind.is_scored),
        unscored=count(lambda kind: kind.state == "completed" and not kind.is_scored),
        tasks_without_score=sum(group["tasks"] for group in groups if not group["n"]),
        input_tokens=tokens("input_tokens"),
        output_tokens=tokens("output_tokens"),
        failures=by("failure_kind"),
        graded_with_exception=by("exception_kind", is_graded),
        exceptions_count_as=exceptions_count_as,
        answer_states=by("answer_state"),
        verdicts=by("verdict"),
        reasons=_reasons(kinds),
        mean_of_complete=sum(tally.rewards for tally in complete) / whole if whole else None,
        missing_shards=by("missing_shard"),
    )


def _reasons(kinds: Mapping[Kind, Tally]) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, tally in kinds.items():
        if kind.verdict and tally.reason:
            found[kind.verdict] = min(tally.reason, found.get(kind.verdict, tally.reason))
    return dict(sorted(found.items()))


def _metrics(groups: Sequence[Row], max_k: int) -> tuple[Metric, ...]:
    # A run in which nothing is scored has no numbers, also not the strict 0 that an unscored rollout counts as.
    groups = groups if any(group["n"] for group in groups) else []
    weights, totals, variances = (_column(groups, name) for name in ("tasks", "total_mean", "total_variance"))
    in_unit = all(group["min"] >= 0 and group["max"] <= 1 for group in groups if group["n"])
    found: list[Metric] = []
    for denominator, count in _COUNTS.items():
        counts = _column(groups, count)
        rewards = rollout_mean(totals, variances, counts, weights)
        metric = partial(_metric, denominator=denominator)
        found.append(
            metric("mean_reward", rewards, int(weights @ counts), missing="no rollout is scored", bounded=in_unit)
        )
        # pass^1 is pass@1.
        curves = [("pass@", "curve", k) for k in range(1, max_k + 1)]
        curves += [("pass^", "all", k) for k in range(2, max_k + 1)]
        for name, curve, k in curves:
            values = np.array([group[f"{curve}_{denominator}"][k - 1] for group in groups], dtype=float)
            rollouts = int(weights @ np.where(np.isnan(values), 0, counts))
            missing = f"no task has {k} scored rollouts" if groups else "no rollout is scored"
            found.append(metric(f"{name}{k}", task_mean(values, weights), rollouts, missing=missing, bounded=True))
    return tuple(found)


def custom_rows(values: Mapping[str, float | None], covered: Coverage) -> tuple[Metric, ...]:
    """Return a benchmark's own numbers as metrics, in the order of their names.

    Args:
        values: By name.
        covered: What they were computed from.
    """
    return tuple(
        Metric(
            name=name,
            denominator="custom",
            value=value,
            se=None,
            ci_low=None,
            ci_high=None,
            n_tasks=covered.planned_tasks,
            n_rollouts=covered.planned,
            reason=None if value is not None else f"the benchmark gives no value for {name}",
        )
        for name, value in sorted(values.items())
    )


def _column(groups: Sequence[Row], name: str) -> Floats:
    return np.array([group[name] for group in groups], dtype=float)


def _metric(
    name: str, found: Estimate, rollouts: int, *, denominator: Denominator, missing: str, bounded: bool
) -> Metric:
    low = high = reason = None
    if found.mean is None:
        reason = missing
    elif found.se is None:
        reason = "an interval needs two tasks"
    elif found.se <= SAME * abs(found.mean):
        reason = "every task has the same value: no interval can be estimated from that"
    else:
        low, high = interval_95(found.mean, found.se, found.tasks, bounded=bounded)
    return Metric(
        name=name,
        denominator=denominator,
        value=found.mean,
        se=found.se,
        ci_low=low,
        ci_high=high,
        n_tasks=found.tasks,
        n_rollouts=rollouts,
        reason=reason,
    )
