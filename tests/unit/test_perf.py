"""The summary of observed tokens, turns and latencies, and the entries of agents and aggregates."""

import numpy as np
import pytest

from gym_spark.interchange import gym_layout as layout
from gym_spark.results.pass_majority import Score
from gym_spark.results.perf import perf_summary


def field(*values):
    return Score(
        np.array([0.0 if value is None else float(value) for value in values]),
        np.array([value is not None for value in values], bool),
    )


def test_nothing_observed_has_no_summary():
    assert perf_summary(5, 0, {}) is None


def test_hand_computed():
    fields = {
        "token_observability_coverage": field(1.0, 0.0, 0.5),
        "prompt_tokens": field(10, 20, 60),
        "completion_tokens": field(8, 9, None),
        "num_turns": field(2, 0, 4),
        "total_latency_ms": field(100.0, 200.0, None),
        "num_tool_calls": field(1, 1, 1),
    }
    assert perf_summary(6, 3, fields) == {
        "overall_observability_coverage": 0.5,
        "token_observability_coverage": pytest.approx(2 / 6),
        "mean_prompt_tokens": 30.0,
        "median_prompt_tokens": 20.0,
        "total_prompt_tokens": 90.0,
        "mean_completion_tokens": 8.5,
        "median_completion_tokens": 8.5,
        "total_completion_tokens": 17.0,
        "mean_num_turns": 2.0,
        "median_num_turns": 2.0,
        "std_num_turns": pytest.approx((8 / 3) ** 0.5),
        "min_num_turns": 0.0,
        "p90_num_turns": pytest.approx(3.6),
        "max_num_turns": 4.0,
        "mean_tokens_per_turn": 4.0,
        "median_tokens_per_turn": 4.0,
        "total_latency_p50_ms": 150.0,
        "total_latency_p90_ms": pytest.approx(190.0),
        "total_latency_p99_ms": pytest.approx(199.0),
        "total_latency_mean_ms": 150.0,
    }


def test_fields_that_no_rollout_reports_have_no_keys():
    summary = perf_summary(2, 1, {"num_turns": field(0), "completion_tokens": field(5), "prompt_tokens": field(None)})
    assert summary["token_observability_coverage"] == 0.0
    assert "mean_completion_tokens" in summary
    assert not [name for name in summary if "per_turn" in name or "prompt" in name or "latency" in name]


def test_agents_are_in_order_and_wholly_masked_ones_last():
    coverage = {"c": {}, "a": {"coverage/masked_rollouts": 2}, "b": {"coverage/masked_rollouts": 1}}
    entries = layout.agent_entries({"c": {"mean/x": 1.0}, "b": {"mean/x": 2.0}}, {"b": {"m": 3.0}}, coverage)
    assert entries == [
        {"mean/x": 2.0, "agent_ref": {"name": "b"}, "m": 3.0, "coverage/masked_rollouts": 1},
        {"mean/x": 1.0, "agent_ref": {"name": "c"}},
        {"agent_ref": {"name": "a"}, "coverage/masked_rollouts": 2},
    ]


def test_the_headline_is_every_mean_and_the_coverage():
    metrics = {"mean/x": 1, "max/x": 2, "coverage/masked_rollouts": 3, "mean_across_repeats/mean/x": 4}
    assert layout.key_metrics(metrics) == {"mean/x": 1, "coverage/masked_rollouts": 3}
