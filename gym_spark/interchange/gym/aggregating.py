"""`eval aggregate`: the result files of several shards become one result, as NeMo Gym's aggregate file.

Every rollout counts once, by its key, whatever the order of the files.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.checks import check_unique
from gym_spark.interchange.gym.imputation import Imputation, count_as_zero
from gym_spark.interchange.gym.jsonl import beside, read_lines
from gym_spark.interchange.gym.labels import label_runs
from gym_spark.interchange.gym.profiling import coverage_of, group_partitions, repeats_of, with_own
from gym_spark.interchange.gym.rows import STAMP, GymRow, key_order, origin, result_row
from gym_spark.interchange.gym.stored import TaskIds, measures_of, scores_of
from gym_spark.interchange.gym_layout import AGGREGATE_SAMPLE, key_metrics, statistic_keys
from gym_spark.interchange.row_files import check_targets, write_text
from gym_spark.results.agent_numbers import LabelNumbers, label_numbers, perf_numbers
from gym_spark.results.custom import CustomMetrics, by_task, headline_names
from gym_spark.results.group_entries import Groups
from gym_spark.results.outcomes import kept, partitions_for
from gym_spark.results.partition_rows import MEASURED_SCHEMA
from gym_spark.results.passes import group_lines, passed_over
from gym_spark.results.repeats import across_repeats

#: Files beside results that a pattern may find as well.
_SIDE_FILES: Final = ("_failures", "_materialized_inputs")

_GROUPS: Final = Groups(fan_out=True, text_ids=True, sample=json.dumps(AGGREGATE_SAMPLE))


@dataclass(frozen=True, slots=True)
class Shards:
    """What is aggregated.

    Attributes:
        files: Files of result rows; failures and inputs are looked for beside each.
        failure_classes: Rollouts that failed so count with reward 0.
        missing_as_zero: Planned rollouts without result or failure count with reward 0.
    """

    files: Sequence[Path]
    failure_classes: Collection[str] = ()
    missing_as_zero: bool = False


@dataclass(frozen=True, slots=True)
class OwnNumbers:
    """What an aggregate tells beside NeMo Gym's own statistics.

    Attributes:
        custom: Metrics of the benchmark's own, by server.
        key_metrics: Names of its headline, as the benchmark gives them.
        subsets: ``VALUE/metric`` by a field of the tasks, by server.
    """

    custom: Mapping[str, CustomMetrics] = field(default_factory=dict)
    key_metrics: Sequence[str] = ()
    subsets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """The rows of all shards.

    Attributes:
        rows: By server and key.
        servers: Server of each row.
        labels: Name of each server's run.
        imputed: What was added.
        skipped: Rows that name neither agent nor server.
    """

    rows: list[GymRow]
    raw: list[JsonObject]
    servers: list[str]
    labels: dict[str, str]
    imputed: Imputation
    skipped: int

    def notes(self) -> list[str]:
        """Say what the result rests on, a line each: what counts, what was added, and what was left out."""
        added, expected = self.imputed, self.imputed.expected
        lines = [f"{len(self.rows)} of {expected} rollouts that are known of count."]
        if added.failed_as_zero:
            lines.append(f"{added.failed_as_zero} of them failed and count with reward 0.")
        if added.missing_as_zero:
            lines.append(f"{added.missing_as_zero} of them left no row and count with reward 0.")
        if added.dropped:
            classes = ", ".join(f"{count} {name}" for name, count in sorted(added.dropped.items()))
            lines.append(f"Left out are rollouts that failed: {classes}.")
        if self.skipped:
            lines.append(f"Left out are {self.skipped} rows that name neither agent nor environment server.")
        return lines


def shard_files(patterns: str) -> list[Path]:
    """Return the result files that comma-separated patterns name, each once.

    Raises:
        ConfigError: a pattern names none.
    """
    found: dict[Path, None] = {}
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
        results = [path for path in matches if not path.stem.endswith(_SIDE_FILES)]
        if not results:
            raise ConfigError(f"No file matches '{pattern}'; check the pattern.")
        found |= dict.fromkeys(results)
    if not found:
        raise ConfigError("Name the result files with --rollouts FILE[,PATTERN...].")
    return list(found)


def collect_rows(shards: Shards) -> Collected:
    """Read all shards, and add what counts although it has no result.

    Raises:
        ConfigError: a file is missing, a line malformed, or a rollout there twice.
    """
    files = sorted(set(shards.files))
    everything = list(_rows(files))
    results = [row for row in everything if server_of(row) is not None]
    imputed = count_as_zero(
        results,
        _rows(_beside(files, "failures")),
        _rows(_beside(files, "materialized_inputs")),
        server_of=server_of,
        failure_classes=shards.failure_classes,
        missing=shards.missing_as_zero,
    )
    read = [(result_row(row, "a result row", absent_index=0), row) for row in imputed.rows]
    servers = {id(row): server_of(row) or "" for _, row in read}
    for server in sorted(set(servers.values())):
        check_unique([one.key for one, row in read if servers[id(row)] == server], "result row")
    read.sort(key=lambda item: (key_order(item[0].key), servers[id(item[1])]))
    return Collected(
        rows=[one for one, _ in read],
        raw=[row for _, row in read],
        servers=[servers[id(row)] for _, row in read],
        labels=label_runs((servers[id(row)], one.agent) for one, row in read),
        imputed=imputed,
        skipped=len(everything) - len(results),
    )


def server_of(row: JsonObject) -> str | None:
    """Return the environment server that a row names; of one that names an agent only, the agent's own."""
    agent, stamp = origin(row, "a row")
    return stamp if stamp is not None or agent is None else f"{agent}_environment_server"


def _rows(files: Sequence[Path]) -> Iterator[JsonObject]:
    for path in files:
        for _, row in read_lines(path, blank="skip"):
            yield row


def _beside(files: Sequence[Path], what: str) -> list[Path]:
    return [path for path in (beside(file, f"{what}.jsonl") for file in files) if path.exists()]


def outcome_table(collected: Collected) -> pa.Table:
    """Return the rows in the form of `MEASURED_SCHEMA`, labelled by server."""
    ids = TaskIds.of(row.key[0] for row in collected.rows)
    return pa.Table.from_pylist(
        [
            ids.row(row.key)
            | {
                "label": server,
                "standing": "masked" if row.masked else "measured",
                "reward": float(row.reward) if isinstance(row.reward, int | float) else None,
                "scores": list(scores_of(raw, row).items()),
                "measures": list(measures_of(raw).items()),
                "answer": None,
            }
            for row, raw, server in zip(collected.rows, collected.raw, collected.servers, strict=True)
        ],
        schema=MEASURED_SCHEMA,
    )


def write_aggregate(spark: SparkSession, shards: Shards, output: Path, *, merge: bool) -> Collected:
    """Write X_aggregate_metrics.json, and the merged result rows as X.jsonl.

    Args:
        spark: The session.
        shards: What is aggregated.
        output: X.jsonl.
        merge: Also write it.

    Raises:
        ConfigError: see :func:`collect_rows`; a file cannot be written.
    """
    aggregate = beside(output, "aggregate_metrics.json")
    check_targets(*([output, aggregate] if merge else [aggregate]))
    if merge and output.resolve() in {file.resolve() for file in shards.files}:
        raise ConfigError(f"'{output}' is one of the files that are aggregated; choose another --output.")
    collected = collect_rows(shards)
    outcomes = spark.createDataFrame(outcome_table(collected))
    if merge:
        added = collected.imputed.failed_as_zero + collected.imputed.missing_as_zero
        real = {id(row) for row in collected.imputed.rows[: len(collected.rows) - added]}
        merged = (orjson.dumps(row).decode() for row in collected.raw if id(row) in real)
        write_text(output, "\n".join(merged))
    write_entries(outcomes, len(collected.rows), collected.labels, output)
    return collected


def write_entries(
    outcomes: DataFrame, count: int, labels: Mapping[str, str], output: Path, own: OwnNumbers | None = None
) -> None:
    """Write X_aggregate_metrics.json.

    Args:
        outcomes: Rows of `MEASURED_SCHEMA`, labelled by server.
        count: About how many they are.
        labels: Name of each server's run.
        output: X.jsonl.
        own: What else is told.

    Raises:
        ConfigError: the file cannot be written.
    """
    entries = ",\n".join(aggregate_entries(outcomes, count, labels, own or OwnNumbers()))
    write_text(beside(output, "aggregate_metrics.json"), f"[{entries}]")


def aggregate_entries(outcomes: DataFrame, count: int, labels: Mapping[str, str], own: OwnNumbers) -> Iterator[str]:
    """Yield the JSON of each server's entry, by label; arguments as for :func:`write_entries`."""
    told = with_own(outcomes, by_task(own.custom, fan_out=True))
    whole = told.repartition(partitions_for(count), "task_id")
    with kept(passed_over(whole, _GROUPS)) as passes:
        numbers = label_numbers(passes)
        perf = perf_numbers(passes, numbers)
        for server in sorted(filter(None, numbers), key=lambda server: labels[server]):
            rows = passes.where(F.col("label") == server)
            lines = group_lines(rows, between=",\n", partitions=group_partitions(numbers[server]))
            groups = ",\n".join(row["line"] for row in lines.toLocalIterator())
            yield _entry(labels[server], server, numbers[server], groups, perf.get(server), own)


def _entry(
    label: str, server: str, numbers: LabelNumbers, groups: str, perf: Mapping[str, float] | None, own: OwnNumbers
) -> str:
    custom = own.custom.get(server, CustomMetrics())
    repeats = repeats_of(None, numbers, custom)
    coverage = coverage_of(numbers)
    metrics: JsonObject = dict(coverage)
    if numbers.sums.rows:
        metrics = statistic_keys(numbers.statistics) | across_repeats(repeats) | coverage
        metrics |= {**own.subsets.get(server, {}), **custom.members()}
        metrics["num_repeats"] = len(numbers.sums.all_repeats)
    head: dict[str, Any] = {
        "agent_ref": {"name": label},
        STAMP: server,
        "agent_metrics": metrics,
        "key_metrics": key_metrics(metrics, headline_names(own.key_metrics, metrics.keys())),
        "repeat_level_metrics": repeats,
    }
    if perf is not None:
        head["perf_summary"] = dict(perf)
    return json.dumps(head, allow_nan=False)[:-1] + ', "group_level_metrics": [' + groups + "]}"
