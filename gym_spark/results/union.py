"""Several runs as one: every planned rollout once, by its key, whatever the order in which the runs are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.tables.keys import ROLLOUT_KEY


@dataclass(frozen=True, slots=True)
class Overlap:
    """How runs fit together, in rollouts.

    Attributes:
        planned: Keys that some run plans.
        gaps: Of them, those without a result in any run.
        overlaps: Those with a result in several runs; the run whose name comes first stands.
        disagreements: Of the overlaps, those whose rewards differ.
    """

    planned: int
    gaps: int
    overlaps: int
    disagreements: int

    def notes(self) -> list[str]:
        """Say it, a line each."""
        lines = [f"{self.planned - self.gaps} of {self.planned} planned rollouts have a result."]
        if self.overlaps:
            lines.append(
                f"{self.overlaps} have one in several runs, and count once, of the run whose name comes first; "
                f"the rewards of {self.disagreements} differ."
            )
        return lines


def union_of(outcomes: Mapping[str, DataFrame]) -> tuple[DataFrame, Overlap]:
    """Return the outcomes of all runs, each key once, and how they fit together; collects one row.

    Args:
        outcomes: Rows by run: the columns of `MEASURED_SCHEMA`, and more if all have the same.
    """
    columns = next(iter(outcomes.values())).columns
    frames = [frame.select(*columns, F.lit(run_id).alias("_run")) for run_id, frame in sorted(outcomes.items())]
    key = list(ROLLOUT_KEY)
    has_result = F.col("standing").isNotNull()
    stands = F.min_by(F.struct(*columns), F.struct((~has_result).alias("_none"), "_run"))
    grouped = (
        reduce(DataFrame.unionByName, frames)
        .groupBy(*key)
        .agg(
            stands.alias("row"),
            F.count_if(has_result).alias("results"),
            F.min(F.when(has_result, F.col("reward"))).alias("lowest"),
            F.max(F.when(has_result, F.col("reward"))).alias("highest"),
        )
    )
    several = F.col("results") > 1
    found = grouped.agg(
        F.count("*").alias("planned"),
        F.count_if(F.col("results") == 0).alias("gaps"),
        F.count_if(several).alias("overlaps"),
        F.count_if(several & (F.col("lowest") < F.col("highest"))).alias("disagreements"),
    ).first()
    assert found is not None  # an aggregate without groups has one row
    return grouped.select("row.*"), Overlap(**found.asDict())
