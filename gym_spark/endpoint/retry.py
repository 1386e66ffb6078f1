"""Retries of one model call: per kind of failure bounded in tries and in time, with back-off that honours hints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from gym_spark.config import EndpointSpec, RetriedKind, RetrySpec
from gym_spark.endpoint.failures import EndpointFailure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the client waits before it tries again; the tests' scale is smaller.

    Attributes:
        backoff_s: First back-off of a call; it doubles with each failure of the same kind. Long enough for a
            restarting proxy, short beside a generation.
        backoff_limit_s: Back-off stops growing here.
        probe_s: First wait before a replica that is down is probed; it doubles too.
        probe_limit_s: Longest wait between two probes: what a recovery costs at most.
        probe_timeout_s: Time limit of a probe, which asks for a list of names.
    """

    backoff_s: float = 0.5
    backoff_limit_s: float = 30.0
    probe_s: float = 1.0
    probe_limit_s: float = 10.0
    probe_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Rule:
    """When a call that failed for a reason that may pass is given up.

    Attributes:
        attempts: Failures of this kind that end it.
        window_s: Seconds from its first failure of this kind within which another try may begin. It does not count from
            the call's start: a long generation must not use it up.
        backs_off: Wait before the next try; without it only a live replica is waited for.
    """

    attempts: int
    window_s: float
    backs_off: bool = True


#: Kind -> rule. A kind that is not here ends the call at its first failure.
RULES: Final[Mapping[RetriedKind, Rule]] = MappingProxyType(
    {
        # Nothing was sent, so calls wait for a probe to reach a replica and spend few tries. An outage of half a minute
        # (a restart) loses nothing, and a dead endpoint is given up well within a minute of its first failure: the
        # window is also how long calls wait while no replica is live.
        "unreachable": Rule(3, 45, backs_off=False),
        # Chance failures: eight in a row are no chance (at 5 % one call in 25 billion), and their back-offs add up to
        # 31 s at least, so a server that answers 500 through an outage of half a minute loses nothing either.
        "dropped": Rule(8, 300),
        "server_error": Rule(8, 300),
        # Each may have cost a generation of `timeout_s` on the GPU, and a prompt that never ends would cost it again.
        "timeout": Rule(3, 900),
        # The server is well and asks for patience: a quota of a minute may turn a call away many times.
        "rate_limited": Rule(100, 900),
        # The answer was paid for and is lost. Another replica, or the same one restarted, may be sane.
        "invalid_reply": Rule(3, 300),
        # As above, and 32 MB each.
        "reply_too_large": Rule(3, 300),
        # File descriptors or memory of this machine: they come back as other connections close.
        "local_resources": Rule(8, 120),
    }
)


def rules_of(spec: EndpointSpec) -> dict[str, Rule]:
    """Return `RULES` with the endpoint's changes."""
    return {kind: _changed(rule, spec.retries.get(kind)) for kind, rule in RULES.items()}


def _changed(rule: Rule, change: RetrySpec | None) -> Rule:
    return replace(rule, **change.model_dump(exclude_none=True)) if change is not None else rule


def without_retries(spec: EndpointSpec) -> EndpointSpec:
    """Return the endpoint with every kind of failure ending a call at once."""
    once = {kind: RetrySpec(attempts=1, window_s=0) for kind in RULES}
    return spec.model_copy(update={"retries": once})


@dataclass(frozen=True, slots=True)
class Retry:
    """Tries a call again by the rule of each failure's kind.

    Attributes:
        rules: Kind -> rule.
        pace: Back-off.
    """

    rules: Mapping[str, Rule]
    pace: Pace

    async def run(self, attempt: Callable[[], Awaitable[T]], on_failure: Callable[[EndpointFailure], None]) -> T:
        """Call `attempt` until it succeeds, and return its result.

        Args:
            attempt: One try; raises `EndpointFailure`.
            on_failure: Told of each failed try, the last included, before it is decided on.

        Raises:
            EndpointFailure: The failure that ended it.
        """
        clock = asyncio.get_running_loop().time
        first: dict[str, float] = {}
        count: dict[str, int] = {}
        while True:
            try:
                return await attempt()
            except EndpointFailure as failure:
                on_failure(failure)
                kind, now = failure.kind, clock()
                count[kind] = count.get(kind, 0) + 1
                wait = self._wait_s(failure, count[kind], now - first.setdefault(kind, now))
            await asyncio.sleep(wait)

    def _wait_s(self, failure: EndpointFailure, failures: int, elapsed_s: float) -> float:
        """Return the wait before the next try, or raise `failure` where there is none.

        Args:
            failure: The newest.
            failures: How many of its kind this call has had.
            elapsed_s: Time since the first of them.
        """
        rule = self.rules.get(failure.kind)
        if rule is None or failure.final or failures >= rule.attempts or elapsed_s >= rule.window_s:
            raise failure
        left_s = rule.window_s - elapsed_s
        hint = failure.retry_after_s or 0.0
        if hint > left_s:
            failure.args = (
                f"{failure}. It asked for a wait of {hint:.0f} s, past the {left_s:.0f} s left of the "
                f"{rule.window_s:.0f} s for such failures (endpoint.retries.{failure.kind}.window_s)",
            )
            raise failure
        if not rule.backs_off:
            return 0.0
        longest = min(self.pace.backoff_s * 2.0 ** (failures - 1), self.pace.backoff_limit_s)
        # Jitter stands on top of the hint too: else all calls that were refused together come back together.
        return min(hint + longest * random.uniform(0.5, 1.0), left_s)
