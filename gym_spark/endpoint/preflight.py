"""One tiny request before any Spark stage: a wrong key, model name or address ends the command at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.errors import ConfigError, RolloutError

#: Output tokens of the request: the fewest that every server takes (OpenAI's Responses API refuses less than 16).
PREFLIGHT_TOKENS: Final = 16
_TINY: Final[JsonObject] = {"input": "Answer with one word: ready?"}

_REMEDIES: Final = {
    "unauthorized": "the key is wrong or missing; check --model-api-key-env",
    "forbidden": "the key may not use this model; check --model-api-key-env and --model",
    "not_found": "the model name or the address is wrong; check --model and --model-url (it ends in /v1)",
    "unreachable": "the endpoint is down or its address is wrong; start it, or check --model-url",
    "bad_request": "the server refuses the run's parameters; check --model and the sampling settings",
    "invalid_reply": "this is no OpenAI-compatible API; check --model-url (it ends in /v1) and --api",
    "reply_too_large": "this is no OpenAI-compatible API; check --model-url (it ends in /v1) and --api",
}


async def preflight(
    spec: EndpointSpec,
    sampling: SamplingSpec,
    *,
    api_key: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> str | None:
    """Send one tiny request with the run's own sampling settings and time limit; never retried.

    Returns:
        None where it was answered; a warning where the failure says nothing about the set-up (429, 5xx, timeout).

    Raises:
        ConfigError: Every request of the run would fail like this one.
    """
    once = spec.model_copy(update={"max_attempts": 1})
    tokens = min(sampling.max_output_tokens or PREFLIGHT_TOKENS, PREFLIGHT_TOKENS)
    async with EndpointClient(once, concurrency=1, api_key=api_key, transport=transport) as client:
        try:
            await client.generate(_TINY, sampling.model_copy(update={"max_output_tokens": tokens}))
        except RolloutError as failure:
            if failure.kind in _REMEDIES:
                message = f"The endpoint check failed for model '{spec.model}': {_REMEDIES[failure.kind]} ({failure})."
                raise ConfigError(message) from failure
            return f"the endpoint check was not conclusive ({failure.kind}: {failure}); going on"
    return None


def check_endpoint(spec: EndpointSpec, sampling: SamplingSpec, api_key: str | None = None) -> str | None:
    """Run :func:`preflight` from plain code; works inside a running event loop (a notebook) too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(preflight(spec, sampling, api_key=api_key))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(preflight(spec, sampling, api_key=api_key))).result()
