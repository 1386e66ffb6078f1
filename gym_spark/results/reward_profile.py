"""Rewards per task, and their mean over the run with an error that knows repeats are not independent questions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.results.outcomes import is_pass


def task_profiles(outcomes: DataFrame) -> DataFrame:
    """Summarise each task.

    Args:
        outcomes: One row per planned rollout (`results.outcomes`).

    Returns:
        One row per planned task: `task_id`, `task_index`, `planned`, `completed`, `n` (scored), `passes`,
        `mean` (over scored; null if none), `strict_mean` (sum of rewards over planned), `variance` (sample; null
        below two scored).
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
    )


def mean_reward(profiles: DataFrame, *, n: str, mean: str) -> DataFrame:
    """Average the reward over rollouts, with a standard error clustered by task.

    A ratio estimator: with S_i the sum of task i's rewards over its n_i rollouts and m = sum S_i / sum n_i,
    se^2 = T / (T - 1) * sum (S_i - n_i m)^2 / (sum n_i)^2 over the T tasks with n_i > 0 (Cochran 1977, §9A.7;
    Miller 2024, "Adding Error Bars to Evals", §2.2, with the small-sample factor).

    Args:
        profiles: One row per task.
        n: Column with n_i.
        mean: Column with S_i / n_i.

    Returns:
        One row: `tasks`, `samples`, `mean` (null if none), `se` (null below two tasks).
    """
    used = profiles.where(F.col(n) > 0).select(F.col(n).alias("n"), (F.col(mean) * F.col(n)).alias("total"))
    sums = used.agg(
        F.count("*").alias("tasks"),
        F.coalesce(F.sum("n"), F.lit(0)).alias("samples"),
        (F.sum("total") / F.sum("n")).alias("mean"),
    )
    squares = used.crossJoin(sums.select("mean")).agg(
        F.sum((F.col("total") - F.col("n") * F.col("mean")) ** 2).alias("squares")
    )
    tasks, samples = F.col("tasks"), F.col("samples")
    variance = tasks / (tasks - 1) * F.col("squares") / (samples * samples)
    return sums.crossJoin(squares).select("tasks", "samples", "mean", F.when(tasks > 1, F.sqrt(variance)).alias("se"))
