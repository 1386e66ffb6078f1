"""The whole client over real sockets through what endpoints do: outages, bad replicas, refusals, quotas, budgets.

Waits are scaled down by parameters: a second here stands for ten of an operator's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from gym_spark.config import BudgetSpec, EndpointSpec, Prices, SamplingSpec
from gym_spark.endpoint.activity import ClientStats
from gym_spark.endpoint.budget import Budget
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.retry import Pace
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import RolloutError
from tests.fake_openai import FakeOpenAI, FakeReply, Json, last_user_text
from tests.reliability.faults import mixed_faults

SAMPLING = SamplingSpec(max_output_tokens=8)
#: A tenth of the real one.
QUICK = Pace(backoff_s=0.05, backoff_limit_s=3, probe_s=0.1, probe_limit_s=1, probe_timeout_s=1)

Outcome = Reply | RolloutError


def play(
    urls: tuple[str, ...], count: int, *, lanes: int = 16, pace: Pace = QUICK, **fields: Any
) -> tuple[list[Outcome], ClientStats, list[str]]:
    """Make `count` calls in `lanes` lanes; return what became of each, the statistics, and the failures reported."""
    reported: list[str] = []

    async def go() -> tuple[list[Outcome], ClientStats]:
        spec = EndpointSpec(**({"urls": urls, "model": "m", "concurrency": lanes} | fields))
        outcomes: list[Outcome] = []
        numbers = iter(range(count))

        async with EndpointClient(spec, pace=pace, on_failure=lambda error: reported.append(error.kind)) as client:

            async def lane() -> None:
                for number in numbers:
                    try:
                        outcomes.append(await client.generate({"input": f"q {number}"}, SAMPLING, session=str(number)))
                    except RolloutError as error:
                        outcomes.append(error)

            await asyncio.gather(*(lane() for _ in range(lanes)))
            return outcomes, client.stats()

    return *asyncio.run(go()), reported


def replies(outcomes: list[Outcome]) -> list[Reply]:
    assert [str(outcome) for outcome in outcomes if isinstance(outcome, RolloutError)] == []
    return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


def test_an_outage_of_the_endpoint_loses_no_call() -> None:
    """Three seconds (thirty, scaled) in which the port refuses, after connections broke with calls in flight."""
    with FakeOpenAI(lambda body, n: FakeReply("7", delay_s=0.05)) as server:
        timers = [threading.Timer(1.0, server.close_port), threading.Timer(4.0, server.open_port)]
        started = time.monotonic()
        for timer in timers:
            timer.start()
        outcomes, stats, reported = play((server.url,), 600)
        elapsed = time.monotonic() - started
        for timer in timers:
            timer.join()
    assert len(replies(outcomes)) == 600
    assert set(reported) <= {"dropped", "unreachable"}
    assert reported
    assert max(reply.requests for reply in replies(outcomes)) <= 4
    assert stats.requests <= 600 + 3 * 16  # tries were not burned while it was away
    assert elapsed < 4 + 600 * 0.05 / 16 + 15  # it is back as soon as the endpoint is, though the machine be busy
    assert (stats.live_replicas, stats.outage_s) == (1, 0)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (FakeReply(raw=b""), "invalid_reply"),
        (FakeReply("x" * 100, drip_s=1, drip_bytes=1), "timeout"),
        (FakeReply(raw=b"x" * (50 * 1024**2)), "reply_too_large"),
        (FakeReply(raw=b'{"choices": ['), "invalid_reply"),
        (FakeReply(raw=b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'), "invalid_reply"),
        (FakeReply(status=500), "server_error"),
        (FakeReply(drop="before"), "dropped"),
    ],
    ids=["empty", "a byte a second", "50 MB", "invalid JSON", "invalid UTF-8", "500", "drops"],
)
def test_a_bad_replica_does_not_eat_the_run_while_another_is_well(bad: FakeReply, kind: str) -> None:
    with FakeOpenAI(lambda body, n: bad) as broken, FakeOpenAI(lambda body, n: FakeReply("7", delay_s=0.02)) as well:
        outcomes, stats, _ = play((broken.url, well.url), 200, lanes=8, timeout_s=1 if bad.drip_s else 30)
        assert {reply.replica for reply in replies(outcomes)} == {well.url}
        assert set(stats.failures) == {kind}
        assert broken.requests <= 40


def test_a_replica_that_dies_in_the_middle_is_left_for_the_other() -> None:
    """Its port closes while it has calls in flight: those are made again elsewhere; from then on it is probed."""
    with (
        FakeOpenAI(lambda body, n: FakeReply("7", delay_s=0.02)) as mortal,
        FakeOpenAI(lambda body, n: FakeReply("7", delay_s=0.02)) as well,
    ):
        death = threading.Timer(0.2, mortal.close_port)
        death.start()
        outcomes, stats, reported = play((mortal.url, well.url), 400, lanes=8)
        death.join()
        assert len(replies(outcomes)) == 400
        assert 0 < mortal.requests < 200 < well.requests
    assert set(reported) <= {"dropped", "unreachable"}
    assert sum(stats.failures.values()) <= 2 * 8
    assert (stats.live_replicas, stats.outage_s) == (1, 0)


def test_two_thousand_calls_through_mixed_faults_all_complete() -> None:
    echo = FakeOpenAI(mixed_faults(lambda body, n: FakeReply(last_user_text(body), delay_s=0.01), hint_s=0.1, seed=7))
    with echo as server:
        outcomes, stats, reported = play((server.url,), 2000, lanes=64)
        texts = Counter(reply.output_text for reply in replies(outcomes))
        assert texts == {f"q {number}": 1 for number in range(2000)}
        assert stats.requests == server.requests
        assert stats.failures == Counter(reported)
        assert set(reported) == {"rate_limited", "server_error", "dropped"}
        assert sum(reply.requests for reply in replies(outcomes)) == server.requests


def test_p10_each_wait_is_at_least_the_newest_hint() -> None:
    times: list[float] = []

    def answer(body: Json, n: int) -> FakeReply | str:
        times.append(time.monotonic())
        return FakeReply(status=429, headers={"Retry-After": ("2", "5")[n]}) if n < 2 else "7"

    with FakeOpenAI(answer) as server:
        outcomes, _, _ = play((server.url,), 1, pace=Pace())
    assert [reply.requests for reply in replies(outcomes)] == [3]
    assert times[1] - times[0] >= 2
    assert times[2] - times[1] >= 5


def test_p10_a_closed_quota_is_waited_out_and_the_limit_falls_and_rises() -> None:
    """One second of 429 with a hint of 3 s (30 s and 90 s, scaled), then 200s."""
    began: list[float] = []

    def answer(body: Json, n: int) -> FakeReply:
        began.append(time.monotonic())
        if time.monotonic() < began[0] + 1.0:
            return FakeReply(status=429, headers={"Retry-After": "3"})
        return FakeReply("7", delay_s=0.02)

    with FakeOpenAI(answer) as server:
        outcomes, stats, reported = play((server.url,), 800, lanes=16)
    assert len(replies(outcomes)) == 800
    assert set(reported) == {"rate_limited"}
    assert (stats.lowest_limit, stats.limit) == (2, 16)


@pytest.mark.parametrize(
    ("error", "kind", "terminal"),
    [
        ({"message": "Request too large for m on tokens per min (TPM)", "type": "tokens"}, None, True),
        ({"message": "You exceeded your current quota", "code": "insufficient_quota"}, "quota_exhausted", False),
    ],
)
def test_p10_what_no_wait_mends_is_told_apart_from_slow_down(error: Json, kind: str | None, terminal: bool) -> None:
    with FakeOpenAI(lambda body, n: FakeReply(status=429, error=error)) as server:
        outcomes, _, _ = play((server.url,), 1)
        (caught,) = outcomes
        assert isinstance(caught, RolloutError)
        assert (caught.kind, caught.terminal) == (kind or "request_too_large_for_quota", terminal)
        assert server.requests == 1


def test_requests_per_minute_are_kept() -> None:
    times: list[float] = []

    def answer(body: Json, n: int) -> str:
        times.append(time.monotonic())
        return "7"

    with FakeOpenAI(answer) as server:
        outcomes, _, _ = play((server.url,), 60, requests_per_minute=1200)
    assert len(replies(outcomes)) == 60
    assert 1.5 <= times[-1] - times[0] < 4  # twenty a second, with one second's worth at once


def test_p58_a_budget_ends_the_dispatch_and_keeps_what_was_bought() -> None:
    """Prices 1 and 4 per million, 1,000 tokens in and 500 out, a budget of 0.010, one in flight: three rows, 0.009."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}

    async def go(url: str) -> tuple[int, Budget]:
        prices, bound = Prices(input=1, output=4), BudgetSpec(money=0.010)
        spec = EndpointSpec(urls=(url,), model="m", concurrency=1, prices=prices, budget=bound)
        budget, rows = Budget(spec), 0
        async with EndpointClient(spec) as client:
            while budget.decide() == "start":
                budget.start()
                reply = await client.generate({"input": "q"}, SAMPLING)
                budget.settle([reply.usage])
                rows += 1
        return rows, budget

    with FakeOpenAI(lambda body, n: FakeReply("7", usage=usage)) as server:
        rows, budget = asyncio.run(go(server.url))
        assert (rows, server.requests) == (3, 3)
    assert budget.spent_money == pytest.approx(0.009)
    assert budget.decide() == "stop"
