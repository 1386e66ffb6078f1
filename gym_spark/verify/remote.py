"""`remote`: a NeMo Gym resources server judges, over its ``/verify``."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import aiohttp
import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gym_spark.config import JsonObject, plain_url
from gym_spark.endpoint.transport import aiohttp_transport
from gym_spark.verify.base import Judgeable, JudgeFailed, Mode, Verdict
from gym_spark.verify.judging import Ask, JudgeVerifier

#: What may pass at another try: no connection, a dropped one, a time limit, an HTTP status.
_PASSING: Final = (httpx.HTTPError, aiohttp.ClientError, OSError, TimeoutError)
_TRIES: Final = 3
#: Fields of a reply that are no scores of their own.
_OWN = ("reward", "extracted_answer", "response", "responses_create_params")


class Remote(JudgeVerifier):
    """POST each rollout to a server's ``/verify``: the input row with the answer, never its old reward.

    The reply's `reward` is the reward, its other numbers are named scores. A reply that names a failure class, or is no
    such object, is ``judge_failed``. Whether the server may judge stored rollouts at all, it does not say: say it here.

    Args:
        url: Of the server, without ``/verify``.
        reverify_mode: ``stateless`` if a reward depends on the row alone.
        timeout_s: Seconds that one request may take.
        concurrency: Requests in flight of each worker.
    """

    name = "remote"
    needs_response = True
    needs_prompt = True
    needs_judge = False

    def __init__(
        self,
        *,
        url: str,
        reverify_mode: Literal["stateless", "judge", "live_session", "unknown"] = "unknown",
        timeout_s: float = 60.0,
        concurrency: int = 16,
    ) -> None:
        self.mode: Mode = reverify_mode  # type: ignore[misc]  # the server's, so each instance has its own
        if concurrency < 1 or timeout_s <= 0:
            raise ValueError("concurrency and timeout_s must be positive")
        self.concurrency = concurrency
        self._url = plain_url(url)
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Ask the server."""
        row = item.verifier_inputs | {"responses_create_params": item.request or {}, "response": item.response}
        row.pop("reward", None)
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_PASSING),
                stop=stop_after_attempt(_TRIES),
                wait=wait_random_exponential(max=5.0),
                reraise=True,
            ):
                with attempt:
                    reply = await self._posted(row)
            reward = reply["reward"]
        except (*_PASSING, ValueError, KeyError, TypeError) as error:
            message = f"the server gave no verdict ({type(error).__name__}: {error})"
            raise JudgeFailed("http", message) from error
        if failure := reply.get("_ng_failure_class"):
            raise JudgeFailed("server", f"the server reports {failure}")
        extracted = reply.get("extracted_answer")
        scores = {
            name: float(value)
            for name, value in reply.items()
            if isinstance(value, int | float) and name not in _OWN and not name.startswith("_")
        }
        return Verdict.scored(reward, extracted_answer=None if extracted is None else str(extracted), scores=scores)

    async def _posted(self, row: JsonObject) -> JsonObject:
        if self._client is None:
            transport = aiohttp_transport(self.concurrency)
            self._client = httpx.AsyncClient(transport=transport, base_url=self._url)
        # The transport leaves time limits to its caller.
        async with asyncio.timeout(self._timeout_s):
            answer = await self._client.post("/verify", json=row)
        reply = answer.raise_for_status().json()
        if not isinstance(reply, dict):
            raise TypeError(f"its reply is {type(reply).__name__}")
        return reply
