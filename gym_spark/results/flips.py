"""What a second verification of a run changed: which rollouts flipped, and the difference of the means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from gym_spark.results.outcomes import is_pass
from gym_spark.results.run_profile import SAME
from gym_spark.results.uncertainty import interval_95
from gym_spark.tables.keys import ROLLOUT_KEY

KINDS: Final = ("fail_to_pass", "pass_to_fail", "scored_to_unscored", "unscored_to_scored")


@dataclass(frozen=True, slots=True)
class Flips:
    """Rollouts, tasks with such a rollout, and one of them (task and repeat), if there is any."""

    rollouts: int
    tasks: int
    example: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """How two verifications of the same rollouts differ, over rollouts that the second has a verdict on.

    Attributes:
        planned: Rollouts that are planned.
        compared: Of them, those with a verdict in the second.
        verdicts: Of them, by state of the second verdict.
        reasons: An example of why, for each state that is no score.
        flips: By one of `KINDS`.
        delta: Mean over tasks of the difference of their mean rewards, second minus first, over rollouts scored in
            both; None if there are none.
        before: Mean over these tasks of the first rewards.
        after: Mean over them of the second ones.
        se: Its standard error: tasks are the independent units, each compared with itself. None below two tasks.
        ci_low: Lower end of the 95 % interval; None where there is no spread to estimate it from.
        ci_high: Upper end.
        n_tasks: Tasks with a rollout scored in both.
    """

    planned: int
    compared: int
    verdicts: dict[str, int]
    reasons: dict[str, str]
    flips: dict[str, Flips]
    delta: float | None
    before: float | None
    after: float | None
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
    second = after.select(*key, "verdict", "reason", F.col("reward").alias("second"))
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
        *(F.min(F.when(condition, F.col("rollout_index"))).alias(f"{kind}_at") for kind, condition in flipped.items()),
        F.avg(now - was).alias("difference"),
        F.avg(F.when(both, was)).alias("was"),
        F.avg(F.when(both, now)).alias("now"),
        F.min(F.when(both, F.least(was, now))).alias("lowest"),
        F.max(F.when(both, F.greatest(was, now))).alias("highest"),
    )
    found = tasks.agg(
        F.sum("planned").alias("planned"),
        F.sum("compared").alias("compared"),
        *(F.sum(kind).alias(kind) for kind in KINDS),
        *(F.count_if(F.col(kind) > 0).alias(f"{kind}_tasks") for kind in KINDS),
        *(
            F.min(F.when(F.col(kind) > 0, F.struct("task_id", F.col(f"{kind}_at").alias("at")))).alias(
                f"{kind}_example"
            )
            for kind in KINDS
        ),
        F.avg("difference").alias("delta"),
        F.avg("was").alias("before"),
        F.avg("now").alias("after"),
        (F.coalesce(F.min("lowest"), F.lit(-1.0)) >= 0).alias("from_0"),
        (F.coalesce(F.max("highest"), F.lit(2.0)) <= 1).alias("to_1"),
        F.when(F.count("difference") > 1, F.stddev_samp("difference")).alias("deviation"),
        F.count("difference").alias("n_tasks"),
    ).first()
    assert found is not None  # an aggregate without groups has one row
    states = rows.where(is_judged).groupBy("verdict").agg(F.count("*").alias("count"), F.min("reason").alias("reason"))
    verdicts = sorted(states.collect())
    se = None if found["deviation"] is None else found["deviation"] / found["n_tasks"] ** 0.5
    low = high = None
    if se is not None and se > SAME:
        low, high = interval_95(found["delta"], se, found["n_tasks"], bounded=False)
        if found["from_0"] and found["to_1"]:
            # Rewards from 0 to 1 differ by no more than 1.
            low, high = max(low, -1.0), min(high, 1.0)
    return Change(
        planned=found["planned"] or 0,
        compared=found["compared"] or 0,
        verdicts={row["verdict"]: row["count"] for row in verdicts},
        reasons={row["verdict"]: row["reason"] for row in verdicts if row["reason"]},
        flips={kind: Flips(found[kind] or 0, found[f"{kind}_tasks"], _example(found, kind)) for kind in KINDS},
        delta=found["delta"],
        before=found["before"],
        after=found["after"],
        se=se,
        ci_low=low,
        ci_high=high,
        n_tasks=found["n_tasks"],
    )


def _example(found: Row, kind: str) -> tuple[str, int] | None:
    example = found[f"{kind}_example"]
    return None if example is None else (example["task_id"], example["at"])
