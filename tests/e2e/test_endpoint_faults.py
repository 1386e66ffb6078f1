"""The real transport over real sockets: what each fault of a server or network is called; how many fit in flight."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from gym_spark.config import EndpointSpec, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.preflight import check_endpoint
from gym_spark.endpoint.retry import without_retries
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import ConfigError, RolloutError
from tests.e2e.conftest import Run
from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import quiz_run
from tests.reliability.faults import expected_score, knows, mixed_faults

SAMPLING = SamplingSpec(max_output_tokens=8)


def call(url: str, **fields: Any) -> Reply:
    async def go() -> Reply:
        spec = EndpointSpec(**({"urls": (url,), "model": "m"} | fields))
        async with EndpointClient(spec if "retries" in fields else without_retries(spec)) as client:
            return await client.generate({"input": "3+4"}, SAMPLING)

    return asyncio.run(go())


def failure(url: str, **fields: Any) -> RolloutError:
    with pytest.raises(RolloutError) as caught:
        call(url, **fields)
    return caught.value


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_p08_a_refused_port_is_unreachable_when_its_window_is_over() -> None:
    started = time.monotonic()
    caught = failure(closed_port(), retries={"unreachable": {"window_s": 2}})
    assert (caught.kind, caught.terminal, caught.requests) == ("unreachable", False, 1)
    assert 2 <= time.monotonic() - started < 4


def test_p08_an_unknown_host_is_unreachable() -> None:
    caught = failure("http://no-such-host.invalid/v1")
    assert caught.kind == "unreachable"
    assert "no-such-host.invalid" in str(caught)


@pytest.mark.parametrize(
    ("reply", "kind", "terminal"),
    [
        (FakeReply("x", drop="before"), "dropped", False),
        (FakeReply("x" * 1000, drop="during"), "dropped", False),
        (FakeReply("x", delay_s=5), "timeout", False),
        (FakeReply("x" * 100, drip_s=0.1, drip_bytes=1), "timeout", False),
        (FakeReply(raw=b'{"choices": ['), "invalid_reply", False),
        (FakeReply(raw=b"x" * (33 * 1024 * 1024)), "reply_too_large", True),
        (FakeReply(status=503, error={"message": "loading"}), "server_error", False),
    ],
)
def test_each_fault_has_its_kind(reply: FakeReply, kind: str, terminal: bool) -> None:
    with FakeOpenAI(lambda body, n: reply) as server:
        caught = failure(server.url, timeout_s=0.5 if kind == "timeout" else 30)
        assert (caught.kind, caught.terminal, caught.requests) == (kind, terminal, 1)
        assert server.requests == 1


def test_what_is_not_http_is_an_invalid_reply() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"220 mail server ready\r\n")
        await writer.drain()
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            spec = EndpointSpec(urls=(f"http://127.0.0.1:{port}/v1",), model="m")
            async with EndpointClient(without_retries(spec)) as client:
                await client.generate({"input": "3+4"}, SAMPLING)

    with pytest.raises(RolloutError) as caught:
        asyncio.run(go())
    assert caught.value.kind == "invalid_reply"


def test_a_dropped_call_is_retried_and_answered() -> None:
    with FakeOpenAI(lambda body, n: FakeReply(drop="before") if n == 0 else "7") as server:
        reply = call(server.url, retries={"dropped": {"attempts": 2}})
        assert (reply.output_text, reply.requests, server.requests) == ("7", 2, 2)


def test_a_timeout_frees_the_servers_slot() -> None:
    with FakeOpenAI(lambda body, n: FakeReply("x", delay_s=30)) as server:
        assert failure(server.url, timeout_s=0.2).kind == "timeout"
        deadline = time.monotonic() + 5
        while server.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.in_flight == 0


def test_p11_two_hundred_requests_are_in_flight_at_once() -> None:
    """400 calls of a second each, 200 at once: two seconds of work, so no hidden cap of 100 stands in the way."""

    async def go(url: str) -> float:
        spec = EndpointSpec(urls=(url,), model="m", concurrency=200)
        started = time.monotonic()
        async with EndpointClient(spec) as client:
            await asyncio.gather(*(client.generate({"input": str(i)}, SAMPLING) for i in range(400)))
        return time.monotonic() - started

    with FakeOpenAI(lambda body, n: FakeReply("7", delay_s=1)) as server:
        elapsed = asyncio.run(go(server.url))
        assert 190 <= server.peak <= 200
        assert server.requests == 400
        assert elapsed < 4


def test_both_apis_give_the_same_answer() -> None:
    with FakeOpenAI() as server:
        chat, responses = call(server.url), call(server.url, api="responses")
        assert chat.output_text == responses.output_text
        assert (chat.answer_state, responses.answer_state) == ("complete", "complete")
        assert chat.usage == responses.usage
        assert dict(server.counts) == {"/v1/chat/completions": 1, "/v1/responses": 1}


def test_p14_preflight_over_sockets_and_inside_a_running_loop() -> None:
    with FakeOpenAI(api_key="sk-right", models={"m"}) as server:
        spec = EndpointSpec(urls=(server.url,), model="m")
        assert check_endpoint(spec, SAMPLING, "sk-right") is None

        async def cell() -> str | None:
            return check_endpoint(spec, SAMPLING, "sk-right")

        assert asyncio.run(cell()) is None
        with pytest.raises(ConfigError, match="key"):
            check_endpoint(spec, SAMPLING, "sk-wrong")
        with pytest.raises(ConfigError, match="no-such-model"):
            check_endpoint(spec.model_copy(update={"model": "no-such-model"}), SAMPLING, "sk-right")
        assert server.requests == 4
    with pytest.raises(ConfigError, match=r"down.*127\.0\.0\.1"):
        check_endpoint(EndpointSpec(urls=(closed_port(),), model="m"), SAMPLING)


def test_a_run_through_mixed_faults_beside_a_bad_replica_scores_as_one_without(gym: Run, tmp_path: Path) -> None:
    """Through `eval run`: 429, 500 and dropped connections on one replica, empty answers from the other.

    All rollouts complete, and their score is that of a run without faults, known as answers depend on questions alone.
    """
    tasks = 150
    with (
        FakeOpenAI(mixed_faults(knows, hint_s=0.2, seed=3)) as good,
        FakeOpenAI(lambda body, n: FakeReply(raw=b"")) as bad,
    ):
        told = gym(*quiz_run(tmp_path, good.url, tasks, "--model-url", bad.url, "--json")[3:])
        assert told.code == 0, told.err
        assert good.requests > tasks * 1.2
        assert 0 < bad.requests <= tasks / 2
    profile = json.loads(told.out)
    assert (profile["coverage"]["completed"], profile["coverage"]["scored"]) == (tasks, tasks)
    score = {(metric["name"], metric["denominator"]): metric["value"] for metric in profile["metrics"]}
    assert score["mean_reward", "planned"] == pytest.approx(expected_score(tasks), abs=1e-12)
