"""A benchmark's hook that returns what cannot be a metric: one sentence that names the benchmark and the value."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.results.custom import custom_metrics
from tests.e2e.test_flow import QUIZ


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([("solved", [1.0])], "name string, value array<double>", "The metrics of benchmark 'quiz' failed"),
        ([("agent_ref", 1.0)], "name string, value double", "name a value 'agent_ref', as NeMo Gym's entries do"),
        ([("solved", 1.0), ("solved", 2.0)], "name string, value double", "have two values for 'solved'"),
        (
            [("num_rollouts", 1.0, "t")],
            "name string, value double, task_id string",
            "name a value of a task 'num_rollouts'",
        ),
        (
            [("best", 1.0, "t"), ("best", 2.0, "t")],
            "name string, value double, task_id string",
            "have two values for 'best' of task 't'",
        ),
    ],
    ids=["array", "reserved", "twice", "reserved of a task", "twice of a task"],
)
def test_a_hook_that_returns_no_metric_is_told(
    spark: SparkSession, rows: list[tuple[object, ...]], schema: str, message: str
) -> None:
    def hook(rollouts: DataFrame) -> DataFrame:
        return spark.createDataFrame(rows, schema)

    benchmark = find_benchmark("quiz", search_path([QUIZ]))
    with pytest.raises(ConfigError, match=message):
        custom_metrics(benchmark, hook, spark.range(1))


def test_a_name_that_is_a_number_is_a_text(spark: SparkSession) -> None:
    benchmark = find_benchmark("quiz", search_path([QUIZ]))
    found = custom_metrics(
        benchmark,
        lambda rollouts: spark.range(1).select(F.lit(7).alias("name"), F.lit(1).alias("value")),
        spark.range(1),
    )
    assert found.overall == {"7": 1.0}
