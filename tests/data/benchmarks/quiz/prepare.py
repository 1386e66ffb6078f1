"""Rows of the tests' own benchmark: optional keys of a row steer what is yielded."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each line; a row with `broken` makes the script fail."""
    for _, record in source.records("question", "answer"):
        if record.get("broken"):
            raise LookupError("no such\nthing")
        yield Row(
            raw=record,
            fields={"question": record["question"]},
            verifier_inputs={"expected_answer": record["answer"]},
            metadata={key: record[key] for key in ("topic",) if key in record},
            task_id=record.get("id"),
            responses_create_params=record.get("request"),
            shot_answer=record["answer"],
            patch=record.get("patch"),
        )
