"""How a model call fails: an HTTP status and the server's own words enter, a typed failure leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from gym_spark.endpoint.masking import mask
from gym_spark.endpoint.usage import Usage
from gym_spark.errors import RolloutError

#: Kinds that lie in the request: it would fail the same way at any other time, so its row is final. Not `FATAL_KINDS`:
#: with a new key, more credit or the model loaded the same row can be played.
TERMINAL: Final = frozenset(
    {"bad_request", "context_length_exceeded", "request_too_large_for_quota", "reply_too_large", "content_filter"}
)
#: Kinds that lie in the set-up: every other call fails alike until somebody mends it, so a run should start no further.
FATAL_KINDS: Final = frozenset({"unauthorized", "forbidden", "not_found", "quota_exhausted"})
#: Kinds after which the server may have acted on the request. After all others it surely has not: the request never
#: left, or was turned away.
MAYBE_ACTED_ON: Final = frozenset({"dropped", "timeout", "server_error", "invalid_reply", "reply_too_large"})
#: Statuses that say "less, please"; 529 is Anthropic's and some gateways' "overloaded".
OVERLOAD_STATUSES: Final = frozenset({429, 503, 504, 529})

#: Characters kept of a server's message: enough for its sentence, not for an echoed prompt.
MESSAGE_LIMIT: Final = 400

_KIND_OF_STATUS: Final = {
    401: "unauthorized",
    402: "quota_exhausted",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
}
#: The codes of OpenAI and Azure, and of OpenAI's image and older text models.
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation"})
#: OpenAI's code and llama.cpp's type.
_CONTEXT_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
#: vLLM, SGLang and others say it in words only.
_CONTEXT_WORDS: Final = ("maximum context length", "maximum model length", "model's context length", "context window")
#: OpenAI's codes of an account without credit or past its hard limit. Waiting does not help, though the status is 429.
_QUOTA_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
#: OpenAI's words for one request above the per-minute quota. Its type ("tokens") and code ("rate_limit_exceeded") are
#: those of an ordinary "slow down", so only the words tell.
_TOO_LARGE_WORDS: Final = ("request too large", "request is too large")


class EndpointFailure(RolloutError):
    """One failed try, or the failure that ended a model call. Secrets are masked in its message.

    Attributes:
        retry_after_s: The server's hint of how long to wait, in seconds; None where it gave none.
        overloaded: The server said, or showed by not answering in time, that it has too much to do.
        final: The call has ended, whatever the rules of its kind say.
        usage: Tokens that the failed tries are known to have cost.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        overloaded: bool = False,
        final: bool = False,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(kind, clean_message(message), stage="endpoint", terminal=kind in TERMINAL)
        self.retry_after_s = retry_after_s
        self.overloaded = overloaded or kind == "timeout"
        self.final = final
        self.usage = usage or Usage()

    @property
    def maybe_acted_on(self) -> bool:
        """Whether a request that must not happen twice (a tool call that changes something) must not be sent again."""
        return self.kind in MAYBE_ACTED_ON


def failure_of_status(status: int, headers: Mapping[str, str], raw: bytes, url: str) -> EndpointFailure:
    """Classify an answer whose status is not 200.

    The kind ``content_filter`` is for the client to turn into a filtered reply.
    """
    codes, words = _server_words(raw)
    location = f" to {headers['location']}" if 300 <= status < 400 and "location" in headers else ""
    message = f"{url} answered {status}{location}" + (f": {words}" if words else "")
    kind = _kind(status, codes, words.lower())
    overloaded = status in OVERLOAD_STATUSES and kind in ("rate_limited", "server_error")
    return EndpointFailure(kind, message, retry_after_s=_hint_s(headers), overloaded=overloaded)


def _kind(status: int, codes: frozenset[str], words: str) -> str:
    if status == 429:
        if codes & _QUOTA_CODES:
            return "quota_exhausted"
        return "request_too_large_for_quota" if any(said in words for said in _TOO_LARGE_WORDS) else "rate_limited"
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


def _hint_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that the headers ask for; OpenAI and Azure also say it in milliseconds, which is more exact."""
    in_ms = retry_after_s(headers.get("retry-after-ms"), datetime.now(UTC))
    return in_ms / 1000 if in_ms is not None else retry_after_s(headers.get("retry-after"), datetime.now(UTC))


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


def clean_message(text: str) -> str:
    """Mask secrets, then cut: a cut through a secret would leave a part of it readable. One line comes out."""
    # UTF-16 that is read as UTF-8 has a NUL between any two letters of a secret.
    text = " ".join(mask(text.replace("\0", "")).split())
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "…"
