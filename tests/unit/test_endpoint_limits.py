"""The limit on requests in flight, and rates per minute. In virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from gym_spark.endpoint.limits import ConcurrencyLimit, RateLimits
from gym_spark.endpoint.usage import Usage
from tests.unit import virtual_time


async def serve(limit: ConcurrencyLimit, lanes: int, calls: int, kept: int, share: float = 0.0, seed: int = 0) -> int:
    """Play `calls` calls of a second each against a server that keeps at most `kept` at once, and by chance refuses.

    Returns:
        How many were refused.
    """
    chance = random.Random(seed)
    left, at_server, refused = calls, 0, 0

    async def lane() -> None:
        nonlocal left, at_server, refused
        while left > 0:
            await limit.acquire()
            if at_server >= kept or chance.random() < share:
                refused += 1
                limit.refused()
                limit.release()
                await asyncio.sleep(1)
                continue
            left -= 1
            at_server += 1
            await asyncio.sleep(1)
            at_server -= 1
            limit.answered()
            limit.release()

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return refused


def test_a_burst_that_is_refused_lowers_the_limit_to_what_the_server_kept() -> None:
    limit = ConcurrencyLimit(100)

    async def go() -> None:
        for _ in range(100):
            await limit.acquire()

    virtual_time.run(go())
    for _ in range(30):
        limit.refused()
    assert limit.limit == 70
    for _ in range(100):
        limit.refused()
    assert (limit.limit, limit.lowest) == (2, 2)


def test_the_limit_follows_a_servers_capacity_down_and_up() -> None:
    async def go() -> tuple[int, int, int]:
        limit = ConcurrencyLimit(200)
        await serve(limit, 200, 2000, kept=50)
        crowded = limit.limit
        refused = await serve(limit, 200, 3000, kept=50)
        await serve(limit, 200, 6000, kept=1000)
        return crowded, refused, limit.limit

    crowded, refused, recovered = virtual_time.run(go())
    assert 40 <= crowded <= 80
    assert refused < 900
    assert recovered == 200


def test_chance_refusals_leave_a_good_part_of_the_limit() -> None:
    """One call in five refused by chance: the limit must not fall to a trickle, as halving at each would make it."""
    limit = ConcurrencyLimit(256)
    virtual_time.run(serve(limit, 256, 5000, kept=1000, share=0.2))
    assert 30 <= limit.limit <= 128


def test_slots_are_given_in_order_and_survive_cancelled_waiters() -> None:
    async def go() -> list[int]:
        limit = ConcurrencyLimit(1)
        order: list[int] = []

        async def lane(name: int) -> None:
            await limit.acquire()
            order.append(name)
            await asyncio.sleep(1)
            limit.release()

        tasks = [asyncio.create_task(lane(name)) for name in range(6)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0.5)  # the moment in which the first slot is handed over
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await limit.acquire()  # every slot has come back
        return order

    order = virtual_time.run(go())
    assert [name for name in order if name != 2] == [0, 4, 5]


def test_requests_per_minute_hold_over_any_minute() -> None:
    async def go() -> list[float]:
        rates = RateLimits(60, None)
        times: list[float] = []

        async def one() -> None:
            await rates.admit(10, None)
            times.append(virtual_time.now())

        await asyncio.gather(*(one() for _ in range(180)))
        await asyncio.sleep(300)  # what was not used then is not there now
        await asyncio.gather(*(one() for _ in range(60)))
        return times

    times = virtual_time.run(go())
    assert 178 <= times[179] - times[0] <= 180
    assert max(sum(start <= time < start + 60 for time in times) for start in times) <= 61
    assert times[239] - times[180] > 57


def test_tokens_are_guessed_and_then_corrected_by_usage() -> None:
    """6,000 tokens a minute; guesses of 500 + 900 that turn out to be 100 + 100: the pace becomes one call in 2 s."""

    async def go() -> float:
        rates = RateLimits(None, 6000)
        for _ in range(50):
            guess = await rates.admit(2000, 900)
            rates.settle(guess, Usage(input_tokens=100, output_tokens=100, total_tokens=200))
        return virtual_time.now()

    assert virtual_time.run(go()) - 1000 == pytest.approx(50 * 200 / 100, rel=0.1)


def test_a_request_above_the_quota_of_a_burst_goes_out_and_is_paid_for_afterwards() -> None:
    async def go() -> tuple[float, float]:
        rates = RateLimits(None, 600)
        await rates.admit(4000, None)
        first = virtual_time.now()
        await rates.admit(4, None)
        return first - 1000, virtual_time.now() - 1000

    first, second = virtual_time.run(go())
    assert first == 0
    assert second == pytest.approx(99, abs=2)
