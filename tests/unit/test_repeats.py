"""Statistics within a repeat and across repeats, and how they are written."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.interchange import gym_layout as layout
from gym_spark.results.repeats import (
    REPEAT_STATISTICS,
    across_repeats,
    is_primary,
    repeat_statistics,
    samples_per_repeat,
)

#: 0.975 quantiles of Student's t, from printed tables.
T_1, T_2, T_4 = 12.706204736432095, 4.302652729911275, 2.7764451051977987


def one_repeat(values):
    result = repeat_statistics(values, np.ones(len(values), bool), np.zeros(len(values), np.int64), 1)
    return {name: float(value[0]) for name, (value, defined) in result.items() if defined[0]}


def test_hand_computed():
    sem = math.sqrt(2.5) / math.sqrt(5)
    assert one_repeat([1.0, 2.0, 3.0, 4.0, 5.0]) == {
        "mean": 3.0,
        "median": 3.0,
        "std": pytest.approx(math.sqrt(2.5)),
        "sem": pytest.approx(sem),
        "min": 1.0,
        "max": 5.0,
        "p25": 2.0,
        "p75": 4.0,
        "ci_low_95": pytest.approx(3.0 - T_4 * sem),
        "ci_high_95": pytest.approx(3.0 + T_4 * sem),
    }


def test_one_value_has_no_spread_and_no_interval():
    assert one_repeat([0.3]) == {
        "mean": 0.3,
        "median": 0.3,
        "std": 0.0,
        "sem": 0.0,
        "min": 0.3,
        "max": 0.3,
        "p25": 0.3,
        "p75": 0.3,
    }


def test_the_interval_of_equal_values_is_the_value():
    result = one_repeat([0.1] * 6)
    assert (result["sem"], result["ci_low_95"], result["ci_high_95"]) == (0.0, 0.1, 0.1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(-1e3, 1e3)), max_size=40))
def test_each_repeat_is_described_by_itself(rows):
    repeats = np.array([repeat for repeat, _ in rows], np.int64)
    present = np.array([value is not None for _, value in rows], bool)
    values = np.array([0.0 if value is None else value for _, value in rows])
    result = repeat_statistics(values, present, repeats, 4)
    assert tuple(result) == REPEAT_STATISTICS
    for repeat in range(4):
        own = [value for code, value in rows if code == repeat and value is not None]
        defined = {name for name, statistic in result.items() if statistic.defined[repeat]}
        if not own:
            assert defined == set()
            continue
        assert defined == set(REPEAT_STATISTICS) - (set() if len(own) > 1 else {"ci_low_95", "ci_high_95"})
        std = statistics.stdev(own) if len(own) > 1 else 0.0
        expected = {"std": std, "sem": std / math.sqrt(len(own)), "p25": np.quantile(own, 0.25)}
        for name, value in expected.items():
            assert result[name].values[repeat] == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_a_repeat_with_a_value_that_is_not_finite_has_no_statistics():
    result = repeat_statistics(np.array([1.0, math.inf, 2.0]), np.ones(3, bool), np.array([0, 0, 1]), 2)
    assert [statistic.defined.tolist()[0] for statistic in result.values()] == [False] * len(REPEAT_STATISTICS)
    assert result["mean"].values[1] == 2.0


def test_samples_are_distinct_tasks_and_add_up_over_whole_tasks():
    tasks, repeats = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 0, 0, 2, 2])
    samples, total = samples_per_repeat(tasks, repeats, 3)
    assert (samples.tolist(), total) == ([3, 1, 1], 3)
    parts = [samples_per_repeat(tasks[chosen], repeats[chosen], 3) for chosen in (tasks < 1, tasks >= 1)]
    assert (sum(part[0] for part in parts).tolist(), sum(part[1] for part in parts)) == (samples.tolist(), total)


@pytest.mark.parametrize(
    "name", ["mean/reward", "accuracy", "pass@1[avg-of-4]/accuracy", "mean/sample_count", "mean/maximum", "größe"]
)
def test_results_are_primary(name):
    assert is_primary(name)


@pytest.mark.parametrize(
    "name",
    [
        "_ng_task_index",
        "sample_count",
        "token_usage_version",
        "max/reward",
        "ci_low_95/reward",
        "histogram/reward",
        "mean/score/max",
        "mean/wer_ci_lower",
        "mean/x_ci95_upper",
        "pass@1[avg-of-4]/accuracy/std_dev_across_runs",
        "mean_across_repeats/mean/reward",
    ],
)
def test_spreads_bounds_and_bookkeeping_are_not_primary(name):
    assert not is_primary(name)


def test_across_repeats_hand_computed():
    entries = [{"_ng_rollout_index": i, "mean/r": value, "max/r": 9.0} for i, value in enumerate([0.2, 0.4, 0.9])]
    std = math.sqrt(0.13)
    se = std / math.sqrt(3)
    assert across_repeats(entries) == {
        "mean_across_repeats/mean/r": pytest.approx(0.5),
        "median_across_repeats/mean/r": 0.4,
        "std_across_repeats/mean/r": pytest.approx(std),
        "min_across_repeats/mean/r": 0.2,
        "max_across_repeats/mean/r": 0.9,
        "se_across_repeats/mean/r": pytest.approx(se),
        "ci_low_95_across_repeats/mean/r": pytest.approx(0.5 - T_2 * se),
        "ci_high_95_across_repeats/mean/r": pytest.approx(0.5 + T_2 * se),
    }


def test_across_repeats_leaves_out_what_is_no_finite_number():
    entries = [{"a": 1.0, "b": True, "c": "x", "d": math.nan}, {"a": 3.0, "b": None, "c": 2.0}]
    found = across_repeats(entries)
    assert found["ci_high_95_across_repeats/a"] == pytest.approx(2.0 + T_1 * 1.0)
    assert {name.split("/")[1] for name in found} == {"a", "c"}
    assert (found["std_across_repeats/c"], "ci_low_95_across_repeats/c" in found) == (0.0, False)
    assert across_repeats([]) == {}


def test_a_repeat_entry_has_columns_in_code_point_order():
    entry = layout.repeat_entry(4, 3, 5, {"b": {"mean": 1.0}, "B": {"mean": 2.0, "ci_low_95": None}}, label=None)
    assert list(entry.items()) == [
        ("_ng_rollout_index", 4),
        ("sample_count", 3),
        ("missing_count", 2),
        ("mean/B", 2.0),
        ("mean/b", 1.0),
    ]


def test_custom_metrics_of_repeats_must_be_numbers_in_every_repeat():
    entries = [{"mean/x": 1.0, "odd": 5.0}, {"mean/x": 2.0}]
    custom = [{"ok": 1, "odd": None, "mean/x": 7.0, "bad": 1}, {"ok": 2, "odd": 1.0, "mean/x": 8.0, "bad": 2}]
    merged = layout.merge_repeat_metrics(entries, custom, {"ok": 3, "bad": float("nan")})
    assert merged == [{"mean/x": 7.0, "ok": 1}, {"mean/x": 8.0, "ok": 2}]
