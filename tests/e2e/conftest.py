"""The command line in this process, on the test run's one Spark session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gym_spark import cli


@dataclass(frozen=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str


Run = Callable[..., Told]


@pytest.fixture
def gym(spark: SparkSession, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``gym-spark ARGUMENTS`` with the lake of this test, unless another is given."""

    def run(*arguments: str | Path | int | float, lake: Path | None = None) -> Told:
        words = [str(word) for word in arguments]
        if words[0] == "eval" and "--lake" not in words:
            words += ["--lake", str(lake or tmp_path / "lake")]
        capfd.readouterr()
        code = cli.run(words)
        told = capfd.readouterr()
        return Told(code, told.out, told.err)

    return run
