"""As many questions of about the size of a short exam question as are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield `tasks` rows."""
    for number in range(source.params["tasks"]):
        question = f"A train with {number} wagons leaves at noon. " * 4 + "How many wagons has it?"
        yield Row(
            raw={"number": number},
            fields={"question": question},
            verifier_inputs={"expected_answer": str(number)},
        )
