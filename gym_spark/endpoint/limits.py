"""How much a client sends: requests in flight, adapted to what the server takes, and requests and tokens per minute."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gym_spark.endpoint.usage import Usage

#: A round of answers (as many as the limit) raises the limit by this share of its top: from the floor to the top takes
#: twenty rounds. A server that can take nearly the declared concurrency turns away one call in twenty meanwhile.
STEP_SHARE: Final = 0.05
#: The limit does not fall below: one request that hangs must not hold up the one whose answer would raise it again.
FLOOR: Final = 2
#: Rates hold over any span, with this many seconds' worth at once: servers check quotas over less than a minute.
BURST_S: Final = 1.0
#: A common rule of thumb for English text; code and other scripts have fewer. Usage corrects the guess.
CHARACTERS_PER_TOKEN: Final = 4


class ConcurrencyLimit:
    """Bounds the requests in flight, first come first served; the bound follows what the server takes.

    Each refused request lowers the limit by one, each answered one raises it by ``step / limit``. So a burst, however
    large, lowers it by the part of it that was refused, once: the limit becomes what the server kept (a whole burst
    refused: the floor). In a round of L requests of which a share r is refused, L becomes ``L (1 - r) + step (1 - r)``:
    a multiplicative decrease and an additive increase as in TCP (Chiu and Jain 1989), but in proportion, as DCTCP does
    (RFC 8257). Halving once per round, against a server that turns away one call in fifty by chance, has a fifth of the
    throughput; one request that is refused for ever would pull the limit of all others to the floor.

    Args:
        top: The declared concurrency.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._floor = float(min(FLOOR, top))
        self._step = max(1.0, STEP_SHARE * top)
        self._limit = float(top)
        self._lowest = top
        self._in_flight = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    @property
    def lowest(self) -> int:
        """The lowest that the limit has been."""
        return self._lowest

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if not self._queue and self._in_flight < self.limit:
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was handed over in the same moment
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._in_flight -= 1
        self._admit()

    def answered(self) -> None:
        """Raise the limit: the server took a request."""
        if self._limit < self._top:
            self._limit = min(float(self._top), self._limit + self._step / self._limit)
            self._admit()

    def refused(self) -> None:
        """Lower the limit: the server said that it has too much to do, or did not answer in time."""
        self._limit = max(self._floor, self._limit - 1)
        self._lowest = min(self._lowest, self.limit)

    def _admit(self) -> None:
        while self._queue and self._in_flight < self.limit:
            turn = self._queue.popleft()
            if not turn.done():  # else its waiter was cancelled
                self._in_flight += 1
                turn.set_result(None)


class _Bucket:
    """A token bucket: fills at a steady rate up to one burst; what is larger than a burst waits for a full bucket."""

    __slots__ = ("_burst", "_filled_at", "_level", "_rate")

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60
        self._burst = max(1.0, self._rate * BURST_S)
        self._level = self._burst
        self._filled_at: float | None = None

    def take(self, amount: float, now: float) -> float:
        """Take `amount`, and return the seconds after which it may be used. Later takers wait longer."""
        since = now - self._filled_at if self._filled_at is not None else 0.0
        self._filled_at = now
        self._level = min(self._burst, self._level + since * self._rate)
        wait = max(0.0, (min(amount, self._burst) - self._level) / self._rate)
        self._level -= amount
        return wait

    def give_back(self, amount: float) -> None:
        """Return what was taken too much; a negative amount takes more."""
        self._level += amount


class RateLimits:
    """Holds requests back to requests and tokens per minute.

    Tokens are guessed before a request (its text, and the mean output so far) and corrected by its usage.

    Args:
        requests_per_minute: Not limited if None.
        tokens_per_minute: Input and output together; not limited if None.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests = _Bucket(requests_per_minute) if requests_per_minute is not None else None
        self._tokens = _Bucket(tokens_per_minute) if tokens_per_minute is not None else None
        self._outputs = 0
        self._answers = 0

    async def admit(self, size: int, token_limit: int | None) -> float:
        """Wait until a request may go out, and return its guessed tokens.

        Args:
            size: Characters or bytes of its body.
            token_limit: Its bound on output tokens, the guess until there is an answer.
        """
        output = self._outputs / self._answers if self._answers else token_limit or 0
        guess = size / CHARACTERS_PER_TOKEN + output
        now = asyncio.get_running_loop().time()
        waits = [0.0]
        if self._requests is not None:
            waits.append(self._requests.take(1, now))
        if self._tokens is not None:
            waits.append(self._tokens.take(guess, now))
        if (wait := max(waits)) > 0:
            await asyncio.sleep(wait)
        return guess

    def settle(self, guess: float, usage: Usage) -> None:
        """Correct the guess of a request by its usage; where that is unknown the guess stands."""
        if usage.output_tokens is not None:
            self._outputs += usage.output_tokens
            self._answers += 1
        if self._tokens is not None and usage.total_tokens is not None:
            self._tokens.give_back(guess - usage.total_tokens)
