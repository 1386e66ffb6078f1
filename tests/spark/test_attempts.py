"""Which unfinished rollouts are done again, and what a rollout of several attempts has cost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gym_spark.results.outcomes import outcomes, sources
from gym_spark.rollout.plan import pending_rollouts
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.spark.frames import AT, RUN, Row, failure, rollout, rollouts, spread, tasks, verdict, verifications
from tests.spark.frames import task as task_row

TASKS = ("ok", "transient", "too_long", "in_flight")


def tokens(total: int) -> dict[str, int]:
    """Return a usage of so many tokens, nine tenths of them in the prompt."""
    return {"input_tokens": total * 9 // 10, "output_tokens": total - total * 9 // 10, "total_tokens": total}


#: The failed attempt was killed after it had used 100 tokens; another run has completed everything.
FIRST: list[Row] = [
    rollout("ok"),
    failure("transient") | {"usage": tokens(100)},
    failure("too_long", terminal=True),
    *(rollout(name, run_id="other", attempt=2) for name in TASKS),
]


def test_p31_a_resume_does_exactly_the_transient_and_the_unfinished_rollout(lake: Lake) -> None:
    """Of four: completed and terminally failed ones never, the one that failed once and the one never stored do."""
    lake.ensure(ROLLOUTS)
    lake.append_rows(ROLLOUTS, FIRST)
    planned = tasks(lake.spark, *(task_row(name) for name in TASKS)).select(
        "task_id", "task_index", "shard", F.lit(0).alias("rollout_index")
    )
    todo = pending_rollouts(planned, lake.read(ROLLOUTS, run_id=RUN)).collect()
    assert {(row["task_id"], row["attempt"]) for row in todo} == {("transient", 2), ("in_flight", 1)}


@pytest.mark.parametrize("partitions", [1, 7])
def test_p31_tokens_and_time_count_over_attempts_and_a_late_old_attempt_replaces_nothing(
    spark: SparkSession, partitions: int
) -> None:
    """100 tokens of the first attempt and 50 of the second are 150; the rollout began when the first one did."""
    second = rollout("transient", attempt=2, usage=tokens(50), started_at=AT + timedelta(hours=1))
    # It was thought dead, and is stored after the one that took its place.
    late = failure("late") | {"completed_at": AT + timedelta(hours=9)}
    stored = [*(row for row in FIRST if row["run_id"] == RUN), second, rollout("late", attempt=2), late]
    judged = [verdict("transient", attempt=2, reward=1.0), verdict("late", attempt=1, state="not_scored")]
    planned = tasks(spark, *(task_row(name) for name in (*TASKS, "late")))
    stored_and_planned = sources(
        planned.select("task_id", "task_index", "shard", F.lit(0).alias("rollout_index")),
        spread(rollouts(spark, *stored), partitions),
        verifications(spark, *judged, verdict("late", attempt=2, reward=1.0)),
    )
    seen: dict[str, Any] = {row["task_id"]: row for row in outcomes(stored_and_planned).collect()}
    assert {name: row["state"] for name, row in seen.items()} == {
        "ok": "completed",
        "transient": "completed",
        "too_long": "failed",
        "in_flight": "missing",
        "late": "completed",
    }
    transient = seen["transient"]
    assert transient["input_tokens"] + transient["output_tokens"] == 150
    assert "transient" in {
        row["task_id"] for row in outcomes(stored_and_planned).where(F.col("started_at") == F.lit(AT)).collect()
    }
    assert (seen["transient"]["reward"], seen["late"]["reward"]) == (1.0, 1.0)
