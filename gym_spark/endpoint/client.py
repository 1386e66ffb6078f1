"""One async client for OpenAI-compatible endpoints: a task's parameters enter, a `Reply` or a typed failure leaves.

A client belongs to the event loop that first uses it. It knows nothing of Spark and is usable alone::

    async with EndpointClient(EndpointSpec(urls=("http://localhost:8000/v1",), model="m")) as client:
        reply = await client.generate({"input": "2 + 2 = ?"}, SamplingSpec(max_output_tokens=16))
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

import aiohttp
import httpx

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.failures import EndpointFailure, clean_message, failure_of_status
from gym_spark.endpoint.replies import Answer, filtered_answer, reply_from
from gym_spark.endpoint.retry import Retry
from gym_spark.endpoint.transport import CONNECT_TIMEOUT_S, aiohttp_transport, failure_of_exception
from gym_spark.endpoint.wire import Reply, request_body
from gym_spark.errors import ConfigError, RolloutError

#: Largest answer read. A long reasoning trace with log-probabilities is some MB; a row far above that would not fit
#: into a batch of a Spark worker, and a server that never stops must not fill its memory.
MAX_REPLY_BYTES: Final = 32 * 1024 * 1024

_PATHS: Final = {"chat": "/chat/completions", "responses": "/responses"}


class EndpointClient:
    """Calls a model, with bounded concurrency, a time limit per request, and bounded retries.

    Args:
        spec: The endpoint; `urls` and `model` must be set.
        concurrency: Requests in flight; `spec.concurrency` (the whole run's) unless given.
        api_key: The key; read from the environment variable `spec.api_key_env` unless given.
        transport: For tests; the aiohttp transport unless given.
        on_failure: Told of each failed try, retried or not, so that the first one can be logged at once.
        sleep: Waits between tries; tests pass their own.

    Raises:
        ConfigError: The address, the model or the key cannot be used, or the process may not open enough files.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        *,
        concurrency: int | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_failure: Callable[[RolloutError], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not spec.urls or spec.model is None:
            raise ConfigError("The endpoint has no address or no model name; give --model-url and --model.")
        for url in spec.urls:
            _check_url(url)
        limit = concurrency if concurrency is not None else spec.concurrency
        self._spec = spec
        self._model = spec.model
        self._key = _checked_key(api_key if api_key is not None else key_from_environment(spec))
        self._on_failure = on_failure
        self._slots = asyncio.Semaphore(limit)
        self._urls = itertools.cycle(spec.urls)
        self._retry = Retry(spec.max_attempts, spec.retry_window_s, sleep=sleep)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        # Reading is bounded by the deadline of the whole request: a server that drips bytes never trips a read timeout.
        self._http = httpx.AsyncClient(
            transport=transport if transport is not None else aiohttp_transport(limit),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            headers=headers,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def generate(self, params: JsonObject, sampling: SamplingSpec) -> Reply:
        """Make one model call.

        Args:
            params: A task's `responses_create_params`.
            sampling: The run's sampling settings, which override them.

        Raises:
            RolloutError: Of stage ``endpoint``, with the kind, whether it is terminal, and the requests spent.
        """
        body = request_body(params, sampling, self._model, self._spec.api)
        limits = (body.get(key) for key in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        token_limit = next((limit for limit in limits if isinstance(limit, int)), None)
        call = _Call(content=_encoded(body), token_limit=token_limit)
        return await self._retry.run(lambda: self._try(call), self._failed)

    def _failed(self, failure: EndpointFailure) -> None:
        if self._on_failure is not None:
            self._on_failure(failure)

    async def _try(self, call: _Call) -> Reply:
        """Make one try: take a slot, then send. The slot is free again during back-off."""
        call.requests += 1
        queued = time.monotonic()
        async with self._slots:
            call.queue_ms += (time.monotonic() - queued) * 1000
            url = next(self._urls)
            started = time.monotonic()
            try:
                answer = await self._send(url, call)
            except EndpointFailure as failure:
                failure.args = (clean_message(str(failure), self._key),)
                raise
        return Reply(
            response=answer.response,
            output_text=answer.output_text,
            answer_state=answer.answer_state,
            usage=answer.usage,
            finish_reason=answer.finish_reason,
            requests=call.requests,
            latency_ms=(time.monotonic() - started) * 1000,
            queue_ms=call.queue_ms,
            replica=url,
        )

    async def _send(self, base_url: str, call: _Call) -> Answer:
        url = base_url + _PATHS[self._spec.api]
        try:
            async with (
                asyncio.timeout(self._spec.timeout_s),
                self._http.stream("POST", url, content=call.content) as response,
            ):
                raw = await _read(response, url)
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise failure_of_exception(error, url, self._spec.timeout_s) from error
        if response.status_code != 200:
            failure = failure_of_status(response.status_code, response.headers, raw, url)
            if failure.kind == "content_filter":
                return filtered_answer(clean_message(str(failure), self._key), self._model)
            raise failure
        return reply_from(_decoded(raw, url), self._spec.api, token_limit=call.token_limit)


class _Call:
    """What the tries of one model call share."""

    __slots__ = ("content", "queue_ms", "requests", "token_limit")

    def __init__(self, content: bytes, token_limit: int | None) -> None:
        self.content = content
        self.token_limit = token_limit
        self.requests = 0
        self.queue_ms = 0.0


async def _read(response: httpx.Response, url: str) -> bytes:
    """Read the body, decompressed, up to `MAX_REPLY_BYTES`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            raise EndpointFailure("reply_too_large", f"{url} sent more than {MAX_REPLY_BYTES // 2**20} MB")
        chunks.append(chunk)
    return b"".join(chunks)


def _encoded(body: JsonObject) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # NaN, a lone surrogate, a value that JSON has no form for
        raise EndpointFailure("bad_request", f"The request was not sent: it is not valid JSON ({error}).") from error


def _decoded(raw: bytes, url: str) -> JsonObject:
    try:
        # NaN and infinities, which some servers write for log-probabilities, are no JSON: null from here on.
        payload = json.loads(raw, parse_constant=lambda _: None)
        if b"\\ud" in raw or b"\\uD" in raw:
            # Half an emoji, cut off by the token limit, is a lone surrogate that no table can store: it becomes "?".
            payload = json.loads(json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        head = raw[:200].decode("utf-8", "replace")
        raise EndpointFailure("invalid_reply", f"{url} answered 200 with invalid JSON ({error}): {head}") from error
    if not isinstance(payload, dict):
        raise EndpointFailure(
            "invalid_reply", f"{url} answered 200 with a JSON {type(payload).__name__}, not an object"
        )
    return payload


def key_from_environment(spec: EndpointSpec) -> str | None:
    """Return the key that `spec.api_key_env` refers to, or None where it refers to none.

    Raises:
        ConfigError: The variable is not set.
    """
    if spec.api_key_env is None:
        return None
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise ConfigError(f"The environment variable '{spec.api_key_env}', which should hold the API key, is not set.")
    return key


def _checked_key(key: str | None) -> str | None:
    key = key.strip() if key is not None else None
    if key and not (key.isascii() and key.isprintable()):
        # Said here, without the value: an HTTP library's own error would quote it.
        raise ConfigError("The API key holds characters that cannot stand in an HTTP header; check how it was pasted.")
    return key or None


def _check_url(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"The address '{url}' is not a URL ({error}).") from error
    if parsed.userinfo:
        raise ConfigError(f"The address of '{parsed.host}' holds a password; give it with --model-api-key-env instead.")
    if not parsed.host or (parsed.port or 0) > 65535 or parsed.query or parsed.fragment:
        raise ConfigError(f"The address '{url}' must have the form http(s)://host:port/v1, without a query.")
