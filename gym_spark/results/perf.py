"""Tokens, turns and latencies of the rollouts that were observed, as NeMo Gym sums them up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gym_spark.results.describe import Floats
from gym_spark.results.pass_majority import Score

_TOKENS: Final = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "reasoning_tokens")


def perf_summary(rollouts: int, observed: int, fields: Mapping[str, Score]) -> dict[str, float] | None:
    """Sum up the observations.

    Args:
        rollouts: All rollouts, masked ones and ones without observations included.
        observed: Rollouts with observations (an `ng_perf` object).
        fields: Numbers and booleans of `ng_perf` by field, one entry per observed rollout: values and which have one.

    Returns:
        None if nothing was observed. Else the coverage as fractions of all rollouts; of each kind of tokens mean,
        median and total; of the turns mean, median, population deviation, extremes and 90th percentile; tokens per turn
        where both are known and there were turns; latencies in milliseconds. Percentiles are linear. A field that
        no rollout reports has no keys.
    """
    if not observed:
        return None
    known = {name: field.values[field.present] for name, field in fields.items() if field.present.any()}
    traced = known.get("token_observability_coverage", np.zeros(0))
    summary = {
        "overall_observability_coverage": observed / rollouts,
        "token_observability_coverage": np.count_nonzero(traced > 0) / rollouts,
    }
    for name in _TOKENS:
        if name in known:
            summary |= _center(known[name], name) | {f"total_{name}": float(known[name].sum())}
    if "num_turns" in known:
        summary |= _turns(known["num_turns"])
        if "completion_tokens" in known:
            summary |= _tokens_per_turn(fields["completion_tokens"], fields["num_turns"])
    if "total_latency_ms" in known:
        latency = known["total_latency_ms"]
        for percent in (50, 90, 99):
            summary[f"total_latency_p{percent}_ms"] = float(np.percentile(latency, percent))
        summary["total_latency_mean_ms"] = float(latency.mean())
    return summary


def _center(values: Floats, name: str) -> dict[str, float]:
    return {f"mean_{name}": float(values.mean()), f"median_{name}": float(np.median(values))}


def _turns(turns: Floats) -> dict[str, float]:
    return _center(turns, "num_turns") | {
        "std_num_turns": float(turns.std()),
        "min_num_turns": float(turns.min()),
        "p90_num_turns": float(np.percentile(turns, 90)),
        "max_num_turns": float(turns.max()),
    }


def _tokens_per_turn(tokens: Score, turns: Score) -> dict[str, float]:
    both = tokens.present & turns.present & (turns.values > 0)
    return _center(tokens.values[both] / turns.values[both], "tokens_per_turn") if both.any() else {}
