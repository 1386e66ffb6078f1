"""A benchmark's own metrics: ``metrics.py`` in its folder, with a function from rollouts to named values.

    def metrics(rollouts: DataFrame) -> DataFrame:
        return rollouts.groupBy(...).agg(...).select("name", "value")

In: one row per planned rollout (:func:`metric_rows`). Out: `name`, `value`, and if wanted `task_id` (the value is about
one task) or `rollout_index` (about one repeat of all tasks).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.plugins import users_code
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.script import function_of
from gym_spark.results.describe import STATISTICS

METRICS_FILE: Final = "metrics.py"
#: Values over the whole run or a repeat: a hook that yields more has forgotten to aggregate.
MOST: Final = 10_000

Hook = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class CustomMetrics:
    """What a benchmark's hook has computed.

    Attributes:
        overall: Values over the whole run by name; None where undefined.
        by_repeat: The same by repeat.
        by_task: `task_id`, `name`, `value`: a frame, for there may be many; None without a hook.
    """

    overall: dict[str, float | None] = field(default_factory=dict)
    by_repeat: dict[int, dict[str, float | None]] = field(default_factory=dict)
    by_task: DataFrame | None = None


def find_hook(benchmark: Benchmark) -> Hook | None:
    """Return the benchmark's hook, if it has one.

    Raises:
        ConfigError: its file cannot be loaded, or defines no `metrics`.
    """
    path = benchmark.folder / METRICS_FILE
    return function_of(path, "metrics", "metrics(rollouts)") if path.exists() else None


def metric_rows(outcomes: DataFrame, tasks: DataFrame) -> DataFrame:
    """Return what a hook is given.

    Args:
        outcomes: One row per planned rollout (`results.outcomes`).
        tasks: The tasks.

    Returns:
        One row per planned rollout: `task_id`, `task_index`, `rollout_index`, `state` (completed, failed, missing),
        `answer_state`, `verdict`, `reward` (null unless scored), `scores` (map), `extracted_answer` (of more than a
        thousand characters: ``sha256:`` and its digest), `input_tokens`, `output_tokens`, and of the task
        `verifier_inputs` and `metadata` (JSON).
    """
    told = ("task_id", "task_index", "rollout_index", "state", "answer_state", "verdict", "reward", "scores")
    rows = outcomes.select(*told, "extracted_answer", "input_tokens", "output_tokens")
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
    columns = [F.col(name) if name in names else F.lit(None).alias(name) for name in ("task_id", "rollout_index")]
    values = frame.select("name", F.col("value").cast("double").alias("value"), *columns)
    of_tasks = values.where(F.col("task_id").isNotNull())
    try:
        rows_found = values.where(F.col("task_id").isNull()).limit(MOST + 1).collect()
    except PySparkException as error:
        raise ConfigError(f"{where} failed ({str(error).splitlines()[0]}).") from error
    if len(rows_found) > MOST:
        raise ConfigError(f"{where} are more than {MOST} values; aggregate them, or give each its task_id.")
    found = CustomMetrics(by_task=_checked(where, of_tasks) if "task_id" in names else None)
    for row in rows_found:
        if not row["name"]:
            raise ConfigError(f"{where} have a value without a name; give each one.")
        value = row["value"] if row["value"] is not None and math.isfinite(row["value"]) else None
        kept = found.overall if row["rollout_index"] is None else found.by_repeat.setdefault(row["rollout_index"], {})
        if row["name"] in kept:
            raise ConfigError(f"{where} have two values for '{row['name']}'; give one.")
        kept[row["name"]] = value
    return found


def _checked(where: str, of_tasks: DataFrame) -> DataFrame:
    """Return the finite values of tasks, after a look at their names: a statistic's would hide that statistic."""
    taken = F.regexp_like("name", F.lit(f"^({'|'.join(STATISTICS)})/")) | F.col("name").isNull()
    wrong = of_tasks.where(taken).first()
    if wrong is not None:
        raise ConfigError(f"{where} name a value of a task {wrong['name']!r}, as statistics are named; choose another.")
    return of_tasks.where(F.abs("value") < F.lit(math.inf)).select("task_id", "name", "value")
