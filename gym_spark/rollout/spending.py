"""What a run has cost, and what the rest of it may."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec
from gym_spark.endpoint.budget import Estimate, Spent, cost, estimate
from gym_spark.endpoint.usage import Usage
from gym_spark.rollout.share import Share


def shared_out(endpoint: EndpointSpec, share: Share) -> EndpointSpec:
    """Return the endpoint with a job's part of what is granted to the whole run: concurrency, rates and budget."""
    n = share.of
    budget = endpoint.budget and endpoint.budget.model_copy(
        update={"money": endpoint.budget.money and endpoint.budget.money / n}
        | {"tokens": endpoint.budget.tokens and endpoint.budget.tokens // n}
    )
    return endpoint.model_copy(
        update={
            "concurrency": max(1, endpoint.concurrency // n),
            "requests_per_minute": endpoint.requests_per_minute and endpoint.requests_per_minute / n,
            "tokens_per_minute": endpoint.tokens_per_minute and endpoint.tokens_per_minute / n,
            "budget": budget,
        }
    )


def spent_before(rollouts: DataFrame, endpoint: EndpointSpec) -> Spent:
    """Return what stored attempts are known to have cost; collects one row.

    Args:
        rollouts: Stored rollouts of the run, or of a share of it, every attempt.
        endpoint: The endpoint, for its prices; without them the money is 0.
    """
    names = Usage.__dataclass_fields__
    known = rollouts.where(F.col("usage.total_tokens").isNotNull())
    row = known.agg(F.count("*").alias("rollouts"), *(F.sum(f"usage.{name}").alias(name) for name in names)).first()
    if row is None:
        return Spent()
    usage = Usage(**{name: row[name] for name in names})
    money = cost(usage, endpoint.prices) if endpoint.prices is not None else None
    return Spent(money or 0.0, usage.total_tokens or 0, row["rollouts"])


def estimate_of(
    pending: DataFrame, endpoint: EndpointSpec, *, rollouts: int, max_output_tokens: int | None
) -> Estimate:
    """Guess what the pending rollouts will cost, from the sizes of their prompts; collects one row.

    Args:
        pending: One row per rollout to do, with `responses_create_params`.
        endpoint: The endpoint, for its prices.
        rollouts: Rows of `pending`.
        max_output_tokens: Bound on one answer.
    """
    row = pending.agg(F.sum(F.length("responses_create_params")).alias("characters")).first()
    characters = (row["characters"] if row is not None else None) or 0
    return estimate(characters, rollouts, max_output_tokens, endpoint.prices)


def in_words(guess: Estimate) -> str:
    """Say an estimate in one line."""
    least, most = guess.output_tokens
    text = (
        f"about {guess.input_tokens[0]} to {guess.input_tokens[1]} tokens in, {least} to {most or 'any number of'} out"
    )
    if guess.money is not None:
        low, high = guess.money
        text += f", costing {low:.4g} to {'any amount' if high is None else format(high, '.4g')}"
    return text
