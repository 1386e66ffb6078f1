"""httpx's transport interface over aiohttp's connections, for hundreds of requests in flight; what its exceptions mean.

httpx's own pool scans all connections for each request: its throughput collapses above a hundred in flight. Tests put
another transport (`httpx.MockTransport`) in this one's place.
"""

from __future__ import annotations

import errno
import resource
import ssl
from collections.abc import AsyncIterator

import aiohttp
import httpx
from yarl import URL

from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.errors import ConfigError

#: Time to open a connection. Without it a black-holed address would hold a request for its whole time limit.
CONNECT_TIMEOUT_S = 10.0
#: Idle connections are dropped before the server does it: uvicorn, under vLLM and SGLang, closes them after 5 s, and
#: a POST sent into that moment fails as `dropped`.
KEEPALIVE_S = 4.0
#: Descriptors that the process needs besides its connections: Spark's sockets, libraries, files.
SPARE_DESCRIPTORS = 64
#: This machine ran out of descriptors or memory: no fault of the server.
LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def check_concurrency(concurrency: int, processes: int = 1) -> None:
    """Make sure that processes like this one may open a connection for each request in flight.

    Args:
        concurrency: Requests in flight, over all processes.
        processes: How many share them.

    Raises:
        ConfigError: They may not.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = -(-concurrency // processes) + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise ConfigError(
            f"{concurrency} requests in flight need {needed} open files per process, and this process may open {soft}; "
            "lower --concurrency or raise `ulimit -n`."
        )


def aiohttp_transport(concurrency: int) -> httpx.AsyncBaseTransport:
    """Build the transport. The client bounds the requests in flight; the pool below it has no limit.

    Raises:
        ConfigError: The process may not open that many connections.
    """
    check_concurrency(concurrency)
    return _AiohttpTransport(httpx.create_ssl_context())


class _AiohttpTransport(httpx.AsyncBaseTransport):
    """Carries requests whose body is bytes. Raises aiohttp's own errors: their httpx names would tell less."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        # Made at the first request, inside the loop that it will belong to. limit=0 is "no limit"; left out, aiohttp
        # would silently queue beyond 100. No cookies: model calls have none, and a shared jar costs time.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=KEEPALIVE_S)
        return aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=self._timeout, auto_decompress=False
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._session is None:
            self._session = self._open()
        answer = await self._session.request(
            request.method,
            URL(str(request.url), encoded=True),
            # From the raw form: as a mapping, httpx's headers look for their encoding at each access.
            headers=[(name.decode("ascii"), value.decode("ascii")) for name, value in request.headers.raw],
            data=await request.aread() or None,
            allow_redirects=False,
        )
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    """An answer's body, as it comes; its connection goes back to the pool once it is read, and is cut off otherwise."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.content.iter_any():
            yield chunk

    async def aclose(self) -> None:
        self._answer.close()


def failure_of_exception(error: Exception, url: str, timeout_s: float) -> EndpointFailure:
    """Classify what a transport raised: aiohttp's errors, or those of httpx's transports.

    Args:
        error: An httpx, aiohttp or operating system error.
        url: Address of the request, for the message.
        timeout_s: The request's time limit, for the message.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno in LOCAL_ERRORS:
        return EndpointFailure("local_resources", f"this machine cannot open a connection to {url}: {reason}")
    # aiohttp's connector errors are kinds of its "client OS error", as a reset connection is: the order matters.
    unreachable = (
        aiohttp.ClientConnectorError,
        aiohttp.ConnectionTimeoutError,
        httpx.ConnectError,
        httpx.ConnectTimeout,
    )
    if isinstance(error, unreachable):
        return EndpointFailure("unreachable", f"{url} cannot be reached: {reason}")
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return EndpointFailure("timeout", f"{url} did not answer within {timeout_s:g} s")
    if isinstance(error, httpx.DecodingError | aiohttp.ClientResponseError):
        return EndpointFailure("invalid_reply", f"{url} gave no readable HTTP answer: {reason}")
    return EndpointFailure("dropped", f"{url} closed the connection before the answer was whole: {reason}")
