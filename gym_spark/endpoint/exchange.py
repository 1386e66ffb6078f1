"""One HTTP exchange with one replica: a request's body goes out, an `Answer` or a typed failure comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import aiohttp
import httpx

from gym_spark.config import EndpointSpec, JsonObject
from gym_spark.endpoint.failures import EndpointFailure, failure_of_status
from gym_spark.endpoint.masking import mask_bytes
from gym_spark.endpoint.replies import Answer, filtered_answer, reply_from
from gym_spark.endpoint.transport import failure_of_exception

#: Largest answer read. A long reasoning trace with log-probabilities is some MB; a row far above that would not fit
#: into a batch of a Spark worker, and a server that never stops must not fill its memory.
MAX_REPLY_BYTES: Final = 32 * 1024 * 1024

_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "gym-spark",
}
_PATHS: Final = {"chat": "/chat/completions", "responses": "/responses"}


class Exchange:
    """Sends single requests.

    Args:
        spec: The endpoint.
        key: Its key, if it has one.
        transport: What carries the requests.
    """

    def __init__(self, spec: EndpointSpec, key: str | None, transport: httpx.AsyncBaseTransport) -> None:
        self._spec = spec
        # The transport is asked directly. httpx's client on top of it would merge headers, keep cookies and look for
        # redirects and proxies, all of which a model call has no use for, at half the cost of the whole call.
        self._transport = transport
        self._headers = httpx.Headers(_HEADERS | ({"Authorization": f"Bearer {key}"} if key else {}))
        self._urls: dict[str, httpx.URL] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def send(self, base_url: str, content: bytes, token_limit: int | None) -> Answer:
        """Make one model call at one replica. Its clock starts here.

        Args:
            base_url: The replica.
            content: The request's body.
            token_limit: Its bound on output tokens, for the suspicion that an answer was cut off.

        Raises:
            EndpointFailure: With the kind.
        """
        url = base_url + _PATHS[self._spec.api]
        status, headers, raw = await self.request("POST", url, content, self._spec.timeout_s)
        if status != 200:
            failure = failure_of_status(status, headers, raw, url)
            if failure.kind == "content_filter":
                return filtered_answer(str(failure), self._spec.model or "")
            raise failure
        return reply_from(decoded(raw, url), self._spec.api, token_limit=token_limit)

    async def probe(self, base_url: str, timeout_s: float) -> None:
        """Ask a replica for its models, which costs it nothing. Any answer but a server error is a sign of life.

        Raises:
            EndpointFailure: It is still down.
        """
        url = base_url + "/models"
        status, headers, raw = await self.request("GET", url, None, timeout_s)
        if status >= 500:
            raise failure_of_status(status, headers, raw, url)

    async def request(
        self, method: str, url: str, content: bytes | None, timeout_s: float
    ) -> tuple[int, httpx.Headers, bytes]:
        """Send one request, and return the answer's status, headers and body, secrets masked.

        Raises:
            EndpointFailure: It got no answer, or one that is too large.
        """
        parsed = self._urls.get(url) or self._urls.setdefault(url, httpx.URL(url))
        # With its stream given, httpx adds no headers that the transport writes anyway.
        request = httpx.Request(method, parsed, headers=self._headers, stream=httpx.ByteStream(content or b""))
        try:
            # The whole request has one deadline: a server that drips bytes never trips a read timeout.
            async with asyncio.timeout(timeout_s):
                response = await self._transport.handle_async_request(request)
                try:
                    return response.status_code, response.headers, mask_bytes(await _read(response, url))
                finally:
                    await response.aclose()
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise failure_of_exception(error, url, timeout_s) from error


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


def encoded(body: JsonObject) -> bytes:
    """Return a request's body.

    Raises:
        EndpointFailure: It has no JSON form (``bad_request``).
    """
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # NaN, a lone surrogate, a value that JSON has no form for
        raise EndpointFailure("bad_request", f"The request was not sent: it is not valid JSON ({error}).") from error


def decoded(raw: bytes, url: str) -> JsonObject:
    """Return the JSON object that an answer's body holds.

    Raises:
        EndpointFailure: It holds none (``invalid_reply``).
    """
    if not raw.strip():
        raise EndpointFailure("invalid_reply", f"{url} answered 200 with an empty body")
    try:
        # NaN and infinities, which some servers write for log-probabilities, are no JSON: null from here on.
        # Decoded here, for `json` would take UTF-16 and UTF-32 too, in which no secret was masked.
        payload = json.loads(raw.decode("utf-8-sig", "surrogatepass"), parse_constant=lambda _: None)
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
