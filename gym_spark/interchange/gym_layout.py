"""The entries of NeMo Gym's result files: which names stand where, made from numbers that are known already.

Undefined and non-finite numbers have no key: the files are strict JSON. Numbers come in as Python's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.interchange.gym.rows import REPEAT, Index

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


def key_metrics(agent_metrics: Mapping[str, Any], named: Sequence[str] = ()) -> JsonObject:
    """Return an aggregate's headline: what the benchmark names and is there, or else every mean, and the coverage."""
    chosen = {name: agent_metrics[name] for name in named if name in agent_metrics}
    return chosen or {name: value for name, value in agent_metrics.items() if name.startswith(("mean/", "coverage/"))}


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
