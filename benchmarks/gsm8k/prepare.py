"""Read GSM8K's upstream file: the number after the last ``####`` is the gold, the worked solution is kept as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gym_spark.errors import ConfigError
from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source

FINAL_LINE = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each line, unpatched."""
    for where, record in source.records("question", "answer"):
        final = FINAL_LINE.search(record["answer"])
        if final is None:
            raise ConfigError(f"gsm8k: the answer at {where} does not end in '#### N'; check the file.")
        yield Row(
            raw=record,
            fields={"question": record["question"]},
            verifier_inputs={"expected_answer": final[1].replace(",", "")},
            metadata={"answer": record["answer"]},
            shot_answer=record["answer"],
        )
