"""The client against a fake transport: kinds, counts, clocks, bounds. No sockets, no waits."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from gym_spark.config import EndpointSpec, SamplingSpec
from gym_spark.endpoint.activity import ClientStats
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.failures import FATAL_KINDS, EndpointFailure
from gym_spark.endpoint.preflight import preflight
from gym_spark.endpoint.transport import check_concurrency
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import ConfigError, RolloutError
from tests.unit import virtual_time

Handler = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
SAMPLING = SamplingSpec(max_output_tokens=8)


def answer(text: str | None = "7", finish: str = "stop", **message: Any) -> httpx.Response:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 1}})


def spec(**fields: Any) -> EndpointSpec:
    return EndpointSpec(**({"urls": ("http://a/v1",), "model": "m"} | fields))


def client(handler: Handler, **fields: Any) -> EndpointClient:
    names = {"concurrency", "api_key", "on_failure", "share", "pace"}
    options = {name: fields.pop(name) for name in names & fields.keys()}
    return EndpointClient(spec(**fields), transport=httpx.MockTransport(handler), **options)


def generate(made: EndpointClient, params: dict[str, Any] | None = None) -> Reply:
    async def go() -> Reply:
        async with made:
            return await made.generate(params or {"input": "3+4"}, SAMPLING)

    return virtual_time.run(go())


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
    times: list[float] = []

    def handler(_: httpx.Request) -> httpx.Response:
        times.append(virtual_time.now())
        return replies.pop(0) if replies else answer()

    reply = generate(client(handler))
    assert reply.requests == 3
    assert times[1] - times[0] > 2
    assert times[2] - times[1] > 5
    assert (reply.queue_ms, reply.latency_ms) == (0, 0)  # back-off is in neither


def test_a_dropped_call_is_tried_eight_times_each_reported() -> None:
    reported: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200)
        raise httpx.ReadError("gone", request=request)

    caught = failure(client(handler, on_failure=lambda failed: reported.append(failed.kind)))
    assert (caught.kind, caught.terminal, caught.requests, reported) == ("dropped", False, 8, ["dropped"] * 8)


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
    """Ten calls of 3 s through one slot take longer than the limit of 20 s, and none times out."""
    in_flight, peak = 0, 0

    async def handler(_: httpx.Request) -> httpx.Response:
        nonlocal in_flight, peak
        in_flight += 1
        peak = max(peak, in_flight)
        await asyncio.sleep(3)
        in_flight -= 1
        return answer()

    async def go() -> list[Reply]:
        async with client(handler, concurrency=1, timeout_s=20) as made:
            return await asyncio.gather(*(made.generate({"input": str(i)}, SAMPLING) for i in range(10)))

    replies = virtual_time.run(go())
    assert peak == 1
    assert [round(reply.queue_ms) for reply in replies] == [3000 * before for before in range(10)]
    assert {round(reply.latency_ms) for reply in replies} == {3000}


def test_a_hanging_request_times_out() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(900)
        return answer()

    caught = failure(client(handler))
    assert (caught.kind, caught.terminal, caught.requests) == ("timeout", False, 3)
    assert "600 s" in str(caught)


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
        ({"urls": ("http://\u0660\u0061.example/v1",)}, "is not a URL"),
        ({"api_key_env": "GYM_SPARK_NO_SUCH_KEY"}, "GYM_SPARK_NO_SUCH_KEY"),
        ({"api_key": "sk-\u2026"}, "HTTP header"),
    ],
)
def test_an_unusable_endpoint_is_the_users_mistake(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        client(lambda _: answer(), **fields)
    assert "\u2026" not in str(caught.value)


def check(handler: Handler, sampling: SamplingSpec = SAMPLING, **fields: Any) -> str | None:
    return virtual_time.run(preflight(spec(**fields), sampling, transport=httpx.MockTransport(handler)))


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


def test_p14_preflight_asks_a_replica_that_is_up() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "a":
            raise httpx.ConnectError("refused", request=request)
        return answer()

    warning = check(handler, urls=("http://a/v1", "http://b/v1"))
    assert warning is not None
    assert "1 of 2 replicas" in warning
    with pytest.raises(ConfigError, match="down"):
        check(handler, urls=("http://a/v1", "http://a/v1"))


def test_what_a_failed_try_cost_is_counted() -> None:
    """A failed response that tells its tokens was paid for, though another try answered."""
    failed = {"status": "failed", "error": {}, "usage": {"input_tokens": 5, "output_tokens": 2}}
    replies = [httpx.Response(200, json=failed)]
    good = {"status": "completed", "output": [], "usage": {"input_tokens": 5, "output_tokens": 1}}
    made = client(lambda _: replies.pop() if replies else httpx.Response(200, json=good), api="responses")
    reply = generate(made)
    assert (reply.requests, reply.usage.input_tokens, reply.usage.output_tokens) == (2, 10, 3)
    replies.extend(httpx.Response(200, json=failed) for _ in range(9))
    caught = failure(client(lambda _: replies.pop(), api="responses", retries={"server_error": {"attempts": 2}}))
    assert isinstance(caught, EndpointFailure)
    assert caught.usage.total_tokens == 14


ECHOED = 'sk-echoed/by+"server"'


@pytest.mark.parametrize(
    "spelled",
    [
        json.dumps(ECHOED)[1:-1],
        json.dumps(ECHOED)[1:-1].replace("/", "\\/"),
        "sk\\u002Dechoed\\u002fby\\u002B\\u0022server\\u0022",
        "".join(f"\\u{ord(sign):04x}" for sign in ECHOED),
    ],
)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_key_that_the_server_echoes_is_masked_in_the_whole_answer(api: str, spelled: str) -> None:
    """Also where nobody looks: what the row stores holds neither the key nor a spelling of it."""
    part = '{"type": "output_text", "text": "your key is KEY", "debug": {"authorization": "Bearer KEY"}}'
    bodies = {
        "chat": '{"id": "KEY", "choices": [{"message": {"content": "your key is KEY", "reasoning": "KEY"}}]}',
        "responses": f'{{"output": [{{"type": "message", "content": [{part}]}}], "debug": {{"KEY": "Bearer KEY"}}}}',
    }
    raw = bodies[api].replace("KEY", spelled).encode()
    assert ECHOED in json.dumps(json.loads(raw)).replace('\\"', '"')  # the test itself spells it right
    reply = generate(client(lambda _: httpx.Response(200, content=raw), api=api, api_key=ECHOED))
    assert reply.output_text == "your key is ***"
    assert "***" in str(reply.response)
    assert "echoed" not in str(reply)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_body_in_another_encoding_is_no_answer_and_hides_no_key(encoding: str) -> None:
    """JSON is UTF-8 (RFC 8259 \u00a78.1)."""
    raw = '{"choices": [{"message": {"content": "sk-echoed"}}]}'.encode(encoding)
    caught = failure(client(lambda _: httpx.Response(200, content=raw), api_key="sk-echoed"))
    assert caught.kind == "invalid_reply"
    assert "sk-echoed" not in str(caught).replace("\0", "")


def test_absurd_numbers_in_an_answer_end_neither_a_call_nor_the_preflight() -> None:
    raw = b'{"choices": [{"message": {"content": "7"}}], "usage": {"prompt_tokens": 1e400, "completion_tokens": %d}}'
    made = httpx.Response(200, content=raw % 10**20)
    assert generate(client(lambda _: made)).usage.output_tokens is None
    assert check(lambda _: httpx.Response(200, content=raw % 10**20)) is None


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "unauthorized"), (402, "quota_exhausted"), (403, "forbidden"), (404, "not_found")]
)
def test_failures_of_the_set_up_are_fatal_for_a_run_but_final_for_no_row(status: int, kind: str) -> None:
    caught = failure(client(lambda _: httpx.Response(status)))
    assert (caught.kind, caught.terminal, caught.requests) == (kind, False, 1)
    assert kind in FATAL_KINDS


def test_a_concurrency_beyond_the_open_files_is_refused_before_a_request() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ConfigError, match=r"--concurrency or raise `ulimit -n`"):
        check(lambda _: answer(), concurrency=10**12)
    with pytest.raises(ConfigError, match=f"may open {limit}"):
        check_concurrency(limit)
    check_concurrency(limit, processes=2)
    check_concurrency(limit - 64)


def test_p56_stats_name_the_call_that_hangs_and_the_one_that_is_refused() -> None:
    """Ten calls: eight answer, one hangs, one is refused again and again. No prompt is in the statistics."""

    async def handler(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["messages"][0]["content"]
        if prompt == "prompt-3":
            await asyncio.sleep(500)
        return httpx.Response(429, headers={"Retry-After": "1"}) if prompt == "prompt-7" else answer()

    async def go() -> tuple[ClientStats, ClientStats]:
        async with client(handler, concurrency=4) as made:
            calls = [
                asyncio.create_task(made.generate({"input": f"prompt-{i}"}, SAMPLING, session=f"task-{i}"))
                for i in range(10)
            ]
            await asyncio.sleep(10)
            during = made.stats()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            return during, made.stats()

    stats, after = virtual_time.run(go())
    assert (stats.in_flight, stats.waiting, stats.retrying) == (1, 0, 1)
    hanging, refused = stats.oldest
    assert (hanging.session, hanging.state, hanging.requests) == ("task-3", "in_flight", 1)
    assert hanging.state_age_s == pytest.approx(10)
    assert (refused.session, refused.state, refused.last_failure) == ("task-7", "retrying", "rate_limited")
    assert refused.requests == stats.retries + 1 >= 3
    assert stats.requests == 9 + refused.requests
    assert stats.failures == {"rate_limited": refused.requests}
    assert stats.usage.output_tokens == 8
    assert "prompt" not in repr(stats)
    assert (after.in_flight, after.retrying, after.oldest) == (0, 0, ())


def test_p10_calls_wait_out_a_closed_quota_and_the_limit_falls_and_rises() -> None:
    """For 30 s every request gets 429 with a hint of 90 s; then all is well. Nothing fails."""

    async def handler(_: httpx.Request) -> httpx.Response:
        now = virtual_time.now()
        await asyncio.sleep(0.5)
        return httpx.Response(429, headers={"Retry-After": "90"}) if now < 1030 else answer()

    async def go() -> tuple[list[Reply], ClientStats, ClientStats]:
        async with client(handler, concurrency=32) as made:
            calls = asyncio.gather(*(made.generate({"input": str(i)}, SAMPLING) for i in range(32)))
            await asyncio.sleep(30)
            closed = made.stats()
            replies = await calls
            replies += await asyncio.gather(*(made.generate({"input": str(i)}, SAMPLING) for i in range(600)))
            assert virtual_time.now() < 1150
            return replies, closed, made.stats()

    replies, closed, open_again = virtual_time.run(go())
    assert {reply.answer_state for reply in replies} == {"complete"}
    assert (closed.limit, closed.retrying, closed.in_flight) == (2, 32, 0)
    assert (open_again.limit, open_again.lowest_limit) == (32, 2)


def test_a_call_that_backs_off_holds_no_slot() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        first = b"first" in request.content and virtual_time.now() < 1001
        return httpx.Response(429, headers={"Retry-After": "60"}) if first else answer()

    async def go() -> float:
        async with client(handler, concurrency=1) as made:
            slow = asyncio.create_task(made.generate({"input": "first"}, SAMPLING))
            await asyncio.sleep(0)
            await made.generate({"input": "second"}, SAMPLING)
            reached = virtual_time.now()
            await slow
            return reached

    assert virtual_time.run(go()) < 1001


def test_rates_hold_requests_back_by_the_clients_share() -> None:
    """600 a minute over two clients are 5 a second for each: 50 calls take 10 s less the burst."""

    async def go() -> float:
        async with client(lambda _: answer(), requests_per_minute=600, share=0.5, concurrency=50) as made:
            replies = await asyncio.gather(*(made.generate({"input": str(i)}, SAMPLING) for i in range(50)))
            assert max(reply.queue_ms for reply in replies) > 8_000
            return virtual_time.now() - 1000

    assert 8.9 < virtual_time.run(go()) < 10
