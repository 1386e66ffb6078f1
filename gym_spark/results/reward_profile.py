"""Rewards per task, and groups of like tasks, from which every number over the whole run follows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.results.outcomes import is_pass
from gym_spark.results.pass_at_k import all_pass_curve, pass_curve


def task_profiles(outcomes: DataFrame) -> DataFrame:
    """Summarise each task.

    Args:
        outcomes: One row per planned rollout (`results.outcomes`).

    Returns:
        One row per planned task: `task_id`, `task_index`, `planned`, `completed`, `n` (scored), `passes`,
        `mean` (over scored; null if none), `strict_mean` (sum of rewards over planned), `variance` (sample; null
        below two scored), `min`, `max` (over scored).
    """
    reward = F.col("reward")
    return outcomes.groupBy("task_id").agg(
        F.min("task_index").alias("task_index"),
        F.count("*").alias("planned"),
        F.count_if(F.col("state") == "completed").alias("completed"),
        F.count(reward).alias("n"),
        F.count_if(is_pass(reward)).alias("passes"),
        F.avg(reward).alias("mean"),
        (F.coalesce(F.sum(reward), F.lit(0.0)) / F.count("*")).alias("strict_mean"),
        # null, not Spark's NaN, below two values
        F.when(F.count(reward) > 1, F.var_samp(reward)).alias("variance"),
        F.min(reward).alias("min"),
        F.max(reward).alias("max"),
    )


def task_groups(profiles: DataFrame, *, max_k: int) -> DataFrame:
    """Group tasks of equal counts: there are few such groups however many tasks there are.

    Args:
        profiles: One row per planned task (:func:`task_profiles`).
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
