"""pass@k as column expressions, and its average over tasks.

Source of the estimator: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", §2.1: with c passes
among n samples, pass@k = 1 - C(n-c, k) / C(n, k), unbiased. k above n is undefined: null, never 0 or 1.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def pass_at_k(n: Column, c: Column, k: Column) -> Column:
    """Return pass@k of a task with `c` passes among `n` samples, as the product that avoids factorials."""
    misses = F.aggregate(
        F.sequence(F.lit(0), k.cast("int") - F.lit(1)),
        F.lit(1.0),
        lambda product, j: product * F.greatest(n - c - j, F.lit(0)) / (n - j),
    )
    return F.when(k <= n, F.lit(1.0) - misses)


def pass_curve(profiles: DataFrame, *, n: str, max_k: int) -> DataFrame:
    """Average pass@k over tasks, for every k up to `max_k`.

    Tasks fall into few groups of equal (n, passes), so the curve is computed once per group, not once per task.

    Args:
        profiles: One row per task, with `n`'s column and `passes`.
        n: The column that counts a task's samples: `n` (scored) or `planned` (unscored counts as no pass).
        max_k: Largest k.

    Returns:
        One row per k: `k`, `tasks` (with n >= k), `samples`, `mean`, `se` (over tasks; null below two). A k that no
        task has samples for has `tasks` 0 and a null mean.
    """
    groups = profiles.groupBy(F.col(n).alias("n"), "passes").agg(F.count("*").alias("weight"))
    each = groups.withColumn("k", F.explode(F.sequence(F.lit(1), F.lit(max_k)))).withColumn(
        "value", pass_at_k(F.col("n"), F.col("passes"), F.col("k"))
    )
    counted = F.col("value").isNotNull()
    weight = F.when(counted, F.col("weight")).otherwise(F.lit(0))
    sums = each.groupBy("k").agg(
        F.sum(weight).alias("tasks"),
        F.sum(weight * F.col("n")).alias("samples"),
        (F.sum(F.col("weight") * F.col("value")) / F.sum(F.when(counted, F.col("weight")))).alias("mean"),
    )
    spread = F.sum(F.col("weight") * (F.col("value") - F.col("mean")) ** 2)
    squares = each.join(sums, on="k").groupBy("k").agg(spread.alias("squares"))
    variance = F.col("squares") / (F.col("tasks") - 1) / F.col("tasks")
    return sums.join(squares, on="k").select(
        "k", "tasks", "samples", "mean", F.when(F.col("tasks") > 1, F.sqrt(variance)).alias("se")
    )
