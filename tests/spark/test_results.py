"""A run's numbers against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy.stats import t as student

from gym_spark.errors import ConfigError
from gym_spark.results.group_scores import group_scores
from gym_spark.results.outcomes import outcomes, sources
from gym_spark.results.pass_at_k import pass_at_k
from gym_spark.results.passes import counts_of, passed, profiles_of
from gym_spark.results.run_profile import Coverage, Metric, RunProfile, profile_numbers
from tests.spark.frames import Row, failure, frame_of, rollout, rollouts, task, tasks, verdict, verifications

PLANNED = pa.schema(
    [("task_id", pa.string()), ("task_index", pa.int64()), ("shard", pa.int32()), ("rollout_index", pa.int32())]
)
Rewards = Mapping[str, Sequence[float | None]]


def planned(spark: SparkSession, repeats: Mapping[str, int]) -> DataFrame:
    """Return a plan of so many repeats of each task."""
    rows = [
        {"task_id": task_id, "task_index": position, "shard": 0, "rollout_index": index}
        for position, (task_id, count) in enumerate(repeats.items())
        for index in range(count)
    ]
    return frame_of(spark, rows, PLANNED)


def judged(spark: SparkSession, rewards: Rewards) -> DataFrame:
    """Return what is stored of rollouts with these rewards; None is a rollout that never came back."""
    keys = [(name, at, value) for name, values in rewards.items() for at, value in enumerate(values)]
    known = [(name, at, value) for name, at, value in keys if value is not None]
    return sources(
        planned(spark, {name: len(values) for name, values in rewards.items()}),
        rollouts(spark, *(rollout(name, at) for name, at, _ in known)),
        verifications(spark, *(verdict(name, at, reward=value) for name, at, value in known)),
    )


def profiles(frame: DataFrame) -> DataFrame:
    """Return the rewards of each task."""
    return profiles_of(passed(frame, "count"))


def profiled(frame: DataFrame, max_k: int = 3) -> tuple[Coverage, dict[tuple[str, str], Metric]]:
    """Return the coverage of a run, and the metrics by name and denominator.

    Most tests share one `max_k`, since Spark compiles the plan of each anew.
    """
    passes = passed(frame, "count")
    counts, found = profile_numbers(counts_of(passes), profiles_of(passes), max_k=max_k)
    by_name: dict[tuple[str, str], Metric] = {(metric.name, metric.denominator): metric for metric in found}
    assert len(by_name) == len(found) == 2 * (1 + max_k + (max_k - 1)), (
        "mean reward, pass@1 to pass@k, pass^2 to pass^k"
    )
    return counts, by_name


def numbers(frame: DataFrame, max_k: int = 3) -> dict[tuple[str, str], Metric]:
    """Return the metrics alone."""
    return profiled(frame, max_k)[1]


def by_key(frame: DataFrame) -> dict[tuple[str, int], Row]:
    """Return outcomes by task and repeat."""
    return {(row["task_id"], row["rollout_index"]): row.asDict() for row in frame.collect()}


def test_p32_a_task_without_any_rollout_stays_in_the_denominator(spark: SparkSession) -> None:
    """4 tasks x 2, rewards (1,1), (0,1), (0,0), none: planned 0.375, scored 0.5, 2 rollouts and 1 task missing."""
    rewards = {"a": (1.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 0.0)}
    keys = [(name, index, value) for name, values in rewards.items() for index, value in enumerate(values)]
    frame = sources(
        planned(spark, {"a": 2, "b": 2, "c": 2, "d": 2}),
        rollouts(spark, *(rollout(name, index) for name, index, _ in keys)),
        verifications(spark, *(verdict(name, index, reward=value) for name, index, value in keys)),
    )
    counts, found = profiled(frame)
    strict, scored = found["mean_reward", "planned"], found["mean_reward", "scored"]
    assert (strict.value, strict.n_tasks, strict.n_rollouts) == (0.375, 4, 8)
    assert (scored.value, scored.n_tasks, scored.n_rollouts) == (0.5, 3, 6)
    assert found["pass@2", "planned"].value == pytest.approx(2 / 4)
    assert found["pass@2", "scored"].value == pytest.approx(2 / 3)
    assert counts == Coverage(
        planned_tasks=4,
        planned=8,
        completed=6,
        failed=0,
        missing=2,
        scored=6,
        unscored=0,
        tasks_without_score=1,
        input_tokens=60,
        output_tokens=30,
        failures={},
        graded_with_exception={},
        exceptions_count_as="count",
        answer_states={"complete": 6},
        verdicts={"scored": 6},
        reasons={},
        mean_of_complete=0.5,
        missing_shards={0: 2},
    )
    assert counts.summary() == (
        "6 of 8 planned rollouts scored (75.0 %); 2 missing; shard 1 misses 2; 1 of 4 tasks have no score at all"
    )


def test_outcomes_take_the_attempt_that_stands_and_only_a_scored_reward(spark: SparkSession) -> None:
    """The completed attempt counts, whenever it came; a verdict without score, or on another attempt, is no reward."""
    later, earlier, lost, unclear = "later", "earlier", "lost", "unclear"
    frame = sources(
        planned(spark, {later: 1, earlier: 1, lost: 1, unclear: 2, "absent": 1}),
        rollouts(
            spark,
            failure(later, attempt=1) | {"usage": {"input_tokens": 3, "output_tokens": None}},
            rollout(later, attempt=2),
            rollout(earlier, attempt=1, answer_state="truncated"),
            failure(earlier, attempt=2),
            failure(lost, attempt=1),
            failure(lost, attempt=2, terminal=True),
            rollout(unclear, 0),
            rollout(unclear, 1),
            rollout("of another plan"),
        ),
        verifications(
            spark,
            verdict(later, attempt=1, state="not_scored"),
            verdict(later, attempt=2, reward=1.0),
            verdict(earlier, attempt=1, reward=0.5),
            verdict(earlier, attempt=2, state="not_scored"),
            verdict(lost, attempt=2, state="not_scored"),
            # A judge that failed gave no reward, whatever stands in its row.
            verdict(unclear, 0, state="judge_failed", reward=0.0),
            verdict("of another plan", reward=1.0),
        ),
    )
    seen = {
        key: (
            row["state"],
            row["failure_kind"],
            row["answer_state"],
            row["verdict"],
            row["reward"],
            row["input_tokens"],
        )
        for key, row in by_key(outcomes(frame)).items()
    }
    assert seen == {
        (later, 0): ("completed", None, "complete", "scored", 1.0, 13),
        (earlier, 0): ("completed", None, "truncated", "scored", 0.5, 10),
        (lost, 0): ("failed", "bad_request", None, "not_scored", None, None),
        (unclear, 0): ("completed", None, "complete", "judge_failed", None, 10),
        (unclear, 1): ("completed", None, "complete", None, None, 10),
        ("absent", 0): ("missing", None, None, None, None, None),
    }
    counts, _ = profiled(frame)
    assert (counts.planned, counts.completed, counts.failed, counts.missing) == (6, 4, 1, 1)
    assert (counts.scored, counts.unscored, counts.tasks_without_score) == (2, 2, 3)
    assert (counts.input_tokens, counts.output_tokens) == (43, 20)
    assert counts.failures == {"bad_request": 1}
    assert counts.answer_states == {"complete": 3, "truncated": 1}
    assert counts.verdicts == {"scored": 2, "not_scored": 1, "judge_failed": 1}


def test_task_profiles_of_uneven_and_non_binary_rewards(spark: SparkSession) -> None:
    """Mean over what is scored, strict mean over what is planned, sample variance from two on, full marks pass."""
    rewards: Rewards = {"a": (0.25, 0.75, 1.0, 1.5), "b": (0.5, None), "c": (None,), "d": (-1.0, 1.0, None)}
    rows = {row["task_id"]: row.asDict() for row in profiles(judged(spark, rewards)).collect()}
    columns = ("task_index", "planned", "completed", "n", "passes", "mean", "strict_mean", "variance")
    seen = {task_id: tuple(row[name] for name in columns) for task_id, row in rows.items()}
    variance = sum((value - 0.875) ** 2 for value in (0.25, 0.75, 1.0, 1.5)) / 3
    assert seen == {
        "a": (0, 4, 4, 4, 2, 0.875, 0.875, pytest.approx(variance)),
        "b": (1, 2, 1, 1, 0, 0.5, 0.25, None),
        "c": (2, 1, 0, 0, 0, None, 0.0, None),
        "d": (3, 3, 2, 2, 1, 0.0, 0.0, pytest.approx(2.0)),
    }


def test_metrics_of_uneven_repeats_weigh_rollouts_in_the_mean_and_tasks_in_pass_at_k(spark: SparkSession) -> None:
    """The mean is over rollouts, its error the ratio estimator's; pass@k is over the tasks with k samples or more."""
    rewards: Rewards = {"a": (1.0, 1.0, 0.0, 0.0), "b": (0.5, 1.0), "c": (0.0,)}
    found = numbers(judged(spark, rewards))
    mean = 3.5 / 7
    squares = (2.0 - 4 * mean) ** 2 + (1.5 - 2 * mean) ** 2 + (0.0 - mean) ** 2
    reward = found["mean_reward", "scored"]
    assert (reward.value, reward.n_tasks, reward.n_rollouts) == pytest.approx((mean, 3, 7))
    assert reward.se == pytest.approx(math.sqrt(3 / 2 * squares) / 7)
    one, two, three = (found[f"pass@{k}", "scored"] for k in (1, 2, 3))
    assert (one.value, one.n_tasks, one.n_rollouts) == pytest.approx(((0.5 + 0.5 + 0) / 3, 3, 7))
    assert (two.value, two.n_tasks, two.n_rollouts) == pytest.approx(((5 / 6 + 1) / 2, 2, 6))
    assert (three.value, three.n_tasks, three.n_rollouts) == pytest.approx((1.0, 1, 4))
    assert (three.se, three.ci_low, three.reason) == (None, None, "an interval needs two tasks")


def test_p35_pass_at_k_is_unbiased_per_task_and_undefined_beyond_the_samples(spark: SparkSession) -> None:
    """n=5 with c=2 and c=0: pass@3 0.45; of n=2 null, with the reason; of one sample there is no pass@10."""
    five = numbers(judged(spark, {"a": (1.0, 0.0, 1.0, 0.0, 0.0), "b": (0.0,) * 5}))
    assert five["pass@3", "scored"].value == pytest.approx(0.45)
    all_of = numbers(judged(spark, {"a": (1.0, 1.0, 1.0, 0.0, 1.0)}))
    assert all_of["pass^3", "scored"].value == pytest.approx(0.4)
    two = numbers(judged(spark, {"a": (1.0, 1.0), "b": (0.0, 1.0)}))
    beyond = two["pass@3", "scored"]
    assert (beyond.value, beyond.se, beyond.ci_low, beyond.ci_high, beyond.n_tasks) == (None, None, None, None, 0)
    assert (beyond.n_rollouts, beyond.reason) == (0, "no task has 3 scored rollouts")
    single = numbers(judged(spark, {"a": (1.0,), "b": (0.0,)}), 1)
    assert {name for name, _ in single} == {"mean_reward", "pass@1"}


def test_pass_at_k_equals_the_binomial_formula_on_a_grid(spark: SparkSession) -> None:
    """Every n up to 12, c and k up to n + 1, against binomial coefficients; and large n without overflow."""
    grid = [(n, c, k) for n in range(13) for c in range(n + 1) for k in range(1, n + 2)]
    grid += [(1000, 1, 500), (1000, 999, 2), (1000, 3, 1000), (5000, 10, 100)]
    frame = frame_of(
        spark,
        [dict(zip("nck", values, strict=True)) for values in grid],
        pa.schema([(name, pa.int64()) for name in "nck"]),
    )
    value = pass_at_k(F.col("n"), F.col("c"), F.col("k"))
    for row in frame.withColumn("value", value).collect():
        n, c, k = row["n"], row["c"], row["k"]
        wanted = None if k > n else pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)
        assert row["value"] == wanted, (n, c, k)


def test_p34_micro_and_macro_scores_each_have_their_own_error(spark: SparkSession) -> None:
    """x: 9 of 10, y: 45 of 90. Micro 0.540 ± 0.0487, macro 0.700 ± 0.0566, each named so; and each group's own."""
    solved = {f"x{at}": (float(at < 9),) for at in range(10)} | {f"y{at}": (float(at < 45),) for at in range(90)}
    described = [task(name, metadata=json.dumps({"subject": name[0]})) for name in solved]
    rewards = profiles(judged(spark, solved))
    found = {metric.name: metric for metric in group_scores(rewards, tasks(spark, *described), "subject")}
    micro, macro = found["mean_reward/micro:subject"], found["mean_reward/macro:subject"]
    assert (micro.value, micro.se) == (pytest.approx(0.54), pytest.approx(0.0487, abs=5e-5))
    assert (macro.value, macro.se) == (pytest.approx(0.7), pytest.approx(0.0566, abs=5e-5))
    assert (found["mean_reward/subject=x"].value, found["mean_reward/subject=x"].n_tasks) == (pytest.approx(0.9), 10)
    with pytest.raises(ConfigError, match="No task has the field 'topic'"):
        group_scores(rewards, tasks(spark, *described), "topic")


def test_p37_repeats_are_not_independent_questions(spark: SparkSession) -> None:
    """4 tasks x 5, two all 1 and two all 0: error 0.2887, Student's interval over 4 tasks, in every partitioning."""
    frame = judged(spark, {"a": (1.0,) * 5, "b": (0.0,) * 5, "c": (1.0,) * 5, "d": (0.0,) * 5})
    found = numbers(frame.repartition(1))
    for metric in found.values():
        assert metric.value == pytest.approx(0.5)
        assert metric.se == pytest.approx(0.2887, abs=5e-5)
        assert (metric.ci_low, metric.ci_high) == (0.0, 1.0), "cut to where the true value can lie"
        assert (metric.n_tasks, metric.n_rollouts, metric.reason) == (4, 20, None)
    assert numbers(frame.repartition(7, "task_id")) == found


def test_p37_the_interval_is_student_s_over_tasks_and_cut_only_where_the_value_is_bounded(spark: SparkSession) -> None:
    """16 tasks, half of them all 1: 0.5 ± t(15)·0.129. Rewards of 3 and -1 are not bounded by 0 and 1: no cut."""
    found = numbers(judged(spark, {f"t{at}": (float(at % 2),) * 5 for at in range(16)}))
    half = student.ppf(0.975, 15) * math.sqrt(0.25 * 16 / 15 / 16)
    for name in ("mean_reward", "pass@1"):
        assert (found[name, "scored"].ci_low, found[name, "scored"].ci_high) == pytest.approx((0.5 - half, 0.5 + half))
    wide = numbers(judged(spark, {"a": (3.0,) * 5, "b": (-1.0,) * 5, "c": (3.0,) * 5, "d": (-1.0,) * 5}))
    half = student.ppf(0.975, 3) * 4 * math.sqrt(1 / 12)
    mean = wide["mean_reward", "planned"]
    assert (mean.value, mean.ci_low, mean.ci_high) == pytest.approx((1.0, 1 - half, 1 + half))
    assert wide["pass@1", "planned"].ci_high == 1.0


def test_tasks_that_all_score_alike_give_no_interval(spark: SparkSession) -> None:
    """0 of 4 tasks solved does not mean certainly none: an interval of no width would say so."""
    for metric in numbers(judged(spark, {name: (0.0,) * 5 for name in "abcd"})).values():
        assert (metric.value, metric.ci_low, metric.ci_high) == (0.0, None, None)
        assert metric.reason is not None
        assert "same value" in metric.reason


def test_p37_numbers_are_the_same_in_any_partitioning_and_order(spark: SparkSession) -> None:
    """Rewards that binary fractions cannot hold, in 1 or 7 partitions and in any order: equal but for the last bits."""
    rewards: Rewards = {f"t{at}": [(at * 7 + index * 3) % 10 / 10 for index in range(5)] for at in range(20)}
    frame = judged(spark, rewards)
    found = numbers(frame.repartition(1))
    again = numbers(frame.orderBy(F.desc("rollout_index"), F.desc("task_id")).repartition(7, "task_id"))
    for key, metric in found.items():
        other = again[key]
        assert (other.n_tasks, other.n_rollouts, other.reason) == (metric.n_tasks, metric.n_rollouts, metric.reason)
        for mine, theirs in zip(
            (metric.value, metric.se, metric.ci_low, metric.ci_high),
            (other.value, other.se, other.ci_low, other.ci_high),
            strict=True,
        ):
            assert (mine is None) == (theirs is None)
            assert mine is None or theirs == pytest.approx(mine, rel=1e-12)


def test_p37_one_task_has_no_interval(spark: SparkSession) -> None:
    """With one task nothing is known of the spread between tasks: no interval, and not one of width 0."""
    for metric in numbers(judged(spark, {"a": (1.0, 0.0, 1.0)})).values():
        assert metric.value is not None
        assert (metric.se, metric.ci_low, metric.ci_high) == (None, None, None)
        assert metric.reason == "an interval needs two tasks"


def test_a_run_without_any_score_has_coverage_but_no_numbers(spark: SparkSession) -> None:
    """Nothing scored is no strict 0: every value is null with a reason, beside a coverage of 0; the JSON is strict."""
    frame = sources(planned(spark, {"a": 2, "b": 2}), rollouts(spark), verifications(spark))
    counts, found = profiled(frame)
    assert (counts.planned_tasks, counts.planned, counts.missing, counts.scored) == (2, 4, 4, 0)
    assert (counts.fraction, counts.input_tokens, counts.output_tokens) == (0.0, None, None)
    for metric in found.values():
        assert (metric.value, metric.se, metric.ci_low, metric.n_tasks, metric.n_rollouts) == (None, None, None, 0, 0)
        assert metric.reason == "no rollout is scored"
    profile = RunProfile("r", "quiz", "1", None, "v", 3, "finished", None, counts, tuple(found.values()))
    body = json.loads(profile.to_json(), parse_constant=pytest.fail)
    assert body["coverage"]["fraction"] == 0.0
    assert {item["value"] for item in body["metrics"]} == {None}
    assert profile.metric("pass@1", "planned").value is None


def test_one_score_makes_the_strict_numbers_count_everything_planned(spark: SparkSession) -> None:
    """From the first score on, an unscored rollout of the plan is a strict 0 and absent from what is scored."""
    counts, found = profiled(judged(spark, {"a": (1.0, None, None), "b": (None, None, None)}))
    assert (counts.scored, counts.missing, counts.tasks_without_score) == (1, 5, 1)
    strict, scored = found["mean_reward", "planned"], found["mean_reward", "scored"]
    assert (strict.value, strict.n_tasks, strict.n_rollouts) == pytest.approx((1 / 6, 2, 6))
    assert (scored.value, scored.n_tasks, scored.n_rollouts) == (1.0, 1, 1)
    assert found["pass@2", "planned"].value == pytest.approx((2 / 3) / 2)
    assert (found["pass@2", "scored"].value, found["pass@2", "scored"].n_rollouts) == (None, 0)


def test_a_plan_without_tasks_has_no_numbers(spark: SparkSession) -> None:
    """Empty input: every value is null with a reason, and coverage is 0 of 0."""
    counts, found = profiled(sources(planned(spark, {}), rollouts(spark), verifications(spark)))
    assert {(metric.value, metric.n_tasks, metric.reason) for metric in found.values()} == {
        (None, 0, "no rollout is scored")
    }
    assert (counts.planned_tasks, counts.planned, counts.tasks_without_score) == (0, 0, 0)
    assert counts.summary() == "0 of 0 planned rollouts scored (0.0 %)"
