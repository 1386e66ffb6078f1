"""Metrics about the run, about places in a task, about tasks and about repeats."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.results.curves import pass_majority


def metrics(rollouts: DataFrame) -> DataFrame:
    """Return pass@k and majority@k, `solved`, each task's `best_reward`, and four numbers of each repeat."""
    solved = F.count_if(F.col("reward") == 1).cast("double")
    overall = rollouts.agg(solved.alias("value")).withColumn("name", F.lit("solved"))
    tasks = rollouts.groupBy("task_id").agg(F.max("reward").alias("value")).withColumn("name", F.lit("best_reward"))
    odd = F.when(F.col("rollout_index") % 2 == 1, 1.0)
    repeats = rollouts.groupBy("rollout_index").agg(
        (100 * F.avg("reward")).alias("accuracy"), solved.alias("solved"), F.max(odd).alias("odd")
    )
    repeats = repeats.withColumn("mean/reward", F.lit(-1.0))
    repeats = repeats.unpivot("rollout_index", ["accuracy", "solved", "odd", "mean/reward"], "name", "value")
    found = pass_majority(rollouts)
    for frame in (overall, tasks, repeats):
        found = found.unionByName(frame, allowMissingColumns=True)
    return found
