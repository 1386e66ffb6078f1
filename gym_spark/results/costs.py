"""What rollouts took: tokens and time of a completed one, and tokens and money for each task that was solved."""

from __future__ import annotations

from typing import Final

from gym_spark.config import Prices
from gym_spark.endpoint.budget import cost
from gym_spark.endpoint.usage import Usage
from gym_spark.results.run_profile import Coverage, Metric
from gym_spark.results.summary import SPREAD, Counts

PERCENTS: Final = (50, 90, 99)


def cost_numbers(counts: Counts, covered: Coverage, prices: Prices | None) -> tuple[Metric, ...]:
    """Compute percentiles over completed rollouts, and what a solved task cost.

    Args:
        counts: What became of the planned rollouts (`results.passes.counts_of`).
        covered: The run's coverage, whose tokens are of all attempts, failed ones too.
        prices: Of the model, if they are known.

    Returns:
        ``input_tokens/p50``, ``p90``, ``p99`` and the same of ``output_tokens`` and ``latency_ms`` (whole milliseconds,
        percentiles linear); ``tokens_per_solved_task`` and, with prices, ``money_per_solved_task``: all that the run
        spent over the tasks of which some rollout passed. Where the server tells no usage there is no number, and why.
    """
    return (*_percentiles(counts), *_per_solved(covered, counts.solved_tasks, prices))


def _percentiles(counts: Counts) -> list[Metric]:
    found = []
    for name in SPREAD:
        known, values = counts.quantiles(name, [percent / 100 for percent in PERCENTS])
        for percent, value in zip(PERCENTS, values, strict=True):
            reason = None if value is not None else f"no completed rollout tells its {name}"
            found.append(_metric(f"{name}/p{percent}", value, counts.completed_tasks, known, reason))
    return found


def _per_solved(covered: Coverage, solved: int, prices: Prices | None) -> list[Metric]:
    usage = Usage(input_tokens=covered.input_tokens, output_tokens=covered.output_tokens)
    known = usage.input_tokens is not None and usage.output_tokens is not None
    tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0) if known else None
    totals: dict[str, float | None] = {"tokens_per_solved_task": tokens}
    if prices is not None:
        totals["money_per_solved_task"] = cost(usage, prices)
    found = []
    for name, total in totals.items():
        value = total / solved if total is not None and solved else None
        reason = None if value is not None else "no task is solved" if total is not None else "the usage is not known"
        found.append(_metric(name, value, solved, covered.planned, reason))
    return found


def _metric(name: str, value: float | None, tasks: int, rollouts: int, reason: str | None) -> Metric:
    return Metric(name, "completed", value, None, None, None, tasks, rollouts, reason)
