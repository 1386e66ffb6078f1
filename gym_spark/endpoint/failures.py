"""How a model call fails: an HTTP status and the server's own words enter, a typed failure leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from gym_spark.errors import RolloutError

#: Kinds that may pass: the same request can succeed at another moment.
RETRYABLE: Final = frozenset({"unreachable", "dropped", "timeout", "rate_limited", "server_error", "invalid_reply"})

#: Characters kept of a server's message: enough for its sentence, not for an echoed prompt.
MESSAGE_LIMIT: Final = 400

_KIND_OF_STATUS: Final = {
    401: "unauthorized",
    402: "forbidden",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    429: "rate_limited",
}
#: The codes of OpenAI and Azure, and of OpenAI's image and older text models.
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation"})
#: OpenAI's code and llama.cpp's type.
_CONTEXT_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
#: vLLM, SGLang and others say it in words only.
_CONTEXT_WORDS: Final = ("maximum context length", "maximum model length", "model's context length", "context window")


class EndpointFailure(RolloutError):
    """One failed try, or the failure that ended a model call.

    Attributes:
        retry_after_s: The server's hint of how long to wait, in seconds; None where it gave none.
    """

    def __init__(self, kind: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(kind, message, stage="endpoint", terminal=kind not in RETRYABLE)
        self.retry_after_s = retry_after_s


def failure_of_status(status: int, headers: Mapping[str, str], raw: bytes, url: str) -> EndpointFailure:
    """Classify an answer whose status is not 200.

    The kind ``content_filter`` is for the client to turn into a filtered reply.
    """
    codes, words = _server_words(raw)
    location = f" to {headers['location']}" if 300 <= status < 400 and "location" in headers else ""
    message = f"{url} answered {status}{location}" + (f": {words}" if words else "")
    hint = retry_after_s(headers.get("retry-after"), datetime.now(UTC))
    return EndpointFailure(_kind(status, codes, words.lower()), message, retry_after_s=hint)


def _kind(status: int, codes: frozenset[str], words: str) -> str:
    if status in _KIND_OF_STATUS:
        return _KIND_OF_STATUS[status]
    if status >= 500:
        return "server_error"
    if status >= 400:
        if codes & _FILTER_CODES:
            return "content_filter"
        if codes & _CONTEXT_CODES or any(phrase in words for phrase in _CONTEXT_WORDS):
            return "context_length_exceeded"
        return "bad_request"
    return "not_found"  # a redirect: the API is not at this address


def _server_words(raw: bytes) -> tuple[frozenset[str], str]:
    """Return an error body's codes and message: OpenAI's form, vLLM's flat one, FastAPI's `detail`, or plain text."""
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return frozenset(), raw.decode("utf-8", "replace").strip()
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return frozenset(), str(error)
    codes = frozenset(value for key in ("code", "type") if isinstance(value := error.get(key), str))
    return codes, str(error.get("message") or error.get("detail") or json.dumps(error))


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Read a ``Retry-After`` header, seconds or HTTP date (RFC 9110 §10.2.3), as seconds from `now`."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        # A date without a zone is in GMT, the only zone that the format knows.
        seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds()
    # NaN fails both comparisons; infinity is no hint that one can act on.
    return max(seconds, 0.0) if -1e9 < seconds < 1e9 else None


def clean_message(text: str, secret: str | None) -> str:
    """Mask the key's value, then cut: a cut through the key would leave a part of it readable. One line comes out."""
    if secret:
        text = text.replace(secret, "***")
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "…"
