"""What every test layer shares: the folder of a test sets its marker, and no test meets a user's settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gym_spark.session import get_session
from gym_spark.tables.lake import Lake

ROOT = Path(__file__).parent

# Spark's Python workers must be this interpreter.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Dozens of short runs start a JVM of their own: what suits long ones costs each of them seconds.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
for name in ("GYM_SPARK_LAKE", "GYM_SPARK_STAGING", "SPARK_REMOTE"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder: unit, spark or e2e."""
    for item in items:
        layer = item.path.relative_to(ROOT).parts[0]
        item.add_marker(getattr(pytest.mark, layer))
        if item.get_closest_marker("long") and not os.environ.get("GYM_SPARK_LONG"):
            item.add_marker(pytest.mark.skip(reason="a long form; GYM_SPARK_LONG=1 runs it"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of a test run."""
    session = get_session(
        {
            # Two tries of a task, for tests in which one dies; local Spark would give up at the first.
            "spark.master": "local[4,2]",
            "spark.sql.shuffle.partitions": "2",
            # Compiling a stage takes longer than running it over a few rows; runs in processes of their own compile.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
    )
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(spark, str(tmp_path / "lake"))
