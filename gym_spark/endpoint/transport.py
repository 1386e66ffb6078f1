"""httpx's transport over aiohttp, set up for hundreds of requests in flight, and what its exceptions mean.

httpx's own pool scans all connections for each request: its throughput collapses above a hundred in flight.
"""

from __future__ import annotations

import resource

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.errors import ConfigError

#: Time to open a connection. Without it a black-holed address would hold a request for its whole time limit.
CONNECT_TIMEOUT_S = 10.0
#: Idle connections are dropped before the server does it: uvicorn, under vLLM and SGLang, closes them after 5 s, and
#: a POST sent into that moment fails as `dropped`.
KEEPALIVE_S = 4.0
#: Descriptors that the process needs besides its connections: Spark's sockets, libraries, files.
SPARE_DESCRIPTORS = 64


def aiohttp_transport(concurrency: int) -> httpx.AsyncBaseTransport:
    """Build the transport. The client's semaphore bounds the requests in flight; the pool below it has no limit.

    Raises:
        ConfigError: The process may not open that many connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < concurrency + SPARE_DESCRIPTORS:
        raise ConfigError(
            f"{concurrency} requests in flight need {concurrency + SPARE_DESCRIPTORS} open files, and this process may "
            f"open {soft}; lower --concurrency or raise `ulimit -n`."
        )
    tls = httpx.create_ssl_context()

    def session() -> aiohttp.ClientSession:
        # limit=0 is "no limit"; left out, aiohttp would silently queue beyond 100. No cookies: model calls have none,
        # and a shared jar costs time on every request.
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=KEEPALIVE_S)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    # The session is made at the first request, inside the loop that it will belong to.
    return AiohttpTransport(verify=tls, client=session)


def failure_of_exception(error: Exception, url: str, timeout_s: float) -> EndpointFailure:
    """Classify what the transport raised; the mapped httpx type alone does not tell (a disconnect is `ConnectTimeout`).

    Args:
        error: An httpx, aiohttp or operating system error.
        url: Address of the request, for the message.
        timeout_s: The request's time limit, for the message.
    """
    cause = error.__cause__ if isinstance(error.__cause__, aiohttp.ClientError) else error
    reason = str(cause) or type(cause).__name__
    # aiohttp's connector errors are kinds of its "client OS error", as a reset connection is: the order matters.
    if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | httpx.ConnectError):
        return EndpointFailure("unreachable", f"{url} cannot be reached: {reason}")
    if isinstance(cause, httpx.ConnectTimeout):
        return EndpointFailure("unreachable", f"{url} cannot be reached: {reason}")
    if isinstance(cause, TimeoutError | httpx.TimeoutException):
        return EndpointFailure("timeout", f"{url} did not answer within {timeout_s:g} s")
    if isinstance(cause, httpx.DecodingError | aiohttp.ClientResponseError):
        return EndpointFailure("invalid_reply", f"{url} gave no readable HTTP answer: {reason}")
    return EndpointFailure("dropped", f"{url} closed the connection before the answer was whole: {reason}")
