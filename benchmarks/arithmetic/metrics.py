"""How well each kind of problem is solved."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def metrics(rollouts: DataFrame) -> DataFrame:
    """Return the mean reward of sums and of products, over the scored rollouts: `name`, `value`."""
    kind = F.get_json_object("metadata", "$.kind")
    means = rollouts.groupBy(kind.alias("kind")).agg(F.avg("reward").alias("value"))
    return means.select(F.concat(F.lit("mean_reward_of_"), "kind").alias("name"), "value")
