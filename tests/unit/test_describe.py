"""Statistics of all groups at once are those of each group by itself, and how they are written."""

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.interchange import gym_layout as layout
from gym_spark.results.describe import STATISTICS, describe, quantile, sort_groups

VALUES = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.1]), st.floats(-1e6, 1e6))
#: (group, value or None) of each row
ROWS = st.lists(st.tuples(st.integers(0, 5), st.none() | VALUES), max_size=60)


def described(rows, n_groups=6, seed=None):
    if seed is not None:
        rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    codes = np.array([group for group, _ in rows], np.int64)
    values = np.array([0.0 if value is None else value for _, value in rows])
    return describe(codes, n_groups, values, np.array([value is not None for _, value in rows], bool))


def found(result, name):
    """The value of each group, None where it is undefined."""
    values, defined = result.statistics[name]
    return [value if known else None for value, known in zip(values.tolist(), defined.tolist(), strict=True)]


def one_group(values):
    result = described([(0, value) for value in values], 1)
    return {name: found(result, name)[0] for name in STATISTICS}


def plain(rows, group):
    """The same of one group, with Python's own statistics."""
    own = [value for code, value in rows if code == group]
    values = [value for value in own if value is not None]
    if not values:
        return dict.fromkeys(STATISTICS)
    several = statistics.stdev(values) if len(values) > 1 else None
    return {
        "mean": statistics.fmean(values),
        "max": max(values),
        "min": min(values),
        "median": statistics.median(values),
        "std": 0.0 if len(own) == 1 else several,
    }


@settings(deadline=None)
@given(rows=ROWS, seed=st.integers(0, 9))
def test_groups_are_described_as_if_each_stood_alone(rows, seed):
    result = described(rows, seed=seed)
    for group in range(6):
        assert result.count[group] == sum(code == group and value is not None for code, value in rows)
        for name, expected in plain(rows, group).items():
            actual = found(result, name)[group]
            assert (actual is None) == (expected is None), name
            if expected is not None:
                assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9), name


def test_hand_computed():
    assert one_group([1, 2, 3, 10]) == {
        "mean": 4.0,
        "max": 10.0,
        "min": 1.0,
        "median": 2.5,
        "std": pytest.approx(math.sqrt(50 / 3)),
    }


def test_a_single_value_has_a_deviation_only_in_a_group_of_one_row():
    result = described([(0, 7.0), (1, 7.0), (1, None), (2, None)], 3)
    assert found(result, "std") == [0.0, None, None]
    assert found(result, "mean") == [7.0, 7.0, None]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 2.0**47, 1.7e15, 1e300, -5e-324])
def test_equal_values_have_exactly_their_value_as_mean_and_no_spread(value):
    assert one_group([value] * 7) == {"mean": value, "max": value, "min": value, "median": value, "std": 0.0}


def test_values_one_unit_in_the_last_place_apart_are_described():
    """Where NeMo Gym stops, since its histogram of such a column has no bins."""
    below = math.nextafter(1.0, 0.0)
    result = one_group([below, 1.0, 1.0])
    assert (result["min"], result["median"], result["max"]) == (below, 1.0, 1.0)
    assert result["std"] == pytest.approx((1.0 - below) / math.sqrt(3), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_leaves_its_group_undefined_and_tells_why(bad):
    result = described([(0, 1.0), (0, bad), (1, 2.0), (1, 4.0)], 2)
    assert result.non_finite.tolist() == [True, False]
    assert result.count.tolist() == [2, 2]
    assert {name: found(result, name) for name in STATISTICS} == {
        "mean": [None, 3.0],
        "max": [None, 4.0],
        "min": [None, 2.0],
        "median": [None, 3.0],
        "std": [None, pytest.approx(math.sqrt(2))],
    }


def test_what_is_not_present_is_not_looked_at():
    result = describe(np.zeros(2, np.int64), 1, np.array([math.nan, 3.0]), np.array([False, True]))
    assert (found(result, "mean"), result.non_finite.tolist()) == ([3.0], [False])


def test_what_overflows_is_undefined_and_the_rest_stands():
    result = one_group([1.7e308, 1.7e308, 1.6e308])
    assert (result["mean"], result["std"]) == (None, None)
    assert (result["min"], result["median"], result["max"]) == (1.6e308, 1.7e308, 1.7e308)


def test_booleans_count_as_numbers():
    result = describe(np.zeros(4, np.int64), 1, np.array([True, False, True, True]), np.ones(4, bool))
    assert found(result, "mean") == [0.75]


@pytest.mark.parametrize("n_groups", [0, 3])
def test_no_rows(n_groups):
    result = described([], n_groups)
    assert result.count.tolist() == [0] * n_groups
    assert all(found(result, name) == [None] * n_groups for name in STATISTICS)


@settings(deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=30), q=st.floats(0, 1))
def test_quantiles_are_linear_between_order_statistics(values, q):
    groups = sort_groups(np.zeros(len(values), np.int64), 1, np.array(values), np.ones(len(values), bool))
    assert quantile(groups, q)[0] == pytest.approx(np.quantile(values, q, method="linear"), rel=1e-9, abs=1e-9)


def test_more_groups_than_sixteen_bits_count_are_kept_apart():
    codes = np.arange(70_000)[::-1].copy()
    result = describe(codes, 70_000, codes, np.ones(70_000, bool))
    assert np.array_equal(result.statistics["mean"].values, np.arange(70_000))


def test_undefined_numbers_have_no_key_and_extremes_of_integers_are_integers():
    statistics = {"mean": {"x": 1.5, "y": None}, "max": {"x": 2.0}, "std": {"x": float("nan")}}
    assert json.dumps(layout.statistic_keys(statistics)) == '{"mean/x": 1.5, "max/x": 2.0}'
    assert json.dumps(layout.statistic_keys(statistics, integers=True)) == '{"mean/x": 1.5, "max/x": 2}'
