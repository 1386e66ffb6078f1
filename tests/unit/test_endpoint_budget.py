"""A budget stops before it is passed; unknown is never free; an estimate is a range."""

from __future__ import annotations

import pytest

from gym_spark.config import BudgetSpec, EndpointSpec, Prices
from gym_spark.endpoint.budget import Budget, Decision, Estimate, Spent, cost, estimate
from gym_spark.endpoint.usage import Usage
from gym_spark.errors import ConfigError

PRICES = Prices(input=1, output=4)
CALL = Usage(input_tokens=1000, output_tokens=500, total_tokens=1500)


def budget(
    money: float | None = None, tokens: int | None = None, prices: Prices | None = PRICES, **more: float
) -> Budget:
    spec = EndpointSpec(model="m", prices=prices, budget=BudgetSpec(money=money, tokens=tokens))
    spent = Spent(more.get("spent_money", 0.0), 0, int(more.get("spent_rollouts", 0)))
    return Budget(spec, share=more.get("share", 1.0), spent=spent)


def play(purse: Budget, usages: list[Usage]) -> int:
    """Play rollouts of one call each, one after another, while the budget lasts."""
    for done, usage in enumerate(usages):
        if purse.decide() != "start":
            return done
        purse.start()
        purse.settle([usage])
    return len(usages)


def test_p58_a_budget_stops_before_the_rollout_that_would_pass_it() -> None:
    purse = budget(money=0.010)
    assert play(purse, [CALL] * 10) == 3
    assert purse.spent_money == pytest.approx(0.009)
    assert purse.spent_tokens == 4500
    assert purse.decide() == "stop"


def test_p58_a_model_without_a_price_is_unenforceable_not_free() -> None:
    with pytest.raises(ConfigError, match=r"unenforceable.*'m'.*endpoint\.prices"):
        budget(money=1, prices=None)
    assert play(budget(tokens=4000, prices=None), [CALL] * 10) == 2


def test_a_budget_that_is_spent_to_the_last_cent_is_spent() -> None:
    tenth = Usage(input_tokens=100_000, output_tokens=0, total_tokens=100_000)
    assert play(budget(money=1), [tenth] * 20) == 10


def test_what_is_in_flight_is_expected_to_cost_the_mean() -> None:
    purse = budget(money=0.010)
    decisions: list[Decision] = [purse.decide()]
    purse.start()
    decisions.append(purse.decide())  # nobody knows yet what one costs
    purse.settle([CALL])
    for _ in range(2):
        decisions.append(purse.decide())
        purse.start()
    decisions.append(purse.decide())  # 0.003 spent, 0.006 in flight
    purse.settle([Usage(input_tokens=100, output_tokens=50, total_tokens=150)])
    decisions.append(purse.decide())  # it was cheap: there is room again
    assert decisions == ["start", "wait", "start", "start", "wait", "start"]


def test_a_rollout_of_unknown_cost_counts_as_the_mean() -> None:
    purse = budget(money=0.010)
    assert play(purse, [CALL, Usage(), CALL, CALL, CALL]) == 3
    assert (purse.spent_money, purse.unmeasured) == (pytest.approx(0.006), 1)


def test_a_server_that_never_tells_its_usage_is_stopped_after_the_first() -> None:
    assert play(budget(money=1), [Usage()] * 5) == 1


def test_failures_without_usage_are_free_and_failures_with_usage_are_not() -> None:
    purse = budget(money=0.010)
    for usages in ([], [CALL], [], [CALL]):
        assert purse.decide() == "start"
        purse.start()
        purse.settle(usages)
    assert purse.spent_money == pytest.approx(0.006)
    assert purse.decide() == "start"


def test_a_resumed_run_has_what_is_left_and_a_worker_its_share() -> None:
    assert play(budget(money=0.010, spent_money=0.0065), [CALL] * 5) == 1
    assert play(budget(money=0.010, spent_money=0.011), [CALL] * 5) == 0
    assert play(budget(money=0.020, share=0.5), [CALL] * 9) == 3


def test_a_resumed_run_knows_what_a_rollout_costs() -> None:
    """Three rollouts cost 0.009 of 0.010: a fourth would pass the budget, and is not begun to find that out."""
    assert play(budget(money=0.010, spent_money=0.009, spent_rollouts=3), [CALL]) == 0
    assert play(budget(money=0.012, spent_money=0.009, spent_rollouts=3), [CALL] * 2) == 1
    assert play(budget(money=0.010, spent_money=0.0, spent_rollouts=3), [CALL] * 5) == 3, "cost nobody knows"


@pytest.mark.parametrize(
    ("usage", "prices", "money"),
    [
        (CALL, PRICES, 0.003),
        (Usage(input_tokens=1000), PRICES, None),
        (Usage(output_tokens=1000, total_tokens=2000), PRICES, None),
        (Usage(), PRICES, None),
        (Usage(1000, 500, None, 400, 1500), PRICES, 0.003),
        (Usage(1000, 500, None, 400, 1500), Prices(input=1, output=4, cached_input=0.5), 0.0028),
        (Usage(1000, 500), Prices(input=1, output=4, cached_input=0.5), 0.003),
        (CALL, Prices(input=0, output=0), 0.0),
    ],
)
def test_the_cost_of_a_usage_is_unknown_where_a_part_of_it_is(
    usage: Usage, prices: Prices, money: float | None
) -> None:
    assert cost(usage, prices) == (pytest.approx(money) if money is not None else None)


def test_an_estimate_is_a_range_and_open_where_nothing_bounds_an_answer() -> None:
    bounded = estimate(4_000_000, 1000, 2000, PRICES)
    assert bounded == Estimate((800_000, 1_600_000), (200_000, 2_000_000), (pytest.approx(1.6), pytest.approx(9.6)))
    unbounded = estimate(4_000_000, 1000, None, PRICES)
    assert unbounded.output_tokens == (0, None)
    assert unbounded.money == (pytest.approx(0.8), None)
    assert estimate(4_000_000, 1000, 2000, None).money is None
