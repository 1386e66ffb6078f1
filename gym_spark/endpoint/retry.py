"""Retries of one model call: bounded in tries and in time, with back-off that honours the server's newest hint."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gym_spark.endpoint.failures import EndpointFailure

T = TypeVar("T")

#: First back-off; it doubles with each try. Long enough for a restarting proxy, short beside a generation.
BACKOFF_S = 0.5
#: Back-off stops growing here: half of the default window.
BACKOFF_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The one rule for all kinds that may pass: at most `max_attempts` tries, the last begun within `window_s` seconds.

    The window counts from the first failure, so that a long generation does not use it up.

    Attributes:
        max_attempts: Tries, the first included.
        window_s: Seconds from the first failure within which another try may begin.
        sleep: Waits the given seconds; tests pass their own.
        clock: Monotonic time in seconds; tests pass their own.
    """

    max_attempts: int
    window_s: float
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    async def run(self, attempt: Callable[[], Awaitable[T]], on_failure: Callable[[EndpointFailure], None]) -> T:
        """Call `attempt` until it succeeds, and return its result.

        Args:
            attempt: One try; raises `EndpointFailure`.
            on_failure: Told of each failed try, the last included.

        Raises:
            EndpointFailure: The failure that ended it, with `requests` set to the tries made.
        """
        first_failure: float | None = None
        tries = 0
        while True:
            tries += 1
            try:
                return await attempt()
            except EndpointFailure as failure:
                failure.requests = tries
                on_failure(failure)
                if failure.terminal or tries >= self.max_attempts:
                    raise
                now = self.clock()
                first_failure = now if first_failure is None else first_failure
                wait = self._wait_s(failure, tries, self.window_s - (now - first_failure))
            await self.sleep(wait)

    def _wait_s(self, failure: EndpointFailure, tries: int, left_s: float) -> float:
        """Return the wait before the next try, or raise `failure` where no further try fits into the window."""
        hint = failure.retry_after_s or 0.0
        if hint > left_s:
            failure.args = (
                f"{failure}. It asked for a wait of {hint:.0f} s, past the {max(left_s, 0):.0f} s left of the retry "
                f"window of {self.window_s:.0f} s (retry_window_s)",
            )
            raise failure
        if left_s <= 0:
            raise failure
        backoff = min(BACKOFF_S * 2.0 ** (tries - 1), BACKOFF_LIMIT_S) * random.uniform(0.5, 1.0)
        # Jitter stands on top of the hint too: else all calls that were refused together come back together.
        return min(hint + backoff, left_s)
