"""Read HumanEval's upstream file as it is: header and docstring, the name to call, and a function that checks it."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each problem, unpatched, under its own id."""
    for _, record in source.records("task_id", "prompt", "entry_point", "canonical_solution", "test"):
        yield Row(
            raw=record,
            task_id=record["task_id"],
            fields={"prompt": record["prompt"]},
            verifier_inputs={
                "prompt": record["prompt"],
                "entry_point": record["entry_point"],
                "tests": record["test"],
            },
            metadata={"canonical_solution": record["canonical_solution"]},
            shot_answer=f"```python\n{record['prompt']}{record['canonical_solution']}```",
        )
