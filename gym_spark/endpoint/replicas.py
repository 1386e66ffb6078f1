"""The replicas of an endpoint: which one a try goes to, which are down, and when they are back.

The rule: a replica is down at once where it cannot be reached, and after `STREAK` failures in a row that are its own
(dropped, timed out, 5xx, an unreadable or endless answer). While it is down it gets one cheap request at a time, a
probe. Answered, it is live again on probation: its first failure takes it down again, and beside proven replicas it
gets one call at a time until one succeeds.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.retry import Pace

#: Failures in a row that take a replica down. With 7 % of chance failures that is one false alarm in half a million
#: calls, which costs the second to the first probe.
STREAK: Final = 5
#: Kinds that are the replica's own, so that the call is better tried on another one. Not `rate_limited`: a rollout
#: that moves loses its cached prefix, and the other replica is mostly behind the same quota.
REPLICA_KINDS: Final = frozenset(
    {"unreachable", "dropped", "timeout", "server_error", "invalid_reply", "reply_too_large"}
)
#: Sessions whose replica is remembered. More than any worker plays at a time; the oldest are forgotten.
SESSIONS_KEPT: Final = 16_384


@dataclass(slots=True, eq=False)
class Replica:
    """One address, and what is known of it.

    Attributes:
        url: Base address, ending in ``/v1``.
        in_flight: Requests that it is answering.
        streak: Failures of its own since its last answer.
        live: It gets calls.
        proven: It has answered a call since it was last down.
        probe_wait_s: Wait before its next probe.
        last_failure: What took it down, or its newest failed probe.
        chosen: When it was last chosen, in choices; breaks ties.
    """

    url: str
    probe_wait_s: float
    in_flight: int = 0
    streak: int = 0
    live: bool = True
    proven: bool = True
    last_failure: EndpointFailure | None = None
    chosen: int = 0


class Replicas:
    """Chooses among the live replicas, and probes those that are down.

    Args:
        urls: Base addresses.
        probe: Sends one cheap request; raises `EndpointFailure`.
        pace: Waits between probes.
        outage_s: How long calls wait while no replica is live, counted from the moment when the last one went down.
    """

    def __init__(
        self, urls: Sequence[str], probe: Callable[[str], Awaitable[None]], pace: Pace, outage_s: float
    ) -> None:
        self._all = [Replica(url, pace.probe_s) for url in urls]
        self._probe = probe
        self._pace = pace
        self._outage_s = outage_s
        self._choices = 0
        self._sessions: OrderedDict[str, Replica] = OrderedDict()
        self._probes: set[asyncio.Task[None]] = set()
        self._any_live = asyncio.Event()
        self._any_live.set()
        self._down_since = 0.0

    @property
    def live(self) -> tuple[str, ...]:
        """Addresses of the replicas that get calls."""
        return tuple(replica.url for replica in self._all if replica.live)

    def outage_s(self, now: float) -> float:
        """Return for how many seconds, at `now`, no replica has been live; 0 while one is."""
        return 0.0 if self._any_live.is_set() else now - self._down_since

    def given_up(self, now: float) -> bool:
        """Say whether no replica has come back within the time that calls wait."""
        return not self._any_live.is_set() and self.outage_s(now) >= self._outage_s

    async def wait_live(self) -> None:
        """Return as soon as a replica is live.

        Raises:
            EndpointFailure: None came back in time. It is final, and of the kind of the newest failed probe.
        """
        while not self._any_live.is_set():
            left_s = self._down_since + self._outage_s - _now()
            if left_s <= 0:
                raise self._outage()
            try:
                async with asyncio.timeout(left_s):
                    await self._any_live.wait()
            except TimeoutError:
                continue  # counted again above: it may have come back and gone since

    def _outage(self) -> EndpointFailure:
        last = next(replica.last_failure for replica in self._all if replica.last_failure is not None)
        who = "the endpoint has" if len(self._all) == 1 else f"all {len(self._all)} replicas have"
        return EndpointFailure(last.kind, f"{who} been down for {self.outage_s(_now()):.0f} s: {last}", final=True)

    def choose(self, session: str | None, avoid: Collection[Replica]) -> Replica | None:
        """Return the replica for the next try, or None where none is live.

        Args:
            session: A rollout's name: its calls stay on one replica while that lives.
            avoid: Replicas that failed this call; taken only where no other is live.
        """
        live = [replica for replica in self._all if replica.live]
        if not live:
            return None
        if len(self._all) == 1:
            return live[0]
        fresh = [replica for replica in live if replica not in avoid] or live
        known = self._sessions.get(session) if session is not None else None
        if known is None or known not in fresh:
            steady = [replica for replica in fresh if replica.proven or not replica.in_flight] or fresh
            known = min(steady, key=lambda replica: (replica.in_flight, replica.chosen))
            self._choices += 1
            known.chosen = self._choices
        if session is not None:
            self._sessions[session] = known
            self._sessions.move_to_end(session)
            if len(self._sessions) > SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        return known

    def answered(self, replica: Replica) -> None:
        """Take note of an answer, an error that lies in the request included: the replica works."""
        replica.streak = 0
        if replica.live:  # an answer to what was sent before it went down does not bring it back
            replica.proven = True
            replica.probe_wait_s = self._pace.probe_s

    def failed(self, replica: Replica, failure: EndpointFailure) -> None:
        """Take note of a failed try."""
        if failure.kind not in REPLICA_KINDS:
            if failure.kind != "local_resources":
                self.answered(replica)
            return
        replica.streak += 1
        if replica.live and (failure.kind == "unreachable" or not replica.proven or replica.streak >= STREAK):
            self._take_down(replica, failure)

    def _take_down(self, replica: Replica, failure: EndpointFailure) -> None:
        replica.live = replica.proven = False
        replica.last_failure = failure
        if not any(other.live for other in self._all):
            self._any_live.clear()
            self._down_since = _now()
        task = asyncio.get_running_loop().create_task(self._probe_until_live(replica))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _probe_until_live(self, replica: Replica) -> None:
        while not replica.live:
            # The workers of a run must not probe in step.
            await asyncio.sleep(replica.probe_wait_s * random.uniform(0.8, 1.2))
            replica.probe_wait_s = min(replica.probe_wait_s * 2, self._pace.probe_limit_s)
            try:
                await self._probe(replica.url)
            except EndpointFailure as failure:
                replica.last_failure = failure
            else:
                replica.live = True
                replica.streak = 0
                self._any_live.set()

    async def aclose(self) -> None:
        """Stop probing."""
        for task in self._probes:
            task.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
