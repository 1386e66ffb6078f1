"""One Spark session for all tests of this layer, and a lake of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gym_spark.session import get_session
from gym_spark.tables.lake import Lake


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session; C1 only and serial GC because a test run is short (SPIKES.md)."""
    session = get_session(
        {
            "spark.master": "local[4]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
    )
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(spark, str(tmp_path / "lake"))
