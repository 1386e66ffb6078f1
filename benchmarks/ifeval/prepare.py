"""Read IFEval's upstream file: each line is a prompt, the names of its instructions, and their arguments."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each line; absent arguments may be left out or null."""
    for _, record in source.records("key", "prompt", "instruction_id_list", "kwargs"):
        yield Row(
            raw=record,
            fields={"prompt": record["prompt"]},
            verifier_inputs={name: record[name] for name in ("instruction_id_list", "kwargs")},
            task_id=str(record["key"]),
        )
