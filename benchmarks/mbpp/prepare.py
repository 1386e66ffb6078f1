"""Read MBPP's upstream file as it is, and take the problems of the test split, which are those of certain ids."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each problem of the split, unpatched, under its own id."""
    first, last = source.params["first_id"], source.params["last_id"]
    for _, record in source.records("task_id", "text", "code", "test_setup_code", "test_list"):
        if not first <= record["task_id"] <= last:
            continue
        setup, tests = record["test_setup_code"], record["test_list"]
        yield Row(
            raw=record,
            task_id=f"MBPP/{record['task_id']}",
            fields={"text": record["text"], "tests": "\n".join([setup, *tests] if setup else tests)},
            verifier_inputs={"setup": setup, "tests": tests},
            metadata={"code": record["code"]},
            shot_answer=f"```python\n{record['code']}\n```",
        )
