"""Read TruthfulQA's upstream file: the best answer against the best incorrect one, in an order that a seed picks."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from gym_spark.config import digest
from gym_spark.errors import ConfigError
from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source

COLUMNS = ("Type", "Category", "Question", "Best Answer", "Best Incorrect Answer")


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each question, unpatched."""
    seed = source.params["seed"]
    for where, record in records(source):
        question, right = record["Question"], record["Best Answer"]
        answers = [right, record["Best Incorrect Answer"]]
        if not all(answers) or answers[0] == answers[1]:
            raise ConfigError(f"truthfulqa: {where} has no two different answers; check the file.")
        # Ranked by hash, not shuffled: the order is the same under every version of Python and in any part of the file.
        answers.sort(key=lambda answer: digest([seed, question, answer]))
        options = dict(zip("AB", answers, strict=True))
        letter = "AB"[answers.index(right)]
        yield Row(
            raw=record,
            fields={"question": question, **options},
            verifier_inputs={"expected_answer": letter, "options": options},
            metadata={"type": record["Type"], "category": record["Category"]},
            shot_answer=f"Answer: {letter}",
        )


def records(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each record of the files with the line where it ends, as ``TruthfulQA.csv:2``."""
    for file in source.files:
        with file.path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"truthfulqa: {file.name} has no column '{missing[0]}'; give TruthfulQA.csv.")
            for record in reader:
                where = f"{file.name}:{reader.line_num}"
                if None in record or None in record.values():
                    raise ConfigError(f"truthfulqa: {where} has more or fewer fields than the header; check the file.")
                yield where, record
