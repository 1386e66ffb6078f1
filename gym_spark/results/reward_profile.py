"""Groups of like tasks, from which every number over the whole run follows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.results.pass_at_k import all_pass_curve, pass_curve


def task_groups(profiles: DataFrame, *, max_k: int) -> DataFrame:
    """Group tasks of equal counts: there are few such groups however many tasks there are.

    Args:
        profiles: One row per planned task (`results.passes.profiles_of`).
        max_k: Largest k of pass@k.

    Returns:
        One row per (`planned`, `n`, `passes`): `tasks`, `total_mean` and `total_variance` (population) of the tasks'
        summed rewards, `min` and `max` of single rewards, `curve_planned` and `curve_scored` (pass@1 ... pass@max_k
        over planned and over scored rollouts, unscored ones counting as no pass in the former), `all_planned` and
        `all_scored` (the same of pass^k).
    """
    total = F.col("strict_mean") * F.col("planned")
    groups = profiles.groupBy("planned", "n", "passes").agg(
        F.count("*").alias("tasks"),
        F.avg(total).alias("total_mean"),
        F.var_pop(total).alias("total_variance"),
        F.min("min").alias("min"),
        F.max("max").alias("max"),
    )
    return groups.withColumns(
        {
            "curve_planned": pass_curve(F.col("planned"), F.col("passes"), max_k),
            "curve_scored": pass_curve(F.col("n"), F.col("passes"), max_k),
            "all_planned": all_pass_curve(F.col("planned"), F.col("passes"), max_k),
            "all_scored": all_pass_curve(F.col("n"), F.col("passes"), max_k),
        }
    )
