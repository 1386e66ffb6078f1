"""The client against a fake transport: kinds, counts, clocks, bounds. No sockets, no waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from gym_spark.config import EndpointSpec, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.preflight import preflight
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import ConfigError, RolloutError

Handler = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
SAMPLING = SamplingSpec(max_output_tokens=8)


def answer(text: str | None = "7", finish: str = "stop", **message: Any) -> httpx.Response:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 1}})


def spec(**fields: Any) -> EndpointSpec:
    return EndpointSpec(**({"urls": ("http://a/v1",), "model": "m"} | fields))


def client(handler: Handler, *, sleeps: list[float] | None = None, **fields: Any) -> EndpointClient:
    async def sleep(seconds: float) -> None:
        if sleeps is not None:
            sleeps.append(seconds)

    names = {"concurrency", "api_key", "on_failure"}
    options = {name: fields.pop(name) for name in names & fields.keys()}
    return EndpointClient(spec(**fields), transport=httpx.MockTransport(handler), sleep=sleep, **options)


def generate(made: EndpointClient, params: dict[str, Any] | None = None) -> Reply:
    async def go() -> Reply:
        async with made:
            return await made.generate(params or {"input": "3+4"}, SAMPLING)

    return asyncio.run(go())


def failure(made: EndpointClient) -> RolloutError:
    with pytest.raises(RolloutError) as caught:
        generate(made)
    assert caught.value.stage == "endpoint"
    return caught.value


def test_one_call_sends_the_body_and_key_and_returns_a_reply() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer()

    reply = generate(client(handler, api_key="sk-1"))
    assert str(seen[0].url) == "http://a/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer sk-1"
    assert json.loads(seen[0].content)["max_tokens"] == 8
    assert (reply.output_text, reply.answer_state, reply.requests, reply.replica) == ("7", "complete", 1, "http://a/v1")
    assert reply.usage.output_tokens == 1
    assert reply.usage.input_tokens is None


def test_responses_api_has_its_own_path() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/responses"
        return httpx.Response(200, json={"status": "completed", "output": [], "usage": {"output_tokens": 8}})

    assert generate(client(handler, api="responses")).answer_state == "truncated"


def test_p10_retry_after_is_waited_for_and_the_call_succeeds() -> None:
    replies = [httpx.Response(429, headers={"Retry-After": hint}) for hint in ("2", "5")]
    sleeps: list[float] = []
    reply = generate(client(lambda _: replies.pop(0) if replies else answer(), sleeps=sleeps))
    assert reply.requests == 3
    assert sleeps[0] > 2
    assert sleeps[1] > 5


@pytest.mark.parametrize(("error", "kind"), [(httpx.ConnectError, "unreachable"), (httpx.ReadError, "dropped")])
def test_p08_a_dead_endpoint_is_three_tries_each_reported(error: type[httpx.TransportError], kind: str) -> None:
    reported: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        raise error("gone", request=request)

    caught = failure(client(handler, on_failure=lambda failed: reported.append(failed.kind)))
    assert (caught.kind, caught.terminal, caught.requests, reported) == (kind, False, 3, [kind] * 3)


def test_p12_a_filter_refusal_is_a_filtered_reply_and_one_request() -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(400, json={"error": {"code": "content_filter", "message": "no"}})

    reply = generate(client(handler))
    assert (reply.answer_state, reply.output_text, len(requests), reply.requests) == ("filtered", None, 1, 1)
    assert reply.response["output"] == []
    assert reply.usage.total_tokens is None


def test_p52_a_prompt_that_is_too_long_is_one_terminal_failure() -> None:
    words = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    caught = failure(client(lambda _: httpx.Response(400, json=words)))
    assert (caught.kind, caught.terminal, caught.requests) == ("context_length_exceeded", True, 1)


def test_error_messages_carry_the_servers_words_but_never_the_key() -> None:
    body = {"error": {"message": "Incorrect API key provided: sk-very-secret. " + "x" * 1000}}
    caught = failure(client(lambda _: httpx.Response(401, json=body), api_key="sk-very-secret"))
    assert "Incorrect API key provided: ***." in str(caught)
    assert "sk-very-secret" not in str(caught)
    assert len(str(caught)) < 500


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe\xfa", b"[1]", b"null", b"<html>", b"[" * 100_000])
def test_a_broken_body_is_an_invalid_reply_and_retried(raw: bytes) -> None:
    caught = failure(client(lambda _: httpx.Response(200, content=raw)))
    assert (caught.kind, caught.terminal, caught.requests) == ("invalid_reply", False, 3)


def test_what_tables_cannot_hold_is_replaced() -> None:
    raw = rb'{"choices": [{"message": {"content": "ok \ud83d"}, "finish_reason": "stop", "score": NaN}]}'
    reply = generate(client(lambda _: httpx.Response(200, content=raw)))
    assert reply.output_text == "ok ?"


def test_a_prompt_that_is_no_text_is_a_bad_request_without_a_request() -> None:
    made = client(lambda _: answer())
    with pytest.raises(RolloutError) as caught:
        generate(made, {"input": "half an emoji \ud83d"})
    assert (caught.value.kind, caught.value.terminal, caught.value.requests) == ("bad_request", True, 0)


def test_p11_the_clock_starts_when_the_request_goes_out() -> None:
    """Ten calls of 0.03 s through one slot take longer than the limit of 0.2 s, and none times out."""
    in_flight, peak = 0, 0

    async def handler(_: httpx.Request) -> httpx.Response:
        nonlocal in_flight, peak
        in_flight += 1
        peak = max(peak, in_flight)
        await asyncio.sleep(0.03)
        in_flight -= 1
        return answer()

    async def go() -> list[Reply]:
        async with client(handler, concurrency=1, timeout_s=0.2, max_attempts=1) as made:
            return await asyncio.gather(*(made.generate({"input": str(i)}, SAMPLING) for i in range(10)))

    replies = asyncio.run(go())
    assert peak == 1
    assert max(reply.queue_ms for reply in replies) > 200
    assert max(reply.latency_ms for reply in replies) < 200


def test_a_hanging_request_times_out() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(30)
        return answer()

    caught = failure(client(handler, timeout_s=0.02, max_attempts=2))
    assert (caught.kind, caught.terminal, caught.requests) == ("timeout", False, 2)
    assert "0.02 s" in str(caught)


def test_several_addresses_take_turns_and_a_retry_goes_to_the_next() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503) if request.url.host == "a" else answer()

    reply = generate(client(handler, urls=("http://a/v1", "http://b/v1/")))
    assert (reply.replica, reply.requests) == ("http://b/v1", 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"urls": ()}, "--model-url"),
        ({"model": None}, "--model"),
        ({"urls": ("http://user:pw@a/v1",)}, "password"),
        ({"urls": ("http://a:port/v1",)}, "not a URL"),
        ({"urls": ("http://a:999999/v1",)}, "must have the form"),
        ({"urls": ("http://a/v1?key=1",)}, "without a query"),
        ({"api_key_env": "GYM_SPARK_NO_SUCH_KEY"}, "GYM_SPARK_NO_SUCH_KEY"),
        ({"api_key": "sk-\u2026"}, "HTTP header"),
    ],
)
def test_an_unusable_endpoint_is_the_users_mistake(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        client(lambda _: answer(), **fields)
    assert "pw" not in str(caught.value).replace("password", "")
    assert "\u2026" not in str(caught.value)


def check(handler: Handler, sampling: SamplingSpec = SAMPLING) -> str | None:
    return asyncio.run(preflight(spec(), sampling, transport=httpx.MockTransport(handler)))


@pytest.mark.parametrize(
    ("status", "words"), [(401, "--model-api-key-env"), (403, "--model"), (404, "--model"), (400, "sampling settings")]
)
def test_p14_preflight_stops_on_a_wrong_key_or_model_with_one_request(status: int, words: str) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, json={"error": {"message": "server's words"}})

    with pytest.raises(ConfigError, match=words) as caught:
        check(handler)
    assert "server's words" in str(caught.value)
    assert len(requests) == 1


def test_p14_preflight_stops_on_a_dead_endpoint() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ConfigError, match=r"down.*--model-url.*http://a/v1"):
        check(handler)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_p14_preflight_goes_on_where_the_failure_says_nothing(status: int) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status)

    warning = check(handler)
    assert warning is not None
    assert str(status) in warning
    assert len(requests) == 1


def test_p14_preflight_uses_the_runs_own_sampling() -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return answer()

    assert check(handler, SamplingSpec(temperature=0.3, max_output_tokens=4096, extra={"top_k": 5})) is None
    assert {key: bodies[0][key] for key in ("temperature", "top_k", "max_tokens")} == {
        "temperature": 0.3,
        "top_k": 5,
        "max_tokens": 16,
    }
