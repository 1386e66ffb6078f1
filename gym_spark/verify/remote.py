"""`remote`: a NeMo Gym resources server judges, over its ``/verify``."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import httpx
from pydantic import Field

from gym_spark.config import EndpointSpec, JsonObject, RetriedKind, RetrySpec
from gym_spark.endpoint.exchange import Exchange, decoded, encoded
from gym_spark.endpoint.failures import failure_of_status
from gym_spark.endpoint.retry import Pace, Retry, rules_of
from gym_spark.endpoint.transport import aiohttp_transport
from gym_spark.endpoint.wire import without_unset
from gym_spark.verify.base import Judgeable, JudgeFailed, Mode, Verdict
from gym_spark.verify.judging import REPLY_CHARS, Ask, JudgeVerifier

#: Fields of a reply that say how to take its reward.
_ABOUT: Final = (
    "reward",
    "extracted_answer",
    "mask_sample",
    "failure_kind",
    "failure_reason",
    "invalid_judge_response",
)
#: Seconds in which the server must say whether it may judge stored rollouts.
_MODE_S: Final = 10.0
_MODES: Final[dict[Any, Mode]] = {"stateless": "stateless", "unsupported": "live_session"}


class Remote(JudgeVerifier):
    """POST each rollout to a server's ``/verify``: the input row and the answer, never an old reward.

    The reply's `reward` is the reward. Its other numbers (and booleans, as 0 and 1) are named scores, unless they only
    repeat the row. A reply that says itself that its reward is no measurement, as NeMo Gym's do where their own judge
    failed, is ``judge_failed``, and so is one without a reward.

    Whether the server may judge stored rollouts, its ``/reverify_mode`` tells.

    Args:
        url: Of the server, without ``/verify``.
        reverify_mode: Overrules what the server says: ``stateless`` if a reward depends on the row alone.
        timeout_s: Seconds that one request may take.
        concurrency: Requests in flight over the whole run.
        retries: Changes to the retry rules, as in `endpoint.retries`.
    """

    name = "remote"
    version = "1"
    needs_response = True
    needs_prompt = True
    needs_judge = False

    def __init__(
        self,
        *,
        url: str,
        reverify_mode: Literal["stateless", "live_session", "unknown"] | None = None,
        timeout_s: Annotated[float, Field(gt=0)] = 600.0,
        concurrency: Annotated[int, Field(ge=1)] = 32,
        retries: dict[RetriedKind, RetrySpec] | None = None,
    ) -> None:
        # Checked as an endpoint's address is, which also keeps keys out of it.
        self._server = EndpointSpec(urls=(url,), timeout_s=timeout_s, retries=retries or {})
        self._url = self._server.urls[0]
        self._mode: Mode | None = reverify_mode
        self.concurrency = concurrency
        rules = rules_of(self._server)
        # Other requests wait for a probe to reach the server again; here time must do.
        rules["unreachable"] = replace(rules["unreachable"], backs_off=True)
        self._retry = Retry(rules, Pace())
        self._exchange: Exchange | None = None

    @property
    def mode(self) -> Mode:  # type: ignore[override]  # the server's own, so it cannot stand in the class
        """Whether stored rollouts can be judged; the server is asked once, and is ``unknown`` if it does not say."""
        if self._mode is None:
            try:
                answer = httpx.get(f"{self._url}/reverify_mode", timeout=_MODE_S, trust_env=False)
                self._mode = _MODES.get(answer.raise_for_status().json(), "unknown")
            except (httpx.HTTPError, ValueError, TypeError):
                self._mode = "unknown"
        return self._mode

    async def aclose(self) -> None:
        """Close the connections."""
        if self._exchange is not None:
            await self._exchange.aclose()

    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Ask the server."""
        if item.response is None or item.request is None:
            raise ValueError("the rollout has no stored response, or its task no request")
        # As in a request, null is a value that servers refuse where a field is only not set.
        asked = without_unset(item.request)
        row = item.verifier_inputs | {"responses_create_params": asked, "response": item.response}
        row.pop("reward", None)
        content = encoded(row)
        return _verdict(await self._retry.run(lambda: self._post(content), lambda _: None), row)

    async def _post(self, content: bytes) -> JsonObject:
        if self._exchange is None:  # made here, inside the loop that it belongs to
            self._exchange = Exchange(self._server, None, aiohttp_transport(self.concurrency))
        url = f"{self._url}/verify"
        status, headers, raw = await self._exchange.request("POST", url, content, self._server.timeout_s)
        if status != 200:
            raise failure_of_status(status, headers, raw, url)
        return decoded(raw, url)


def _verdict(reply: JsonObject, row: JsonObject) -> Verdict:
    """Return what a reply to a row says."""
    _check_measured(reply)
    reward = reply.get("reward")
    if not isinstance(reward, int | float) or isinstance(reward, bool) or not math.isfinite(reward):
        raise JudgeFailed("unparseable", f"the server's reply has the reward {reward!r}, which is no number")
    # A server sends the row back with its own fields added.
    own = {key: value for key, value in reply.items() if key not in _ABOUT and (key not in row or row[key] != value)}
    own = {key: value for key, value in own.items() if key not in ("response", "responses_create_params")}
    scores = {key: float(value) for key, value in own.items() if _is_number(value) and not key.startswith("_")}
    evidence = {key: value for key, value in own.items() if key not in scores and value is not None}
    told = {"reply": evidence} if evidence and len(json.dumps(evidence)) <= REPLY_CHARS else {}
    extracted = reply.get("extracted_answer")
    if extracted is not None and not isinstance(extracted, str):
        extracted = json.dumps(extracted)
    return Verdict.scored(reward, extracted_answer=extracted, scores=scores, detail=told)


def _check_measured(reply: JsonObject) -> None:
    """Raise `JudgeFailed` where the server says that its reward is no measurement."""
    kind = reply.get("_ng_failure_class") or ("judge_invalid" if reply.get("invalid_judge_response") else None)
    if kind is None and reply.get("_ng_no_persist"):
        kind = "no_persist"
    if kind is None and reply.get("mask_sample"):
        kind = reply.get("failure_kind") or "masked"
    if kind is not None:
        why = reply.get("failure_reason") or reply.get("_ng_failure_judge_error") or "it gives no reason"
        raise JudgeFailed(str(kind), f"the server says that its reward is no measurement ({kind}: {why})")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
