"""One async client for OpenAI-compatible endpoints: a task's parameters enter, a `Reply` or a typed failure leaves.

A client belongs to the event loop that first uses it. It knows nothing of Spark and is usable alone::

    async with EndpointClient(EndpointSpec(urls=("http://localhost:8000/v1",), model="m")) as client:
        reply = await client.generate({"input": "2 + 2 = ?"}, SamplingSpec(max_output_tokens=16))

Whoever uses it keeps as many calls open as its concurrency, and no more: a call that backs off gives its slot back, but
the caller does not start another in its place. A server that turns calls away asks for less, and open rollouts cost
memory here and cached prefixes there.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import httpx

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.activity import Call, ClientStats, oldest_of
from gym_spark.endpoint.exchange import Exchange, encoded
from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.limits import ConcurrencyLimit, RateLimits
from gym_spark.endpoint.masking import add_secret
from gym_spark.endpoint.replicas import REPLICA_KINDS, Replica, Replicas
from gym_spark.endpoint.retry import Pace, Retry, rules_of
from gym_spark.endpoint.transport import aiohttp_transport
from gym_spark.endpoint.usage import Usage, sum_usage
from gym_spark.endpoint.wire import Reply, request_body
from gym_spark.errors import ConfigError, RolloutError


class EndpointClient:
    """Calls a model: over its live replicas, with bounded concurrency, rates, time per request, and retries.

    Args:
        spec: The endpoint; `urls` and `model` must be set.
        concurrency: Requests in flight at most; `spec.concurrency` (the whole run's) unless given.
        share: This client's share of the run-wide rates, 1 / the number of clients.
        api_key: The key; read from the environment variable `spec.api_key_env` unless given.
        transport: For tests; the aiohttp transport unless given.
        on_failure: Told of each failed try, retried or not, so that the first one can be logged at once.
        pace: Back-off and the waits between probes.

    Raises:
        ConfigError: The address, the model or the key cannot be used, or the process may not open enough files.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        *,
        concurrency: int | None = None,
        share: float = 1.0,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_failure: Callable[[RolloutError], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        if not spec.urls or spec.model is None:
            raise ConfigError("The endpoint has no address or no model name; give --model-url and --model.")
        for url in spec.urls:
            _check_url(url)
        key = _checked_key(api_key if api_key is not None else key_from_environment(spec))
        top = concurrency if concurrency is not None else spec.concurrency
        pace = pace if pace is not None else Pace()
        rules = rules_of(spec)
        self._spec = spec
        self._model = spec.model
        self._on_failure = on_failure
        self._exchange = Exchange(spec, key, transport if transport is not None else aiohttp_transport(top))
        self._replicas = Replicas(
            spec.urls, lambda url: self._exchange.probe(url, pace.probe_timeout_s), pace, rules["unreachable"].window_s
        )
        self._retry = Retry(rules, pace)
        self._limit = ConcurrencyLimit(top)
        self._rates = RateLimits(
            *(rate and rate * share for rate in (spec.requests_per_minute, spec.tokens_per_minute))
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[Call, None] = {}  # in the order in which they began
        self._requests = self._retries = 0
        self._failures: Counter[str] = Counter()
        self._usage = Usage()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop probing and close the connections."""
        await self._replicas.aclose()
        await self._exchange.aclose()

    async def generate(self, params: JsonObject, sampling: SamplingSpec, session: str | None = None) -> Reply:
        """Make one model call.

        Args:
            params: A task's `responses_create_params`.
            sampling: The run's sampling settings, which override them.
            session: A name for the rollout: its calls stay on one replica while that lives, and `stats` shows it.

        Raises:
            RolloutError: Of stage ``endpoint``, with the kind, whether it is terminal, and the requests spent.
        """
        body = request_body(params, sampling, self._model, self._spec.api)
        limits = (body.get(key) for key in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        token_limit = next((limit for limit in limits if isinstance(limit, int)), None)
        self._loop = asyncio.get_running_loop()
        now = _now()
        call = Call(encoded(body), token_limit, session, began=now, since=now)
        self._open[call] = None
        try:
            return await self._retry.run(lambda: self._try(call), lambda failure: self._failed(call, failure))
        finally:
            del self._open[call]

    @property
    def given_up(self) -> bool:
        """Whether no replica came back in time: calls fail without a request until one does."""
        return self._loop is not None and self._replicas.given_up(self._loop.time())

    def stats(self) -> ClientStats:
        """Return what the client is doing and has done. Also from outside the loop, while it stands still."""
        now = self._loop.time() if self._loop is not None else 0.0
        states = Counter(call.state for call in self._open)
        return ClientStats(
            in_flight=states["in_flight"],
            waiting=states["waiting"],
            retrying=states["retrying"],
            limit=self._limit.limit,
            lowest_limit=self._limit.lowest,
            live_replicas=len(self._replicas.live),
            outage_s=self._replicas.outage_s(now),
            given_up=self._replicas.given_up(now),
            requests=self._requests,
            retries=self._retries,
            failures=dict(self._failures),
            usage=self._usage,
            oldest=oldest_of(self._open, now),
        )

    async def _try(self, call: Call) -> Reply:
        """Make one try: wait until it may go out, then send. The slot is free again during back-off."""
        call.enter("waiting", _now())
        guess = await self._rates.admit(len(call.content), call.token_limit)
        async with self._slot(call) as replica:
            started = _now()
            call.enter("in_flight", started)
            self._requests += 1
            self._retries += call.requests > 0
            call.requests += 1
            try:
                answer = await self._exchange.send(replica.url, call.content, call.token_limit)
            except EndpointFailure as failure:
                self._settle(guess, failure.usage)
                self._learn(call, replica, failure)
                raise
            self._settle(guess, answer.usage)
            self._replicas.answered(replica)
            self._limit.answered()
        return Reply(
            response=answer.response,
            output_text=answer.output_text,
            answer_state=answer.answer_state,
            usage=sum_usage([*call.spent, answer.usage]) if call.spent else answer.usage,
            finish_reason=answer.finish_reason,
            requests=call.requests,
            latency_ms=(_now() - started) * 1000,
            queue_ms=call.queue_s * 1000,
            replica=replica.url,
        )

    @asynccontextmanager
    async def _slot(self, call: Call) -> AsyncIterator[Replica]:
        """Wait for a live replica and a slot, and hold both."""
        while True:
            await self._replicas.wait_live()
            await self._limit.acquire()
            replica = self._replicas.choose(call.session, call.failed_at)
            if replica is not None:
                break
            self._limit.release()  # the last replica went down while the call queued
        replica.in_flight += 1
        try:
            yield replica
        finally:
            replica.in_flight -= 1
            self._limit.release()

    def _settle(self, guess: float, usage: Usage) -> None:
        self._rates.settle(guess, usage)
        if usage != _UNKNOWN:
            self._usage = sum_usage((self._usage, usage))

    def _learn(self, call: Call, replica: Replica, failure: EndpointFailure) -> None:
        """Take from a failed request what it says of the replica, of the load, and for the next try."""
        self._failures[failure.kind] += 1
        self._replicas.failed(replica, failure)
        if failure.overloaded:
            self._limit.refused()
        if failure.kind in REPLICA_KINDS:
            call.failed_at.add(replica)
        if failure.usage != _UNKNOWN:
            call.spent.append(failure.usage)

    def _failed(self, call: Call, failure: EndpointFailure) -> None:
        call.enter("retrying", _now())
        call.last_failure = failure.kind
        failure.requests = call.requests
        failure.usage = sum_usage(call.spent)
        if self._on_failure is not None:
            self._on_failure(failure)


#: A failed request mostly says nothing of its tokens.
_UNKNOWN = Usage()


def _now() -> float:
    return asyncio.get_running_loop().time()


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
    if key:
        add_secret(key)
    return key or None


def _check_url(url: str) -> None:
    """Let httpx see the address, which knows more of host names than `EndpointSpec` does."""
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"The address '{url}' is not a URL ({error}).") from error
