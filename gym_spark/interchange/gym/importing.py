"""`eval import --format gym`: a NeMo Gym run's files become a run of the lake."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa

from gym_spark.config import JsonObject, PartSpec, RunSpec
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.checks import check_keys
from gym_spark.interchange.gym.inputs import InputRows
from gym_spark.interchange.gym.jsonl import beside, read_lines, torn_bytes
from gym_spark.interchange.gym.labels import is_fan_out, label_with_masked
from gym_spark.interchange.gym.resume import plan_resume
from gym_spark.interchange.gym.rows import (
    REPEAT,
    TASK,
    GymRow,
    Key,
    input_row,
    result_row,
    row_key,
)
from gym_spark.interchange.gym.stored import (
    IMPORTED,
    VERIFIER,
    TaskIds,
    failure_row,
    input_row_of,
    is_unjudged,
    rollout_row,
    task_rows,
    unjudged_row,
    verdict_row,
)
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord, find_run, record_run, versions
from gym_spark.tables.schemas import INPUTS, METRICS, ROLLOUTS, RUNS, TASK_PROFILES, TASKS, VERIFICATIONS, Table

#: Rows that are turned into Arrow at once.
_ROWS: Final = 500
#: Bytes of one append, and of one of its files: they fit into any driver.
_APPEND_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class GymFiles:
    """The files of one run.

    Attributes:
        rollouts: Result rows, in one or more files.
        inputs: Input rows; None: those beside the first file, else what the results tell of theirs.
    """

    rollouts: Sequence[Path]
    inputs: Path | None = None

    def failures(self) -> list[tuple[str, JsonObject]]:
        """Return the rows of the failure sidecars beside the files, in order, each with its ``FILE:LINE``."""
        sidecars = (beside(path, "failures.jsonl") for path in self.rollouts)
        return [line for path in sidecars if path.exists() for line in read_lines(path, blank="skip", torn="skip")]

    def input_file(self) -> Path | None:
        """Return the file of input rows, if there is one."""
        found = beside(self.rollouts[0], "materialized_inputs.jsonl")
        return self.inputs or (found if found.exists() else None)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    rollouts: int
    inputs: int
    masked: int
    #: Rollouts whose answer is there and whose judge failed; they are none of `rollouts`.
    unjudged: int
    #: Failed attempts, and planned rollouts that NeMo Gym itself would still make.
    failures: int
    left: int
    #: Bytes of torn last lines that were left out, by file.
    torn: dict[str, int]


def import_gym_run(lake: Lake, files: GymFiles, run_id: str) -> Imported:
    """Store a NeMo Gym run: `rollouts`, a first verification named ``imported``, its inputs as plan, and its tasks.

    A rollout that is only in the failure sidecar, answered, because its judge failed, is a completed one whose verdict
    is ``judge_failed``. Everything is read and checked before anything is written.

    Args:
        lake: The lake.
        files: The run's files.
        run_id: Name of the run.

    Raises:
        ConfigError: the run exists; a file is missing, a line malformed or a row of an odd shape (named by file and
            line); keys are there twice, or results have no input row.
    """
    if find_run(lake, run_id) is not None:
        raise ConfigError(f"The run '{run_id}' exists; take another --run-id.")
    with InputRows() as inputs:
        results = _read(files, inputs)
        if not len(inputs):
            raise ConfigError(f"'{files.rollouts[0]}' has no row; there is nothing to import.")
        failures = files.failures()
        check_keys(inputs.all_keys(), [row.key for row in results], allow_partial=True)
        keys = [_keyed(key) for key in inputs.all_keys()]
        left = plan_resume(keys, [_keyed(row.key) for row in results], [row for _, row in failures])
        inputs.sort()
        found = _Rows(files, results, inputs, _attempts(failures, inputs, results))
        unjudged = sum(attempt.is_unjudged for attempt in found.attempts)
        record = _record(run_id, found, versions({"spark": lake.spark.version}), completed=len(results) + unjudged)
        _store(lake, record, found)
    torn = {str(path): length for path in files.rollouts if (length := torn_bytes(path))}
    return Imported(
        rollouts=len(results),
        inputs=len(inputs),
        masked=sum(row.masked for row in results),
        unjudged=unjudged,
        failures=left.failed_attempts - unjudged,
        left=len(left.dispatch),
        torn=torn,
    )


def _keyed(key: Key) -> JsonObject:
    return {TASK: key[0], REPEAT: key[1]}


def _read(files: GymFiles, inputs: InputRows) -> list[GymRow]:
    """Return all result rows; all input rows, or what results tell of theirs, are added to `inputs`."""
    path = files.input_file()
    results: list[GymRow] = []
    told: set[Key] = set()
    for where, row in _lines(files.rollouts):
        results.append(result_row(row, where))
        key = results[-1].key
        if path is None and key not in told:
            told.add(key)
            inputs.add(key, input_row(row), where)
    if path is not None:
        for where, row in read_lines(path, blank="refuse"):
            inputs.add(row_key(row, where), row, where)
    return results


def _lines(paths: Sequence[Path]) -> Iterator[tuple[str, JsonObject]]:
    for path in paths:
        yield from read_lines(path, blank="refuse", torn="skip")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A row of the failure sidecar about a planned rollout.

    Attributes:
        number: Of the rollout's attempts, from 1.
        is_unjudged: It is the rollout's answer, which only lacks a verdict.
    """

    key: Key
    number: int
    row: JsonObject
    is_unjudged: bool


def _attempts(
    failures: Iterable[tuple[str, JsonObject]], inputs: InputRows, results: Iterable[GymRow]
) -> list[_Attempt]:
    """Return the sidecar's rows about planned rollouts; of several answers of one that has no result, the last counts.

    Raises:
        ConfigError: an answer's row has an odd shape.
    """
    planned, done = set(inputs.all_keys()), {row.key for row in results}
    numbered: list[tuple[Key, int, JsonObject]] = []
    counts: Counter[Key] = Counter()
    answers: dict[Key, int] = {}
    for where, row in failures:
        key = (row.get(TASK), row.get(REPEAT))
        if key not in planned:
            continue
        counts[key] += 1
        numbered.append((key, counts[key], row))
        if key not in done and is_unjudged(row):
            result_row(row, where)
            answers[key] = counts[key]
    return [_Attempt(key, number, row, answers.get(key) == number) for key, number, row in numbered]


def _record(run_id: str, found: _Rows, made_with: Mapping[str, str], *, completed: int) -> RunRecord:
    inputs = found.inputs
    masked = {row.key for row in found.results if row.masked}
    measured = [(key, run) for key, run in inputs.runs() if key not in masked]
    labels = label_with_masked((run for _, run in measured), (run for _, run in inputs.runs()))
    fan_out = is_fan_out((key[0], labels.get(run[0] or "")) for key, run in measured)
    version = hashlib.sha256()
    for _, _, row in inputs.rows():
        version.update(orjson.dumps(row, option=orjson.OPT_SORT_KEYS))
    spec = RunSpec(
        benchmark=f"{IMPORTED}/{run_id}",
        dataset_version=version.hexdigest()[:16],
        run_id=run_id,
        harness=PartSpec(name=VERIFIER),
        verifier=PartSpec(name=VERIFIER),
        num_repeats=max(1, len({key[1] for key in inputs.all_keys()})),
        imported={"files": [path.name for path in found.files.rollouts], "fan_out": fan_out, "labels": labels},
    )
    return RunRecord(
        spec=spec,
        status="finished" if completed == len(inputs) else "incomplete",
        verification_id=IMPORTED,
        planned_tasks=len({key[0] for key in inputs.all_keys()}),
        planned_rollouts=len(inputs),
        versions=made_with,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is stored."""

    files: GymFiles
    results: Sequence[GymRow]
    inputs: InputRows
    attempts: Sequence[_Attempt]

    def lines(self) -> Iterator[tuple[JsonObject, GymRow]]:
        """Yield the result rows once more: they may be too large to be kept."""
        rows = (row for _, row in _lines(self.files.rollouts))
        yield from zip(rows, self.results, strict=True)


def _store(lake: Lake, record: RunRecord, found: _Rows) -> None:
    spec, at = record.spec, datetime.now(UTC)
    run_id, labels = spec.run_id, (spec.imported or {})["labels"]
    ids = TaskIds.of(key[0] for key in found.inputs.all_keys())
    for key in found.inputs.all_keys():
        ids.row(key)  # refuses what the tables cannot hold, before anything is written
    failed = Counter(attempt.key for attempt in found.attempts)

    def input_rows() -> Iterator[JsonObject]:
        for key, (run_key, agent), row in found.inputs.rows():
            yield input_row_of(run_id, ids.row(key), row, (agent, run_key, labels.get(run_key or "")))

    def answers() -> Iterator[tuple[JsonObject, GymRow, JsonObject]]:
        for row, read in found.lines():
            # The answer came with the attempt after those that failed.
            yield row, read, ids.row(read.key) | {"attempt": failed[read.key] + 1}

    def numbered(attempt: _Attempt) -> JsonObject:
        return ids.row(attempt.key) | {"attempt": attempt.number}

    def attempt_rows() -> Iterator[JsonObject]:
        for one in found.attempts:
            made = rollout_row if one.is_unjudged else failure_row
            yield made(run_id, numbered(one), one.row, at)

    lake.ensure(RUNS, INPUTS, ROLLOUTS, VERIFICATIONS, TASK_PROFILES, METRICS, TASKS)
    version = spec.dataset_version or ""
    planned = ((ids.row(key), row) for key, _, row in found.inputs.rows())
    _write(lake, TASKS, task_rows(spec.benchmark, version, planned), benchmark=spec.benchmark, version=version)
    _write(lake, INPUTS, input_rows(), run_id=run_id)
    rollouts = (rollout_row(run_id, columns, row, at) for row, _, columns in answers())
    _write(lake, ROLLOUTS, itertools.chain(rollouts, attempt_rows()), run_id=run_id)
    verdicts = (verdict_row(run_id, columns, row, read, at) for row, read, columns in answers())
    unjudged = (unjudged_row(run_id, numbered(one), one.row, at) for one in found.attempts if one.is_unjudged)
    _write(lake, VERIFICATIONS, itertools.chain(verdicts, unjudged), run_id=run_id)
    # Last: a run that the lake knows is there as a whole, and an import that was killed is simply done again.
    record_run(lake, record)


def _write(lake: Lake, table: Table, rows: Iterable[JsonObject], **equals: str) -> None:
    """Make rows the table's only ones with these values, in commits of bounded size."""
    first = True
    for chunk in _chunks(table, rows):
        # Spark makes a partition, hence a file, of every few hundred rows that it is given.
        frame = lake.spark.createDataFrame(chunk).coalesce(1 + chunk.nbytes // _FILE_BYTES)
        if first:
            lake.replace(table, frame, **equals)
        else:
            lake.append(table, frame)
        first = False


def _chunks(table: Table, rows: Iterable[JsonObject]) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    waiting = iter(rows)
    while batch := list(itertools.islice(waiting, _ROWS)):
        batches.append(pa.RecordBatch.from_pylist(batch, schema=table.schema))
        if sum(made.nbytes for made in batches) >= _APPEND_BYTES:
            yield pa.Table.from_batches(batches)
            batches.clear()
    yield pa.Table.from_batches(batches, schema=table.schema)
