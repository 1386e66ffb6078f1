"""One tiny request before any Spark stage: a wrong key, model name or address ends the command at once."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import httpx

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.retry import without_retries
from gym_spark.endpoint.transport import check_concurrency
from gym_spark.errors import ConfigError, RolloutError

#: Output tokens of the request: the fewest that every server takes (OpenAI's Responses API refuses less than 16).
PREFLIGHT_TOKENS: Final = 16
_TINY: Final[JsonObject] = {"input": "Answer with one word: ready?"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user calls the settings of an endpoint, for the advice in messages."""

    key: str = "--model-api-key-env"
    model: str = "--model"
    url: str = "--model-url"
    api: str = "--api"
    sampling: str = "the sampling settings"


_REMEDIES: Final = {
    "unauthorized": "the key is wrong or missing; check {0.key}",
    "forbidden": "the key may not use this model; check {0.key} and {0.model}",
    "not_found": "the model name or the address is wrong; check {0.model} and {0.url} (it ends in /v1)",
    "unreachable": "the endpoint is down or its address is wrong; start it, or check {0.url}",
    "quota_exhausted": "the account has no credit left; top it up, or check {0.key}",
    "request_too_large_for_quota": (
        "the quota per minute is smaller than one request; raise it, or use another {0.model}"
    ),
    "bad_request": "the server refuses the run's parameters; check {0.model} and {0.sampling}",
    "invalid_reply": "this is no OpenAI-compatible API; check {0.url} (it ends in /v1) and {0.api}",
    "reply_too_large": "this is no OpenAI-compatible API; check {0.url} (it ends in /v1) and {0.api}",
}


async def preflight(
    spec: EndpointSpec,
    sampling: SamplingSpec,
    *,
    api_key: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    settings: Settings = Settings(),
) -> str | None:
    """Send one tiny request with the run's own sampling settings and time limit; never retried.

    The first replica that can be reached is asked: one that is down does not stop a run that has others.

    Returns:
        None where it was answered; a warning where the failure says nothing about the set-up (429, 5xx, timeout), or
        where a replica is down.

    Raises:
        ConfigError: Every request of the run would fail like this one, or its concurrency is out of reach.
    """
    # How many workers will share it only Spark can tell; on one machine they are no more than its cores.
    check_concurrency(spec.concurrency, os.cpu_count() or 1)
    tokens = min(sampling.max_output_tokens or PREFLIGHT_TOKENS, PREFLIGHT_TOKENS)
    tiny = sampling.model_copy(update={"max_output_tokens": tokens})
    failure: RolloutError | None = None
    down = 0
    for url in spec.urls:
        replica = without_retries(spec).model_copy(update={"urls": (url,)})
        async with EndpointClient(replica, concurrency=1, api_key=api_key, transport=transport) as client:
            failure = await _failure(client, tiny)
        if failure is None or failure.kind != "unreachable":
            break
        down += 1
    if failure is not None and failure.kind in _REMEDIES:
        remedy = _REMEDIES[failure.kind].format(settings)
        message = f"The endpoint check failed for model '{spec.model}': {remedy} ({failure})."
        raise ConfigError(message) from failure
    if failure is not None:
        return f"the endpoint check was not conclusive ({failure.kind}: {failure}); going on"
    return f"{down} of {len(spec.urls)} replicas cannot be reached; going on" if down else None


async def _failure(client: EndpointClient, sampling: SamplingSpec) -> RolloutError | None:
    """Send the tiny request, and return what was wrong with it."""
    try:
        await client.generate(_TINY, sampling)
    except RolloutError as failure:
        return failure
    return None


def check_endpoint(
    spec: EndpointSpec,
    sampling: SamplingSpec,
    api_key: str | None = None,
    settings: Settings = Settings(),
) -> str | None:
    """Run :func:`preflight` from plain code; works inside a running event loop (a notebook) too."""

    def check() -> str | None:
        return asyncio.run(preflight(spec, sampling, api_key=api_key, settings=settings))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return check()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(check).result()
