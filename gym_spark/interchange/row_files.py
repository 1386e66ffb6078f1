"""A run's rollouts and verdicts as JSON Lines: one object per attempt, strict JSON."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Final, TextIO

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.verify.stage import newest

#: Characters of transcripts that one partition of an export may have: the driver takes it whole.
_PARTITION_CHARS: Final = 32 << 20
_LARGE: Final = ("output_text", "response", "trajectory")
#: What is told of a verdict.
_VERDICT: Final = ("verification_id", "state", "reward", "extracted_answer", "scores", "unsafe", "detail")


def export_partitions(rollouts: DataFrame) -> int:
    """Return over how many partitions an export goes; reads the lengths of the transcripts."""
    chars = reduce(Column.__add__, (F.coalesce(F.length(name), F.lit(0)) for name in _LARGE))
    row = rollouts.agg(F.sum(chars).alias("chars")).first()
    return 1 + (row["chars"] or 0) // _PARTITION_CHARS if row is not None else 1


def exported_rows(rollouts: DataFrame, tasks: DataFrame, verifications: DataFrame, *, partitions: int) -> DataFrame:
    """Return one row per stored attempt with its verdict, as JSON text, in key order.

    Args:
        rollouts: The run's stored rollouts.
        tasks: The tasks of its dataset version.
        verifications: The verdicts of one verification of the run.
        partitions: Of :func:`export_partitions`.

    Returns:
        `line`: an object with every column of `rollouts`; of the task `responses_create_params` and
        `verifier_inputs`; and `verification` (state, reward, extracted_answer, scores, unsafe, detail), null where
        there is no verdict. What is JSON in its table is JSON text inside the object.
    """
    key = list(ATTEMPT_KEY)
    # A lake that an earlier version made has no `unsafe` yet.
    told = [name for name in _VERDICT if name in verifications.columns]
    judged = newest(verifications, *told).select(*key, F.struct(*told).alias("verification"))
    asked = tasks.select("task_id", "responses_create_params", "verifier_inputs")
    rows = rollouts.join(judged, on=key, how="left").join(asked, on="task_id", how="left")
    rows = in_order(rows, "task_index", "rollout_index", "attempt", partitions=partitions)
    line = F.struct(*rollouts.columns, *asked.columns[1:], "verification")
    return rows.select(F.to_json(line, {"ignoreNullFields": "false"}).alias("line"))


def in_order(rows: DataFrame, *order: str, partitions: int) -> DataFrame:
    """Sort rows over so many partitions: the driver, which writes them, takes one whole at a time."""
    return rows.repartitionByRange(partitions, *order).sortWithinPartitions(*order)


def write_lines(lines: DataFrame, target: Path) -> int:
    """Stream the lines into a file that appears whole or not at all; returns how many.

    Raises:
        ConfigError: the file cannot be written there.
    """
    written = 0
    with _whole(target) as file:
        for row in lines.toLocalIterator(prefetchPartitions=True):
            file.write(row["line"] + "\n")
            written += 1
    return written


def write_text(target: Path, text: str) -> None:
    """Write a small file that appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written there.
    """
    with _whole(target) as file:
        file.write(text + "\n")


def check_targets(*targets: Path) -> None:
    """Refuse files that cannot be written, before the first of several is.

    Raises:
        ConfigError: a folder is in the place of one.
    """
    for target in targets:
        if target.is_dir():
            raise ConfigError(f"'{target}' is a folder; choose another --output.")


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[TextIO]:
    check_targets(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
        file = hidden.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be written ({error}); choose another --output.") from error
    try:
        with file:
            yield file
        hidden.replace(target)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
