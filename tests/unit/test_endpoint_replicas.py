"""Replicas: who gets a call, who is down and when it is back, and that an outage loses nothing. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gym_spark.config import EndpointSpec, SamplingSpec
from gym_spark.endpoint.activity import ClientStats
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.exchange import MAX_REPLY_BYTES
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import RolloutError
from tests.unit import virtual_time

ANSWER = {"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}]}
START = 1000.0  # of the virtual clock


class Cluster:
    """Replicas by host; each is a function of the request. Counts model calls and probes."""

    def __init__(self, **hosts: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> None:
        self.hosts = hosts
        self.calls: Counter[str] = Counter()
        self.probes: list[tuple[str, float]] = []
        self.open: Counter[str] = Counter()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.method == "GET":
            assert request.url.path == "/v1/models"
            self.probes.append((host, virtual_time.now() - START))
        else:
            self.calls[host] += 1
        self.open[host] += 1
        try:
            return await self.hosts[host](request)
        finally:
            self.open[host] -= 1

    def client(self, **fields: Any) -> EndpointClient:
        urls = tuple(f"http://{host}/v1" for host in self.hosts)
        concurrency = fields.pop("concurrency", 8)
        spec = EndpointSpec(**({"urls": urls, "model": "m"} | fields))
        return EndpointClient(spec, concurrency=concurrency, transport=httpx.MockTransport(self))


async def good(request: httpx.Request) -> httpx.Response:
    await asyncio.sleep(1 if request.method == "POST" else 0)
    return httpx.Response(200, json=ANSWER)


def dead_between(start_s: float, end_s: float) -> Callable[[httpx.Request], Coroutine[Any, Any, httpx.Response]]:
    async def replica(request: httpx.Request) -> httpx.Response:
        if start_s <= virtual_time.now() - START < end_s:
            raise httpx.ConnectError("refused", request=request)
        return await good(request)

    return replica


def broken(reply: httpx.Response) -> Callable[[httpx.Request], Coroutine[Any, Any, httpx.Response]]:
    """Answers every call with `reply` and every probe well: the worst kind."""

    async def replica(request: httpx.Request) -> httpx.Response:
        return await good(request) if request.method == "GET" else reply

    return replica


async def play(client: EndpointClient, count: int, session: str | None = None) -> list[Reply | BaseException]:
    """Make `count` calls, eight at a time, as a worker with eight lanes does."""
    lanes = asyncio.Semaphore(8)

    async def one(i: int) -> Reply:
        async with lanes:
            return await client.generate({"input": str(i)}, SamplingSpec(), session=session or f"task-{i}")

    return await asyncio.gather(*(one(i) for i in range(count)), return_exceptions=True)


def run(cluster: Cluster, count: int, **fields: Any) -> tuple[list[Reply | BaseException], ClientStats, float]:
    async def go() -> tuple[list[Reply | BaseException], ClientStats, float]:
        async with cluster.client(**fields) as client:
            outcomes = await play(client, count)
            return outcomes, client.stats(), virtual_time.now() - START

    return virtual_time.run(go())


def replies(outcomes: list[Reply | BaseException]) -> list[Reply]:
    assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []
    return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


def test_the_least_loaded_replica_is_chosen() -> None:
    async def slow(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(9)
        return httpx.Response(200, json=ANSWER)

    cluster = Cluster(a=slow, b=good)
    outcomes, _, _ = run(cluster, 100)
    replies(outcomes)
    assert cluster.calls["b"] > 4 * cluster.calls["a"] > 0


def test_calls_of_one_session_stay_on_one_replica_while_it_lives() -> None:
    down: set[str] = set()

    async def replica(request: httpx.Request) -> httpx.Response:
        if request.url.host in down:
            raise httpx.ConnectError("refused", request=request)
        return await good(request)

    cluster = Cluster(a=replica, b=replica)

    async def go() -> tuple[list[Reply | BaseException], list[Reply | BaseException]]:
        async with cluster.client() as client:
            before = await play(client, 9, session="episode")
            down.add(httpx.URL(replies(before)[0].replica).host)
            return before, await play(client, 9, session="episode")

    before, after = map(replies, virtual_time.run(go()))
    homes = {reply.replica for reply in before}, {reply.replica for reply in after}
    assert [len(home) for home in homes] == [1, 1]
    assert homes[0] != homes[1]


def test_p08_a_dead_endpoint_ends_every_call_within_a_minute() -> None:
    cluster = Cluster(a=dead_between(0, 1e9))
    outcomes, stats, elapsed = run(cluster, 40)
    kinds = {(outcome.kind, outcome.terminal) for outcome in outcomes if isinstance(outcome, RolloutError)}
    assert kinds == {("unreachable", False)}
    assert len(outcomes) == 40
    assert max(outcome.requests for outcome in outcomes if isinstance(outcome, RolloutError)) <= 3
    assert stats.outage_s == pytest.approx(elapsed)
    assert stats.given_up
    assert 44 <= elapsed <= 46
    assert "down for 45 s" in str(outcomes[0])
    times = [when for _, when in cluster.probes]
    waits = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert all(0.8 * due <= wait <= 1.2 * due for wait, due in zip(waits, (1, 2, 4, 8, 10, 10, 10), strict=False))
    assert len(waits) >= 6


def test_an_outage_of_thirty_seconds_loses_nothing_and_ends_with_the_first_good_probe() -> None:
    cluster = Cluster(a=dead_between(5.5, 35.5))
    outcomes, stats, elapsed = run(cluster, 200)
    assert max(reply.requests for reply in replies(outcomes)) <= 3
    assert elapsed < 200 / 8 + 30 + 12 + 2
    assert stats.requests <= 200 + 8 * 2
    back = [when for _, when in cluster.probes if when >= 35.5]
    assert len(back) == 1


def test_a_dead_replica_costs_its_neighbour_nothing() -> None:
    cluster = Cluster(a=dead_between(0, 1e9), b=good)
    outcomes, stats, elapsed = run(cluster, 100)
    assert {reply.replica for reply in replies(outcomes)} == {"http://b/v1"}
    assert elapsed < 100 / 8 + 2
    assert (stats.live_replicas, stats.outage_s, stats.given_up) == (1, 0, False)
    assert cluster.calls["a"] <= 4  # those of the first moment


def test_a_replica_that_is_back_gets_calls_again() -> None:
    cluster = Cluster(a=dead_between(0, 20), b=good)
    outcomes, stats, _ = run(cluster, 1000)
    replies(outcomes)
    assert stats.live_replicas == 2
    assert cluster.calls["a"] > 300


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (httpx.Response(200, content=b""), "invalid_reply"),
        (httpx.Response(200, content=b'{"choices": ['), "invalid_reply"),
        (httpx.Response(200, content=b'{"choices": "\xff\xfe"}'), "invalid_reply"),
        (httpx.Response(500), "server_error"),
        (httpx.Response(200, content=b"x" * (MAX_REPLY_BYTES + 1)), "reply_too_large"),
    ],
    ids=["empty", "cut", "not utf-8", "500", "50 MB"],
)
def test_a_broken_replica_does_not_eat_the_run_while_another_is_well(reply: httpx.Response, kind: str) -> None:
    cluster = Cluster(a=broken(reply), b=good)
    outcomes, stats, elapsed = run(cluster, 200)
    assert {answer.replica for answer in replies(outcomes)} == {"http://b/v1"}
    assert max(answer.requests for answer in replies(outcomes)) == 2
    assert elapsed < 200 / 8 * 1.3
    # It answers probes, so it is tried again and again, ever more rarely.
    assert stats.failures == {kind: cluster.calls["a"]}
    assert cluster.calls["a"] <= 15


def test_a_replica_that_hangs_gets_one_call_at_a_time_once_it_was_down() -> None:
    """It answers probes, so it is tried again; what it holds then is one call, not its share of all."""

    async def hanging(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            held.append(cluster.open["a"])
            await asyncio.sleep(1e6)
        return httpx.Response(200)

    held: list[int] = []

    cluster = Cluster(a=hanging, b=good)
    outcomes, stats, _ = run(cluster, 400, timeout_s=10)
    assert {reply.replica for reply in replies(outcomes)} == {"http://b/v1"}
    assert stats.failures == {"timeout": cluster.calls["a"]}
    assert cluster.calls["a"] >= 10
    assert held[8:] == [1] * len(held[8:])


def test_chance_failures_take_no_replica_down() -> None:
    async def flaky(request: httpx.Request) -> httpx.Response:
        number = cluster.calls.total()
        if number % 5 == 0:
            return httpx.Response(429, headers={"Retry-After": "1"})
        return httpx.Response(500) if number % 7 == 0 else await good(request)

    cluster = Cluster(a=flaky)
    outcomes, _, _ = run(cluster, 500)
    replies(outcomes)
    assert cluster.probes == []


def test_an_outage_that_answers_500_loses_nothing() -> None:
    async def restarting(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500) if virtual_time.now() - START < 30 else await good(request)

    outcomes, _, elapsed = run(Cluster(a=restarting), 8)
    replies(outcomes)
    assert 30 < elapsed < 65


def test_bad_requests_say_nothing_against_a_replica() -> None:
    cluster = Cluster(a=broken(httpx.Response(400)))
    outcomes, stats, _ = run(cluster, 20)
    assert stats.failures == {"bad_request": 20}
    assert len(outcomes) == 20
    assert cluster.probes == []


def test_closing_ends_the_probes() -> None:
    cluster = Cluster(a=dead_between(0, 1e9))

    async def go() -> int:
        client = cluster.client(retries={"unreachable": {"attempts": 1}})
        with pytest.raises(RolloutError):
            await client.generate({"input": "x"}, SamplingSpec())
        await client.aclose()
        await asyncio.sleep(100)
        return len(cluster.probes)

    assert virtual_time.run(go()) == 0


def test_an_endpoint_that_is_back_after_it_was_given_up_is_used_again() -> None:
    cluster = Cluster(a=dead_between(0, 100))

    async def go() -> tuple[list[Reply | BaseException], list[Reply | BaseException]]:
        async with cluster.client() as client:
            early = await play(client, 20)
            while client.stats().given_up:
                await asyncio.sleep(1)
            assert 100 <= virtual_time.now() - START <= 113
            return early, await play(client, 20)

    early, late = virtual_time.run(go())
    assert all(isinstance(outcome, RolloutError) for outcome in early)
    assert len(replies(late)) == 20


def test_stats_can_be_read_while_the_loop_stands_still() -> None:
    """A worker's pump reads them between two runs of its loop."""
    cluster = Cluster(a=dead_between(0, 1e9))
    with asyncio.Runner(loop_factory=virtual_time.VirtualTimeLoop) as runner:
        client = cluster.client()
        assert client.stats().outage_s == 0

        async def begin() -> asyncio.Task[Reply]:
            task = asyncio.create_task(client.generate({"input": "x"}, SamplingSpec(), session="t"))
            await asyncio.sleep(20)
            return task

        task = runner.run(begin())
        stats = client.stats()
        assert (stats.waiting, stats.oldest[0].session, stats.oldest[0].last_failure) == (1, "t", "unreachable")
        assert stats.outage_s == pytest.approx(20)
        task.cancel()
        runner.run(client.aclose())
