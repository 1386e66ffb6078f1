"""The entries of NeMo Gym's result files: which names stand where, made from numbers that are known already.

Undefined and non-finite numbers have no key: the files are strict JSON. Numbers come in as Python's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.interchange.gym.rows import REPEAT, STAMP, TASK, GymRow, Index, Key, index_order

#: statistic -> column -> value, None where undefined.
Statistics = Mapping[str, Mapping[str, float | None]]

#: What a group's sample is where an aggregate has no input rows.
AGGREGATE_SAMPLE: Final[JsonObject] = {"agent_ref": {"name": "agent"}}

_EXTREMES: Final = ("max", "min")


def statistic_keys(statistics: Statistics, *, integers: bool = False) -> JsonObject:
    """Return ``statistic/column`` for every defined value, in the order given.

    Args:
        statistics: Values by statistic and column.
        integers: Every column holds only integers or booleans, in every row that is measured: extremes are written as
            integers then.
    """
    return {
        f"{statistic}/{column}": int(value) if integers and statistic in _EXTREMES else value
        for statistic, columns in statistics.items()
        for column, value in columns.items()
        if value is not None and math.isfinite(value)
    }


def rollout_info(row: GymRow) -> JsonObject:
    """Return the summary of one rollout: its key, its reward as it stands, its numbers (booleans as 0 and 1).

    Unlike in the columns, a field of the row itself is shown where an entry of the usage has the same name.
    """
    task, repeat = row.key
    info: JsonObject = {"rollout_id": f"{task}:{repeat}", TASK: task, REPEAT: repeat}
    if row.has_reward:
        info["reward"] = row.reward
    for name, value in (row.columns | row.hidden).items():
        if name != "reward":
            info[name] = int(value) if isinstance(value, bool) else value
    return info


def task_sample(row: JsonObject) -> JsonObject:
    """Return an input row as a group's sample: without its key."""
    return {name: value for name, value in row.items() if name not in (TASK, REPEAT)}


def group_entry(
    task: Index,
    statistics: JsonObject,
    *,
    label: str | None,
    sample: JsonObject,
    expected: int,
    infos: list[JsonObject],
) -> JsonObject:
    """Return the entry of one task, or of one task and label.

    Args:
        task: The task.
        statistics: Its :func:`statistic_keys`.
        label: The label in a fan-out run, else None.
        sample: The input row (:func:`task_sample`) of the lowest repeat that has a measured result.
        expected: Measured input rows; in an aggregate, the rollouts.
        infos: :func:`rollout_info` of each measured rollout, by repeat.
    """
    return (
        {TASK: task}
        | statistics
        | ({} if label is None else {"agent_ref": {"name": label}})
        | {
            "sample": sample,
            "num_rollouts": len(infos),
            "expected_num_rollouts": expected,
            "missing_num_rollouts": expected - len(infos),
            "reward_profile_completion_pct": 100.0 * len(infos) / expected,
            "rollout_infos": infos,
        }
    )


def coverage_keys(rollouts: Iterable[tuple[Index, bool]]) -> dict[str, int]:
    """Return what masking leaves, and nothing if nothing is masked.

    Args:
        rollouts: Task of each result, and whether the result is masked.
    """
    masked_by_task: dict[Index, list[bool]] = {}
    for task, masked in rollouts:
        masked_by_task.setdefault(task, []).append(masked)
    masked_rollouts = sum(sum(flags) for flags in masked_by_task.values())
    if not masked_rollouts:
        return {}
    fully = sum(all(flags) for flags in masked_by_task.values())
    return {
        "coverage/measured_rollouts": sum(map(len, masked_by_task.values())) - masked_rollouts,
        "coverage/masked_rollouts": masked_rollouts,
        "coverage/measured_tasks": len(masked_by_task) - fully,
        "coverage/fully_masked_tasks": fully,
    }


def agent_entries(
    statistics: Mapping[str, JsonObject],
    across: Mapping[str, Mapping[str, float]],
    coverage: Mapping[str, Mapping[str, int]],
) -> list[JsonObject]:
    """Return the entry of each label.

    Args:
        statistics: :func:`statistic_keys` of each label with measured results.
        across: Across-repeats metrics of each label that has several repeats.
        coverage: :func:`coverage_keys` of each label; those without measured results, too.

    Returns:
        Labels with statistics ascending, then the wholly masked ones ascending.
    """
    entries = [
        {**statistics[label], "agent_ref": {"name": label}, **across.get(label, {}), **coverage.get(label, {})}
        for label in sorted(statistics)
    ]
    unmeasured = sorted(label for label, keys in coverage.items() if keys and label not in statistics)
    return entries + [{"agent_ref": {"name": label}, **coverage[label]} for label in unmeasured]


def repeat_entry(
    repeat: Index, samples: int, tasks: int, statistics: Mapping[str, Mapping[str, float | None]], *, label: str | None
) -> JsonObject:
    """Return the entry of one repeat.

    Args:
        repeat: The repeat.
        samples: Distinct tasks that have it.
        tasks: Distinct tasks over all repeats of the label.
        statistics: Values by column, then by statistic. Columns are written in code-point order.
        label: The label; None in an aggregate.
    """
    entry: JsonObject = {} if label is None else {"agent_ref": {"name": label}}
    entry |= {REPEAT: repeat, "sample_count": samples, "missing_count": tasks - samples}
    for column in sorted(statistics):
        entry |= {f"{name}/{column}": value for name, value in statistics[column].items() if _is_number(value)}
    return entry


def completion(inputs: Iterable[tuple[Key, str | None]], done: set[Key], masked: int) -> JsonObject:
    """Count what a run has finished, masked rollouts included.

    Args:
        inputs: Key and run key of each input row.
        done: Keys that have a result.
        masked: Masked results.

    Returns:
        Rollouts done and expected, their percentage, and how many (task, run key) have all, some or none.
    """
    found: dict[tuple[Index, str | None], list[bool]] = {}
    for key, run_key in inputs:
        found.setdefault((key[0], run_key), []).append(key in done)
    rows = [flag for flags in found.values() for flag in flags]
    complete, missing = sum(map(all, found.values())), sum(not any(flags) for flags in found.values())
    return {
        "completed_rollout_rows": sum(rows),
        "expected_rollout_rows": len(rows),
        "pct_2dp": round(100.0 * sum(rows) / len(rows), 2) if rows else 0.0,
        "total_input_rows": len(found),
        "complete_input_rows": complete,
        "partial_input_rows": len(found) - complete - missing,
        "missing_input_rows": missing,
        "masked_rows": masked,
    }


def key_metrics(agent_metrics: Mapping[str, Any]) -> JsonObject:
    """Return an aggregate's headline where a benchmark names none: every mean, and the coverage."""
    return {name: value for name, value in agent_metrics.items() if name.startswith(("mean/", "coverage/"))}


def merge_task_metrics(groups: Iterable[JsonObject], custom: Mapping[Index, JsonObject]) -> list[JsonObject]:
    """Return the group entries, each with its task's custom metrics over its own."""
    return [group | custom.get(group[TASK], {}) for group in groups]


def merge_repeat_metrics(
    entries: Sequence[JsonObject], custom: Sequence[Mapping[str, Any]], full_run: Mapping[str, Any]
) -> list[JsonObject]:
    """Return the repeat entries with custom metrics.

    Args:
        entries: One entry per repeat.
        custom: The custom metrics of each entry. A name that any of them has replaces the entries' own, and is only
            kept if it is a finite number in every repeat, so that repeats stay comparable.
        full_run: Custom metrics of the whole run: a name that is not finite there is not kept either.
    """
    names = {name for metrics in custom for name in metrics}
    kept = [
        name
        for name in sorted(names)
        if all(_is_number(metrics.get(name)) for metrics in custom)
        and (name not in full_run or _is_number(full_run[name]))
    ]
    return [
        {name: value for name, value in entry.items() if name not in names} | {name: metrics[name] for name in kept}
        for entry, metrics in zip(entries, custom, strict=True)
    ]


def aggregate_entry(
    label: str,
    server: str,
    *,
    agent_metrics: JsonObject,
    headline: JsonObject,
    groups: list[JsonObject],
    repeats: list[JsonObject],
    perf: Mapping[str, float] | None,
) -> JsonObject:
    """Return one run's entry of an aggregate file; without observations it has no `perf_summary`."""
    return {
        "agent_ref": {"name": label},
        STAMP: server,
        "agent_metrics": agent_metrics,
        "key_metrics": headline,
        "group_level_metrics": groups,
        "repeat_level_metrics": repeats,
    } | ({} if perf is None else {"perf_summary": dict(perf)})


def group_order(group: tuple[Index, str | None]) -> tuple[tuple[bool, int, str], str]:
    """Return the sort key of a group: by task, then by label."""
    return index_order(group[0]), group[1] or ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
