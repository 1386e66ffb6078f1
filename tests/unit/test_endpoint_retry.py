"""Retries are bounded in tries and time, and wait as long as the server asks. No test here takes real time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from gym_spark.endpoint.failures import EndpointFailure, clean_message, failure_of_status, retry_after_s
from gym_spark.endpoint.retry import Retry


class Clock:
    """Time that passes only when somebody sleeps or a try takes long."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def run(
    failures: Sequence[EndpointFailure], clock: Clock, *, max_attempts: int = 3, window_s: float = 60, try_s: float = 0
) -> tuple[str | EndpointFailure, list[str]]:
    """Fail with each of `failures` in turn, then succeed; return the outcome and the kinds that were reported."""
    left = list(failures)
    seen: list[str] = []

    async def attempt() -> str:
        clock.now += try_s
        if left:
            raise left.pop(0)
        return "answer"

    retry = Retry(max_attempts, window_s, sleep=clock.sleep, clock=lambda: clock.now)
    try:
        return asyncio.run(retry.run(attempt, lambda failure: seen.append(failure.kind))), seen
    except EndpointFailure as failure:
        return failure, seen


def test_p10_each_wait_is_at_least_the_newest_hint() -> None:
    clock = Clock()
    limited = [EndpointFailure("rate_limited", "slow down", retry_after_s=hint) for hint in (2.0, 5.0)]
    outcome, seen = run(limited, clock)
    assert outcome == "answer"
    assert seen == ["rate_limited", "rate_limited"]
    assert clock.sleeps[0] > 2
    assert clock.sleeps[1] > 5


def test_p10_jitter_keeps_refused_calls_from_coming_back_together() -> None:
    clocks = [Clock() for _ in range(10)]
    for clock in clocks:
        run([EndpointFailure("rate_limited", "slow down", retry_after_s=2.0)], clock)
    assert len({clock.sleeps[0] for clock in clocks}) > 1


def test_p08_tries_are_bounded_and_each_failure_is_reported() -> None:
    clock = Clock()
    outcome, seen = run([EndpointFailure("unreachable", "refused") for _ in range(9)], clock)
    assert isinstance(outcome, EndpointFailure)
    assert (outcome.kind, outcome.requests, seen) == ("unreachable", 3, ["unreachable"] * 3)
    assert 0.25 <= clock.sleeps[0] <= 0.5 <= clock.sleeps[1] <= 1.0


def test_p08_the_window_counts_from_the_first_failure_not_from_the_start() -> None:
    clock = Clock()
    outcome, seen = run([EndpointFailure("timeout", "slow")], clock, try_s=600, window_s=60)
    assert outcome == "answer"
    outcome, seen = run([EndpointFailure("timeout", "slow") for _ in range(9)], clock, try_s=600, max_attempts=9)
    assert isinstance(outcome, EndpointFailure)
    assert len(seen) == outcome.requests == 2


def test_a_hint_past_the_window_ends_the_call_at_once_and_says_so() -> None:
    clock = Clock()
    outcome, _ = run([EndpointFailure("rate_limited", "slow down", retry_after_s=90.0)], clock)
    assert isinstance(outcome, EndpointFailure)
    assert clock.sleeps == []
    assert "90 s" in str(outcome)
    assert "retry_window_s" in str(outcome)


def test_a_window_of_zero_means_no_retry() -> None:
    outcome, seen = run([EndpointFailure("dropped", "gone")], Clock(), window_s=0)
    assert isinstance(outcome, EndpointFailure)
    assert seen == ["dropped"]


@pytest.mark.parametrize("kind", ["bad_request", "unauthorized", "not_found", "context_length_exceeded"])
def test_terminal_kinds_are_not_retried(kind: str) -> None:
    outcome, seen = run([EndpointFailure(kind, "no")], Clock())
    assert isinstance(outcome, EndpointFailure)
    assert (outcome.terminal, outcome.requests, seen) == (True, 1, [kind])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("status", "raw", "kind"),
    [
        (429, b'{"error": {"message": "slow down"}}', "rate_limited"),
        (500, b"oops", "server_error"),
        (503, b"", "server_error"),
        (400, b'{"error": {"message": "bad"}}', "bad_request"),
        (422, b'{"detail": [{"loc": ["body"]}]}', "bad_request"),
        (413, b"too large", "bad_request"),
        (401, b"", "unauthorized"),
        (403, b"", "forbidden"),
        (404, b"", "not_found"),
        (302, b"", "not_found"),
        (400, b'{"error": {"message": "m", "code": "context_length_exceeded"}}', "context_length_exceeded"),
        (400, b'{"error": {"code": 400, "type": "exceed_context_size_error"}}', "context_length_exceeded"),
        (
            400,
            b'{"object": "error", "message": "This model\'s maximum context length is 9"}',
            "context_length_exceeded",
        ),
        (400, b'{"error": {"code": "content_filter", "message": "no"}}', "content_filter"),
        (400, b'"text"', "bad_request"),
        (400, b"\xff\xfe", "bad_request"),
    ],
)
def test_status_and_body_give_the_kind(status: int, raw: bytes, kind: str) -> None:
    assert failure_of_status(status, {}, raw, "http://h/v1").kind == kind


def test_the_key_is_masked_before_the_message_is_cut() -> None:
    message = clean_message("x" * 395 + "sk-secret-value and\nmore", "sk-secret-value")
    assert "sk-" not in message
    assert "\n" not in message
    assert len(message) == 401
