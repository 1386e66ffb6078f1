"""A benchmark's own metrics: ``metrics.py`` in its folder, with a function from rollouts to named values.

    def metrics(rollouts: DataFrame) -> DataFrame:
        return rollouts.groupBy(...).agg(...).select("name", "value")

In: one row per planned rollout (:func:`metric_rows`). Out: `name`, `value`, and if wanted one of the columns that say
what a value is about, null for the whole run: `task_id` (one task), `rollout_index` (one repeat of all tasks) or
`position` (the rollouts at that place of their tasks, from 0; the values of a name make a list).
`results.curves.pass_majority` makes such a frame of NeMo Gym's pass@k and majority@k.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.plugins import users_code
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.script import function_of
from gym_spark.results.describe import STATISTICS

METRICS_FILE: Final = "metrics.py"
#: What a hook is given of each rollout; `metric_rows` adds what it is given of the task.
ROLLOUT_COLUMNS: Final = (
    *("task_id", "task_index", "rollout_index", "state", "answer_state", "verdict", "reward", "scores"),
    *("extracted_answer", "input_tokens", "output_tokens"),
)
_GRAINS: Final = ("task_id", "rollout_index", "position")
#: Members of NeMo Gym's entries that no metric may stand over.
RESERVED: Final = frozenset(
    {
        *("_ng_task_index", "_ng_rollout_index", "agent_ref", "sample", "rollout_infos", "sample_count"),
        *("num_rollouts", "expected_num_rollouts", "missing_num_rollouts", "missing_count", "num_repeats"),
        *("reward_profile_completion_pct", "per_sample_aggregate"),
    }
)
#: Values over the whole run or a repeat: a hook that yields more has forgotten to aggregate.
MOST: Final = 10_000

Hook = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class CustomMetrics:
    """What a benchmark's hook has computed.

    Attributes:
        overall: Values over the whole run by name; None where undefined.
        by_repeat: The same by repeat.
        by_position: The same by the place of rollouts in their tasks.
        by_task: `task_id`, `name`, `value`: a frame, for there may be many; None without a hook.
    """

    overall: dict[str, float | None] = field(default_factory=dict)
    by_repeat: dict[int, dict[str, float | None]] = field(default_factory=dict)
    by_position: dict[int, dict[str, float | None]] = field(default_factory=dict)
    by_task: DataFrame | None = None

    def members(self) -> JsonObject:
        """Return what an agent's entry gets: the values over the run, and as `per_sample_aggregate` those by place."""
        found: JsonObject = {name: value for name, value in self.overall.items() if value is not None}
        lists: dict[str, list[float]] = {}
        for _, values in sorted(self.by_position.items()):
            for name, value in values.items():
                if value is not None:
                    lists.setdefault(name, []).append(value)
        return found | {"per_sample_aggregate": lists} if lists else found


def find_hook(benchmark: Benchmark) -> Hook | None:
    """Return the benchmark's hook, if it has one.

    Raises:
        ConfigError: its file cannot be loaded, or defines no `metrics`.
    """
    path = benchmark.folder / METRICS_FILE
    return function_of(path, "metrics", "metrics(rollouts)") if path.exists() else None


def metric_rows(outcomes: DataFrame, tasks: DataFrame, *more: str) -> DataFrame:
    """Return what a hook is given.

    Args:
        outcomes: One row per planned rollout (`results.outcomes`).
        tasks: The tasks.
        more: Further columns of the outcomes.

    Returns:
        One row per planned rollout: `task_id`, `task_index`, `rollout_index`, `state` (completed, failed, missing),
        `answer_state`, `verdict`, `reward` (null unless scored), `scores` (map), `extracted_answer` (of more than a
        thousand characters: ``sha256:`` and its digest), `input_tokens`, `output_tokens`, and of the task
        `verifier_inputs` and `metadata` (JSON).
    """
    rows = outcomes.select(*ROLLOUT_COLUMNS, *more)
    return rows.join(tasks.select("task_id", "verifier_inputs", "metadata"), on="task_id", how="left")


def custom_metrics(benchmark: Benchmark, hook: Hook, rows: DataFrame) -> CustomMetrics:
    """Run a hook; collects the values over the run and over repeats.

    Args:
        benchmark: The benchmark, for messages.
        hook: Its hook.
        rows: Of :func:`metric_rows`.

    Raises:
        ConfigError: the hook fails, returns no such frame, or takes a name that a statistic has.
    """
    where = f"The metrics of benchmark '{benchmark.spec.name}'"
    with users_code(f"{where} failed"):
        frame: Any = hook(rows)
        names = set(frame.columns)
    if not {"name", "value"} <= names:
        raise ConfigError(f"{where} have the columns {sorted(names)}; return a frame with name and value.")
    columns = [F.col(name) if name in names else F.lit(None).alias(name) for name in _GRAINS]
    try:
        told = (F.col("name").cast("string").alias("name"), F.col("value").cast("double").alias("value"))
        values = frame.select(*told, *columns)
        of_tasks = values.where(F.col("task_id").isNotNull())
        rows_found = values.where(F.col("task_id").isNull()).limit(MOST + 1).collect()
    except PySparkException as error:
        raise ConfigError(f"{where} failed ({str(error).splitlines()[0]}).") from error
    if len(rows_found) > MOST:
        raise ConfigError(f"{where} are more than {MOST} values; aggregate them, or give each its task_id.")
    found = CustomMetrics(by_task=_checked(where, of_tasks) if "task_id" in names else None)
    for row in rows_found:
        if not row["name"]:
            raise ConfigError(f"{where} have a value without a name; give each one.")
        if row["name"] in RESERVED:
            raise ConfigError(f"{where} name a value {row['name']!r}, as NeMo Gym's entries do; choose another.")
        value = row["value"] if row["value"] is not None and math.isfinite(row["value"]) else None
        kept = _kept(found, row["rollout_index"], row["position"])
        if row["name"] in kept:
            raise ConfigError(f"{where} have two values for '{row['name']}'; give one.")
        kept[row["name"]] = value
    return found


def by_task(own: Mapping[str, CustomMetrics], *, fan_out: bool) -> DataFrame | None:
    """Return the values of tasks of all labels: `task_id`, `name`, `value`, and `label` if groups are per label.

    Args:
        own: By label.
        fan_out: Groups are per task and label, not per task.
    """
    frames = [
        one.by_task.withColumn("label", F.lit(label)) if fan_out else one.by_task
        for label, one in own.items()
        if one.by_task is not None
    ]
    return reduce(DataFrame.unionByName, frames) if frames else None


def headline_names(wanted: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the names of key metrics.

    Args:
        wanted: Names as a benchmark gives them; ``{k}`` in one stands for the largest number that makes a known name.
        names: The metrics that there are.
    """
    return tuple(_largest(name, names) for name in wanted)


def _largest(name: str, names: Collection[str]) -> str:
    form = re.compile(re.escape(name).replace(re.escape("{k}"), r"(\d+)"))
    found = [(int(match[1]), match[0]) for match in map(form.fullmatch, names) if match] if "{k}" in name else []
    return max(found, default=(0, name))[1]


def _kept(found: CustomMetrics, repeat: int | None, position: int | None) -> dict[str, float | None]:
    if repeat is not None:
        return found.by_repeat.setdefault(repeat, {})
    return found.overall if position is None else found.by_position.setdefault(position, {})


def _checked(where: str, of_tasks: DataFrame) -> DataFrame:
    """Return the finite values of tasks, after a look at their names: a statistic's would hide that statistic."""
    taken = F.regexp_like("name", F.lit(f"^({'|'.join(STATISTICS)})/")) | F.col("name").isNull()
    taken |= F.col("name").isin(*RESERVED)
    wrong = of_tasks.where(taken).first()
    if wrong is not None:
        raise ConfigError(f"{where} name a value of a task {wrong['name']!r}, as statistics are named; choose another.")
    twice = of_tasks.groupBy("task_id", "name").count().where("count > 1").first()
    if twice is not None:
        raise ConfigError(f"{where} have two values for {twice['name']!r} of task {twice['task_id']!r}; give one.")
    return of_tasks.where(F.abs("value") < F.lit(math.inf)).select("task_id", "name", "value")
