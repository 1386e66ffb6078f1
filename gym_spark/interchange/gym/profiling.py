"""`eval profile --output`: a run's numbers as NeMo Gym's files, beside the rollouts file that they are named after."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.jsonl import beside
from gym_spark.interchange.gym.rows import REPEAT
from gym_spark.interchange.gym_layout import agent_entries, merge_repeat_metrics, repeat_entry, statistic_keys
from gym_spark.interchange.row_files import write_lines, write_text
from gym_spark.results.agent_numbers import LabelNumbers, label_numbers
from gym_spark.results.custom import CustomMetrics
from gym_spark.results.group_entries import TASKS_PER_PIECE
from gym_spark.results.pass_majority import finish
from gym_spark.results.passes import group_lines
from gym_spark.results.repeats import across_repeats


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """Where the files of `X.jsonl` are."""

    rollouts: Path

    @property
    def groups(self) -> Path:
        """One line per task."""
        return beside(self.rollouts, "reward_profiling.jsonl")

    @property
    def agents(self) -> Path:
        """One entry per agent."""
        return beside(self.rollouts, "agent_metrics.json")

    @property
    def repeats(self) -> Path:
        """One entry per agent and repeat."""
        return beside(self.rollouts, "repeat_level_metrics.json")


@dataclass(frozen=True, slots=True)
class Entries:
    """The small files' content."""

    agents: list[JsonObject]
    repeats: list[JsonObject]


def entries_of(numbers: Mapping[str | None, LabelNumbers], custom: Mapping[str, CustomMetrics]) -> Entries:
    """Return the entry of each label, and of each label and repeat, of labels that have several.

    Args:
        numbers: By label.
        custom: The benchmark's own metrics by label, which stand over others of their name.
    """
    named = {label: own for label, own in numbers.items() if label is not None}
    repeats = {label: repeats_of(label, named[label], custom.get(label)) for label in sorted(named)}
    agents = agent_entries(
        {label: statistic_keys(own.statistics) for label, own in named.items() if own.sums.rows},
        {label: across_repeats(entries) for label, entries in repeats.items()},
        {label: coverage_of(own) for label, own in named.items()},
    )
    return Entries(
        agents=[entry | custom.get(entry["agent_ref"]["name"], CustomMetrics()).members() for entry in agents],
        repeats=[entry for label in sorted(repeats) for entry in repeats[label]],
    )


def repeats_of(label: str | None, own: LabelNumbers, custom: CustomMetrics | None = None) -> list[JsonObject]:
    """Return the entries of a label's repeats, if it has several.

    Args:
        label: The label; None in an aggregate.
        own: Its numbers.
        custom: The benchmark's own metrics of the label.
    """
    counts = own.sums.tasks_by_repeat
    if len(counts) < 2:
        return []
    entries = [
        repeat_entry(repeat, samples, own.sums.tasks, own.by_repeat.get(repeat, {}), label=label)
        for repeat, samples in counts.items()
    ]
    if custom is None:
        return entries
    return merge_repeat_metrics(entries, [custom.by_repeat.get(entry[REPEAT], {}) for entry in entries], custom.overall)


def coverage_of(own: LabelNumbers) -> dict[str, int]:
    """Return what masking leaves of a label, and nothing if nothing is masked."""
    sums = own.sums
    if not sums.masked:
        return {}
    return {
        "coverage/measured_rollouts": sums.rows,
        "coverage/masked_rollouts": sums.masked,
        "coverage/measured_tasks": sums.tasks,
        "coverage/fully_masked_tasks": sums.masked_tasks,
    }


def group_partitions(*numbers: LabelNumbers) -> int:
    """Return over how many partitions the groups of some labels go."""
    return 1 + sum(own.sums.tasks for own in numbers) // TASKS_PER_PIECE


def with_own(rows: DataFrame, by_task: DataFrame | None) -> DataFrame:
    """Add `own`: the benchmark's own metrics of a row's task as JSON without braces, null for none.

    Args:
        rows: With the key columns of `by_task`.
        by_task: Of `results.custom.by_task`, if there are any.
    """
    if by_task is None:
        return rows
    key = [name for name in by_task.columns if name not in ("name", "value")]
    pairs = F.map_from_entries(F.collect_list(F.struct("name", "value")))
    texts = by_task.where(F.col("value").isNotNull()).groupBy(*key).agg(F.to_json(pairs).alias("own"))
    inside = F.expr("substring(own, 2, length(own) - 2)")
    return rows.join(texts.withColumn("own", inside), on=key, how="left")


def _member(name: str, value: Column) -> Column:
    return F.concat(F.lit(f'"{name}":'), value.cast("string"))


def task_sample(agent: str) -> Column:
    """Return what a task's input row is in NeMo Gym's terms, as JSON, of a row of `tasks`."""
    inner = F.expr("substring(verifier_inputs, 2, length(verifier_inputs) - 2)")
    members = F.concat_ws(
        ",",
        _member("responses_create_params", F.col("responses_create_params")),
        _member("agent_ref", F.lit(json.dumps({"name": agent}))),
        F.when(F.trim(inner) != "", inner),
    )
    return F.concat(F.lit("{"), members, F.lit("}"))


def write_profile(
    files: ProfileFiles,
    passes: DataFrame,
    custom: Mapping[str, CustomMetrics],
    *,
    planned: int,
    allow_partial: bool,
) -> list[JsonObject]:
    """Write the three files, each whole or not at all; returns the agents' numbers as rows of `metrics`.

    Args:
        files: Where to.
        passes: Rows of `PASS_SCHEMA`, kept.
        custom: The benchmark's own metrics by label.
        planned: Planned rollouts.
        allow_partial: Also where some of them have no result.

    Raises:
        ConfigError: rollouts are missing, or a file cannot be written.
    """
    numbers = label_numbers(passes)
    done = sum(own.sums.rows + own.sums.masked for own in numbers.values())
    if done < planned and not allow_partial:
        raise ConfigError(
            f"{planned - done} of {planned} planned rollouts have no result, or no verdict; complete the run with "
            "--resume, or its verdicts with eval reverify, or write the profile of what there is with "
            "--allow-partial-rollouts."
        )
    entries = entries_of(numbers, custom)
    partitions = group_partitions(*numbers.values())
    write_lines(group_lines(passes, between="\n", partitions=partitions), files.groups)
    write_text(files.agents, json.dumps(entries.agents, indent=2, allow_nan=False))
    write_text(files.repeats, json.dumps(entries.repeats, indent=2, allow_nan=False))
    rows = [row for entry in entries.agents for row in _metric_rows(entry, numbers)]
    return rows + [row for label in sorted(filter(None, numbers)) for row in _curve_rows(label, numbers[label])]


def _curve_rows(label: str, own: LabelNumbers) -> Iterator[JsonObject]:
    """Yield pass@k, pass@1[avg-of-k] and majority@k over the rewards of a label, which the files do not have."""
    about = {"denominator": "measured", "label": label, "n_tasks": own.sums.votes.tasks, "n_rollouts": own.sums.rows}
    for name, value in finish(own.sums.curves).items():
        if isinstance(value, float):
            yield about | {"name": name, "value": value}


def _metric_rows(entry: JsonObject, numbers: Mapping[str | None, LabelNumbers]) -> Iterator[JsonObject]:
    label = entry["agent_ref"]["name"]
    sums = numbers[label].sums
    about = {"denominator": "measured", "label": label, "n_tasks": sums.tasks, "n_rollouts": sums.rows}
    for name, value in entry.items():
        if isinstance(value, int | float):
            yield about | {"name": name, "value": float(value)}
