"""What a run may spend, and what it will: usage and prices enter, a decision on the next rollout or an estimate leaves.

Pure: no clock, no Spark, no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gym_spark.config import EndpointSpec, Prices
from gym_spark.endpoint.usage import Usage
from gym_spark.errors import ConfigError

PER: Final = 1_000_000
#: Sums of prices carry rounding errors: the tenth rollout of 0.1 must fit into a budget of 1.
TOLERANCE: Final = 1e-9
#: Characters per token, least and most: code and non-Latin scripts, and plain English (about 4) with some air.
CHARACTERS_PER_TOKEN: Final = (2.5, 5.0)
#: Of the bound on output tokens, what an answer uses at least: a guess, for nobody knows before the first answer.
LEAST_OUTPUT_SHARE: Final = 0.1

#: ``start`` a rollout; ``wait`` until one in flight has ended and its cost is known; ``stop`` for good.
Decision = Literal["start", "wait", "stop"]


def cost(usage: Usage, prices: Prices) -> float | None:
    """Return the money that `usage` cost; None where input or output is unknown, never 0 for unknown.

    Unknown cached tokens are charged like other input, which is an upper bound.
    """
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = min(usage.cached_tokens or 0, usage.input_tokens) if prices.cached_input is not None else 0
    fresh = (usage.input_tokens - cached) * prices.input
    return (fresh + cached * (prices.cached_input or 0.0) + usage.output_tokens * prices.output) / PER


@dataclass(frozen=True, slots=True)
class Spent:
    """What rollouts are known to have cost: money (0 without prices), tokens, and how many rollouts that was."""

    money: float = 0.0
    tokens: int = 0
    rollouts: int = 0


@dataclass(slots=True)
class _Account:
    """One bound, and what has been spent of it.

    Attributes:
        bound: None: only counted.
        spent: Known to be spent.
        measured: Rollouts that the mean is over.
        unmeasured: Rollouts whose cost nobody told.
    """

    bound: float | None
    spent: float = 0.0
    measured: int = 0
    unmeasured: int = 0

    def add(self, amounts: list[float | None]) -> None:
        self.spent += sum(amount for amount in amounts if amount is not None)
        if None in amounts:
            self.unmeasured += 1
        else:
            self.measured += 1

    def decide(self, in_flight: int) -> Decision:
        if self.bound is None:
            return "start"
        room = self.bound * (1 + TOLERANCE) - self.spent
        if room <= 0:
            return "stop"
        if not self.measured:
            # The first rollout tells what one costs. Where it does not tell, nothing is known, and nothing is bounded.
            if in_flight:
                return "wait"
            return "stop" if self.unmeasured else "start"
        mean = self.spent / self.measured
        if (self.unmeasured + in_flight + 1) * mean <= room:
            return "start"
        return "wait" if in_flight else "stop"


class Budget:
    """Says before each rollout whether it may start.

    It may where what is spent, what the rollouts in flight are expected to cost, and what the next one is, stay within
    the bounds; expected is the mean so far. The first rollout may always start, alone.

    Args:
        spec: The endpoint, with its budget and prices.
        share: This worker's share of the budget.
        spent: What the run has spent before, already a share of the worker's.

    Raises:
        ConfigError: The budget is in money and the model has no price.
    """

    def __init__(self, spec: EndpointSpec, *, share: float = 1.0, spent: Spent | None = None) -> None:
        before = spent or Spent()
        bounds = spec.budget
        money = bounds.money if bounds is not None else None
        tokens = bounds.tokens if bounds is not None else None
        if money is not None and spec.prices is None:
            raise ConfigError(
                f"A budget of {money:g} is unenforceable: the model '{spec.model}' has no price; give endpoint.prices, "
                "or a budget in tokens (endpoint.budget.tokens)."
            )
        self._prices = spec.prices
        # What nobody told the cost of says nothing of the mean.
        self._money = _Account(money and money * share, before.money, before.rollouts if before.money else 0)
        self._tokens = _Account(tokens and tokens * share, before.tokens, before.rollouts if before.tokens else 0)
        self._in_flight = 0

    @property
    def spent_money(self) -> float:
        """Money known to be spent; 0 without prices."""
        return self._money.spent

    @property
    def spent_tokens(self) -> int:
        """Tokens known to be spent."""
        return int(self._tokens.spent)

    @property
    def unmeasured(self) -> int:
        """Rollouts whose cost is not known in full: the server left out their usage."""
        return max(self._money.unmeasured, self._tokens.unmeasured)

    def decide(self) -> Decision:
        """Say whether another rollout may start."""
        decisions = {self._money.decide(self._in_flight), self._tokens.decide(self._in_flight)}
        return "stop" if "stop" in decisions else "wait" if "wait" in decisions else "start"

    def start(self) -> None:
        """Take note that a rollout has started."""
        self._in_flight += 1

    def settle(self, usages: list[Usage]) -> None:
        """Take note that a rollout has ended.

        Args:
            usages: Of its model calls, one entry each. A failed try that told no usage has no entry: servers mostly do
                not charge it; a rollout without any entry counts as free, and not towards the mean.
        """
        self._in_flight -= 1
        if not usages:
            return
        self._tokens.add([usage.total_tokens for usage in usages])
        if self._prices is not None:
            self._money.add([cost(usage, self._prices) for usage in usages])


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run may cost, guessed from sizes before it starts: a range, not a promise.

    Attributes:
        input_tokens: Least and most, from the prompts' characters.
        output_tokens: Least and most; the most is None where nothing bounds an answer.
        money: Least and most; None without prices, the most None where nothing bounds an answer.
    """

    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int | None]
    money: tuple[float, float | None] | None


def estimate(characters: int, rollouts: int, max_output_tokens: int | None, prices: Prices | None) -> Estimate:
    """Guess a run's tokens and money, one model call per rollout.

    Args:
        characters: Of the prompts of all planned rollouts: a prompt with four repeats counts four times.
        rollouts: Planned rollouts, repeats included.
        max_output_tokens: Bound on one answer.
        prices: Of the model.
    """
    fewest, most = CHARACTERS_PER_TOKEN
    inputs = (round(characters / most), round(characters / fewest))
    longest = rollouts * max_output_tokens if max_output_tokens is not None else None
    outputs = (round((longest or 0) * LEAST_OUTPUT_SHARE), longest)
    if prices is None:
        return Estimate(inputs, outputs, None)
    low = (inputs[0] * prices.input + outputs[0] * prices.output) / PER
    high = (inputs[1] * prices.input + longest * prices.output) / PER if longest is not None else None
    return Estimate(inputs, outputs, (low, high))
