"""A run's rollouts and verdicts as JSON Lines: one object per attempt, strict JSON."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.tables.keys import ATTEMPT_KEY


def exported_rows(rollouts: DataFrame, verifications: DataFrame) -> DataFrame:
    """Return one row per stored attempt with its verdict, as JSON text, in key order.

    Args:
        rollouts: The run's stored rollouts.
        verifications: The verdicts of one verification of the run.

    Returns:
        `line`: an object with every column of `rollouts`, and `verification` (state, reward, extracted_answer,
        scores, detail), null where there is no verdict. `response` and `trajectory` are JSON text inside it.
    """
    key = list(ATTEMPT_KEY)
    verdict = F.struct("verification_id", "state", "reward", "extracted_answer", "scores", "detail")
    judged = verifications.select(*key, verdict.alias("verification"))
    rows = rollouts.join(judged, on=key, how="left").orderBy("task_index", "rollout_index", "attempt")
    line = F.struct(*rollouts.columns, "verification")
    return rows.select(F.to_json(line, {"ignoreNullFields": "false"}).alias("line"))


def write_lines(lines: DataFrame, target: Path) -> int:
    """Stream the lines into a file that appears whole or not at all; returns how many.

    Raises:
        ConfigError: the file cannot be written there.
    """
    written = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be written ({error}); choose another --output.") from error
    try:
        with open(handle, "w", encoding="utf-8") as file:
            for row in lines.toLocalIterator(prefetchPartitions=True):
                file.write(row["line"] + "\n")
                written += 1
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return written
