"""What a client is doing and has done, for a worker's heartbeat. No prompts, no answers, no secrets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from gym_spark.endpoint.replicas import Replica
from gym_spark.endpoint.usage import Usage

#: ``waiting`` for a live replica, the rate limits or a slot; ``in_flight`` at a replica; ``retrying`` backs off.
CallState = Literal["waiting", "in_flight", "retrying"]
#: Open calls that a heartbeat names: the stalled ones are among the oldest.
OLDEST_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class OpenCall:
    """One model call that has not ended.

    Attributes:
        session: The rollout it belongs to, as the caller named it.
        state: What it is doing.
        age_s: Since it began.
        state_age_s: Since it has been in this state: the age of its request, if it is in flight.
        requests: HTTP requests sent for it.
        last_failure: Kind of its newest failure; None if it had none.
    """

    session: str | None
    state: CallState
    age_s: float
    state_age_s: float
    requests: int
    last_failure: str | None


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A client at one moment.

    Attributes:
        in_flight: Requests at a replica.
        waiting: Calls that wait for a live replica, the rate limits or a slot.
        retrying: Calls that back off.
        limit: Requests that may be in flight now.
        lowest_limit: The lowest that the limit has been.
        live_replicas: How many replicas get calls.
        outage_s: For how long none has; 0 while one does.
        given_up: No replica came back in time: calls now fail without a request, until a probe succeeds. Whoever has
            more calls to make should stop taking work, for it would only be written off.
        requests: HTTP requests sent; probes of replicas are not counted.
        retries: Those of them that were not a call's first.
        failures: Failed requests by kind, retried or not.
        usage: Tokens so far, of failed requests too where they are known.
        oldest: The oldest open calls, oldest first.
    """

    in_flight: int
    waiting: int
    retrying: int
    limit: int
    lowest_limit: int
    live_replicas: int
    outage_s: float
    given_up: bool
    requests: int
    retries: int
    failures: dict[str, int]
    usage: Usage
    oldest: tuple[OpenCall, ...]


@dataclass(slots=True, eq=False)
class Call:
    """What the tries of one model call share.

    Attributes:
        content: The request's body.
        token_limit: Its bound on output tokens.
        session: The rollout it belongs to.
        began: When, on the loop's clock.
        since: When it came into its state.
        state: What it is doing.
        requests: HTTP requests sent.
        queue_s: Time in the state ``waiting``.
        last_failure: Kind of its newest failure.
        spent: Tokens that its failed tries are known to have cost, one entry a try.
        failed_at: Replicas that failed it.
    """

    content: bytes
    token_limit: int | None
    session: str | None
    began: float
    since: float
    state: CallState = "waiting"
    requests: int = 0
    queue_s: float = 0.0
    last_failure: str | None = None
    spent: list[Usage] = field(default_factory=list)
    failed_at: set[Replica] = field(default_factory=set)

    def enter(self, state: CallState, now: float) -> None:
        """Change the state, and keep account of the time spent waiting."""
        if self.state == "waiting":
            self.queue_s += now - self.since
        self.state, self.since = state, now


def oldest_of(calls: Iterable[Call], now: float) -> tuple[OpenCall, ...]:
    """Describe the first of `calls`, which stand in the order in which they began."""
    return tuple(
        OpenCall(
            session=call.session,
            state=call.state,
            age_s=now - call.began,
            state_age_s=now - call.since,
            requests=call.requests,
            last_failure=call.last_failure,
        )
        for call in islice(calls, OLDEST_SHOWN)
    )
