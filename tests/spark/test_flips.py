"""What a second verification changed, against a plain loop."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from scipy.stats import t as student

from gym_spark.results.flips import KINDS, Change, Flips, change_between
from tests.spark.frames import Row, frame_of, spread

SCHEMA = pa.schema(
    [
        *(("task_id", pa.string()), ("rollout_index", pa.int32())),
        *(("verdict", pa.string()), ("reward", pa.float64()), ("reason", pa.string())),
    ]
)
TASKS, REPEATS = 30, 4


def outcomes(seed: int) -> list[Row]:
    """Return what one verification says of each planned rollout: scored, not scored, or nothing yet."""
    draw = np.random.default_rng(seed)
    rows = []
    for task in range(TASKS):
        for repeat in range(REPEATS):
            verdict = draw.choice(["scored", "judge_failed", None], p=[0.7, 0.15, 0.15])
            reward = float(draw.choice([0.0, 0.5, 1.0])) if verdict == "scored" else None
            reason = f"because of {repeat}" if verdict == "judge_failed" else None
            key = {"task_id": f"t{task}", "rollout_index": repeat}
            rows.append(key | {"verdict": verdict, "reward": reward, "reason": reason})
    return rows


def kind_of(was: Row, now: Row) -> str | None:
    """Say how a rollout flipped."""
    if now["verdict"] is None or (was["reward"] is None and now["reward"] is None):
        return None
    if was["reward"] is None or now["reward"] is None:
        return "unscored_to_scored" if was["reward"] is None else "scored_to_unscored"
    if (was["reward"] == 1.0) == (now["reward"] == 1.0):
        return None
    return "fail_to_pass" if now["reward"] == 1.0 else "pass_to_fail"


def by_loop(before: list[Row], after: list[Row]) -> Change:
    """Work it out a row at a time."""
    pairs = list(zip(before, after, strict=True))
    flipped = {
        kind: [(now["task_id"], now["rollout_index"]) for was, now in pairs if kind_of(was, now) == kind]
        for kind in KINDS
    }
    differences: dict[str, list[float]] = {}
    for was, now in pairs:
        if was["reward"] is not None and now["reward"] is not None:
            differences.setdefault(now["task_id"], []).append(now["reward"] - was["reward"])
    both = [(was, now) for was, now in pairs if was["reward"] is not None and now["reward"] is not None]
    firsts, seconds = (
        statistics.fmean(
            statistics.fmean(pair[side]["reward"] for pair in both if pair[1]["task_id"] == task)
            for task in differences
        )
        for side in (0, 1)
    )
    means = [statistics.fmean(found) for found in differences.values()]
    delta, se = statistics.fmean(means), statistics.stdev(means) / math.sqrt(len(means))
    half = student.ppf(0.975, len(means) - 1) * se
    verdicts = Counter(now["verdict"] for now in after if now["verdict"] is not None)
    return Change(
        planned=len(after),
        compared=verdicts.total(),
        verdicts=dict(sorted(verdicts.items())),
        reasons={"judge_failed": "because of 0"},
        flips={
            kind: Flips(len(keys), len({task for task, _ in keys}), min(keys, default=None))
            for kind, keys in flipped.items()
        },
        delta=delta,
        before=firsts,
        after=seconds,
        se=se,
        ci_low=delta - half,
        ci_high=delta + half,
        n_tasks=len(means),
    )


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return frame_of(spark, rows, SCHEMA)


@pytest.mark.parametrize("partitions", [1, 7])
def test_a_change_is_what_a_loop_finds_in_any_order_and_partitioning(spark: SparkSession, partitions: int) -> None:
    before, after = outcomes(1), outcomes(2)
    expected = by_loop(before, after)
    assert all(flips.rollouts for flips in expected.flips.values()), "every kind is there"
    shuffled = [after[place] for place in np.random.default_rng(3).permutation(len(after))]
    found = change_between(spread(frame(spark, before), partitions), spread(frame(spark, shuffled), partitions))
    assert (found.planned, found.compared, found.verdicts) == (expected.planned, expected.compared, expected.verdicts)
    assert (found.flips, found.n_tasks, found.reasons) == (expected.flips, expected.n_tasks, expected.reasons)
    for name in ("delta", "before", "after", "se", "ci_low", "ci_high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-12), name


def test_what_has_no_spread_has_no_interval_and_what_has_no_pair_no_delta(spark: SparkSession) -> None:
    same = outcomes(1)
    assert change_between(frame(spark, same), frame(spark, same)).ci_low is None
    one = [{"task_id": "a", "rollout_index": 0, "verdict": "scored", "reward": 1.0}]
    alone = change_between(frame(spark, one), frame(spark, one))
    assert (alone.delta, alone.se, alone.n_tasks) == (0.0, None, 1)
    unscored = [one[0] | {"verdict": "not_scored", "reward": None}]
    lost = change_between(frame(spark, one), frame(spark, unscored))
    assert (lost.delta, lost.n_tasks, lost.flips["scored_to_unscored"]) == (None, 0, Flips(1, 1, ("a", 0)))
    assert (lost.before, lost.after) == (None, None)
    two = [one[0], one[0] | {"task_id": "b", "reward": 0.0}]
    worse = [row | {"reward": 0.0} for row in two]
    assert change_between(frame(spark, two), frame(spark, worse)).ci_low == -1.0, "rewards from 0 to 1"
    beyond = [row | {"reward": -3.0} for row in two]
    ci_low = change_between(frame(spark, two), frame(spark, beyond)).ci_low
    assert ci_low is not None
    assert ci_low < -4.0, "rewards of any size"
    nothing = change_between(frame(spark, []), frame(spark, []))
    assert (nothing.planned, nothing.compared, nothing.verdicts, nothing.delta) == (0, 0, {}, None)
