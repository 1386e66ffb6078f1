"""What a second verification of a run changed: which rollouts flipped, and the difference of the means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.results.outcomes import is_pass
from gym_spark.results.run_profile import SAME
from gym_spark.results.uncertainty import interval_95
from gym_spark.tables.keys import ROLLOUT_KEY

KINDS: Final = ("fail_to_pass", "pass_to_fail", "scored_to_unscored", "unscored_to_scored")


@dataclass(frozen=True, slots=True)
class Flips:
    """Rollouts, and tasks with such a rollout."""

    rollouts: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Change:
    """How two verifications of the same rollouts differ, over rollouts that the second has a verdict on.

    Attributes:
        planned: Rollouts that are planned.
        compared: Of them, those with a verdict in the second.
        verdicts: Of them, by state of the second verdict.
        flips: By one of `KINDS`.
        delta: Mean over tasks of the difference of their mean rewards, second minus first, over rollouts scored in
            both; None if there are none.
        se: Its standard error: tasks are the independent units, each compared with itself. None below two tasks.
        ci_low: Lower end of the 95 % interval; None where there is no spread to estimate it from.
        ci_high: Upper end.
        n_tasks: Tasks with a rollout scored in both.
    """

    planned: int
    compared: int
    verdicts: dict[str, int]
    flips: dict[str, Flips]
    delta: float | None
    se: float | None
    ci_low: float | None
    ci_high: float | None
    n_tasks: int


def change_between(before: DataFrame, after: DataFrame) -> Change:
    """Compare two verifications; collects one row, and one per state.

    Args:
        before: One row per planned rollout (`results.outcomes`), with the verdicts of the first.
        after: The same with those of the second.
    """
    key = list(ROLLOUT_KEY)
    first = before.select(*key, F.col("reward").alias("first"))
    second = after.select(*key, "verdict", F.col("reward").alias("second"))
    rows = second.join(first, on=key)
    was, now, is_judged = F.col("first"), F.col("second"), F.col("verdict").isNotNull()
    both = was.isNotNull() & now.isNotNull()
    flipped = {
        "fail_to_pass": both & ~is_pass(was) & is_pass(now),
        "pass_to_fail": both & is_pass(was) & ~is_pass(now),
        "scored_to_unscored": is_judged & was.isNotNull() & now.isNull(),
        "unscored_to_scored": was.isNull() & now.isNotNull(),
    }
    tasks = rows.groupBy("task_id").agg(
        F.count("*").alias("planned"),
        F.count("verdict").alias("compared"),
        *(F.count_if(condition).alias(kind) for kind, condition in flipped.items()),
        F.avg(now - was).alias("difference"),
    )
    found = tasks.agg(
        F.sum("planned").alias("planned"),
        F.sum("compared").alias("compared"),
        *(F.sum(kind).alias(kind) for kind in KINDS),
        *(F.count_if(F.col(kind) > 0).alias(f"{kind}_tasks") for kind in KINDS),
        F.avg("difference").alias("delta"),
        F.when(F.count("difference") > 1, F.stddev_samp("difference")).alias("deviation"),
        F.count("difference").alias("n_tasks"),
    ).first()
    assert found is not None  # an aggregate without groups has one row
    verdicts = {row["verdict"]: row["count"] for row in rows.where(is_judged).groupBy("verdict").count().collect()}
    se = None if found["deviation"] is None else found["deviation"] / found["n_tasks"] ** 0.5
    low = high = None
    if se is not None and se > SAME:
        low, high = interval_95(found["delta"], se, found["n_tasks"], bounded=False)
    return Change(
        planned=found["planned"] or 0,
        compared=found["compared"] or 0,
        verdicts=dict(sorted(verdicts.items())),
        flips={kind: Flips(found[kind] or 0, found[f"{kind}_tasks"]) for kind in KINDS},
        delta=found["delta"],
        se=se,
        ci_low=low,
        ci_high=high,
        n_tasks=found["n_tasks"],
    )
