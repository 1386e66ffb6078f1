"""Read MMLU's upstream archive, or files of it: question, four options and the right letter, without a header."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator
from pathlib import PurePath

from gym_spark.errors import ConfigError
from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source, SourceFile

LETTERS = ("A", "B", "C", "D")


def rows(source: Source) -> Iterator[Row]:
    """Yield one row for each question of the split, unpatched, under its subject and number from 1."""
    ending = f"_{source.params['split']}.csv"
    found = False
    for name, text in tables(source, ending):
        found = True
        subject = PurePath(name).name.removesuffix(ending)
        for number, record in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
            if len(record) != 6 or record[5] not in LETTERS:
                raise ConfigError(
                    f"mmlu: record {number} of {name} is not a question, four options and a letter of A to D; "
                    "check the file."
                )
            question, *texts, letter = record
            options = dict(zip(LETTERS, texts, strict=True))
            yield Row(
                raw={"subject": subject, "question": question, **options, "answer": letter},
                task_id=f"{subject}/{number}",
                fields={"subject": subject.replace("_", " "), "question": question, **options},
                verifier_inputs={"expected_answer": letter, "options": options},
                metadata={"subject": subject},
                shot_answer=f"Answer: {letter}",
            )
    if not found:
        raise ConfigError(
            f"mmlu: the source has no file SUBJECT{ending}; give the archive or such files with --source."
        )


def tables(source: Source, ending: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each table of the split, in the order of the names within an archive."""
    for file in source.files:
        if file.name.endswith(ending):
            yield file.name, decoded(file.name, file.path.read_bytes())
        elif file.name.endswith(".tar"):
            yield from archived(file, ending)


def archived(file: SourceFile, ending: str) -> Iterator[tuple[str, str]]:
    """Yield the tables of the split from the archive; nothing is written to disk."""
    try:
        with tarfile.open(file.path) as archive:
            members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(ending)]
            for member in sorted(members, key=lambda member: member.name):
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, decoded(member.name, stream.read())
    except tarfile.TarError as error:
        raise ConfigError(f"mmlu: {file.name} is not a whole tar archive ({error}); fetch it again.") from error


def decoded(name: str, content: bytes) -> str:
    """Return the text of a table."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"mmlu: {name} is not UTF-8 (byte {error.start + 1}); check the file.") from error
