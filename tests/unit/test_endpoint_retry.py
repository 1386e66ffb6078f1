"""Retries are bounded in tries and time, and wait as long as the server asks. No test here takes real time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from gym_spark.config import EndpointSpec, RetrySpec
from gym_spark.endpoint.failures import EndpointFailure, clean_message, failure_of_status, retry_after_s
from gym_spark.endpoint.masking import add_secret, mask_bytes
from gym_spark.endpoint.retry import RULES, Pace, Retry, Rule, rules_of, without_retries
from tests.unit import virtual_time

Outcome = tuple[str | EndpointFailure, list[float]]


def run(failures: Sequence[EndpointFailure], try_s: float = 0, **rules: Rule) -> Outcome:
    """Fail with each of `failures` in turn, then succeed; return the outcome and the waits between the tries."""
    left = list(failures)
    ended: list[float] = []
    waits: list[float] = []

    async def attempt() -> str:
        if ended:
            waits.append(virtual_time.now() - ended[-1])
        await asyncio.sleep(try_s)
        if left:
            raise left.pop(0)
        return "answer"

    async def go() -> str:
        retry = Retry({**RULES, **rules}, Pace())
        return await retry.run(attempt, lambda _: ended.append(virtual_time.now()))

    try:
        outcome: str | EndpointFailure = virtual_time.run(go())
    except EndpointFailure as failure:
        outcome = failure
    assert len(ended) == len(failures) - len(left)  # each failed try was reported
    return outcome, waits


def limited(*hints: float) -> list[EndpointFailure]:
    return [EndpointFailure("rate_limited", "slow down", retry_after_s=hint) for hint in hints]


def failures(kind: str, count: int) -> list[EndpointFailure]:
    return [EndpointFailure(kind, "no") for _ in range(count)]


def test_p10_each_wait_is_at_least_the_newest_hint() -> None:
    outcome, waits = run(limited(2, 5))
    assert outcome == "answer"
    assert 2 < waits[0] < 5 < waits[1] < 7


def test_p10_jitter_keeps_refused_calls_from_coming_back_together() -> None:
    assert len({run(limited(2))[1][0] for _ in range(10)}) > 1


def test_p10_a_quota_that_is_used_up_for_minutes_is_waited_out() -> None:
    outcome, waits = run(limited(90, 90, 90, 60))
    assert outcome == "answer"
    assert 330 < sum(waits) < 345


@pytest.mark.parametrize(("kind", "tries"), [("unreachable", 3), ("timeout", 3), ("dropped", 8), ("server_error", 8)])
def test_p08_tries_are_bounded_by_kind(kind: str, tries: int) -> None:
    outcome, waits = run(failures(kind, 20))
    assert isinstance(outcome, EndpointFailure)
    assert (outcome.kind, len(waits)) == (kind, tries - 1)


def test_back_off_doubles_and_outlasts_an_outage_of_thirty_seconds() -> None:
    _, waits = run(failures("server_error", 20))
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1 <= waits[2] <= 2
    assert sum(waits) > 30


def test_each_kind_counts_for_itself() -> None:
    outcome, _ = run(limited(*[1.0] * 20) + failures("server_error", 7) + failures("dropped", 7))
    assert outcome == "answer"


def test_p08_the_window_counts_from_the_first_failure_not_from_the_start() -> None:
    rule = Rule(9, 60)
    assert run(failures("timeout", 1), try_s=600, timeout=rule)[0] == "answer"
    outcome, waits = run(failures("timeout", 9), try_s=600, timeout=rule)
    assert isinstance(outcome, EndpointFailure)
    assert len(waits) == 1


def test_a_hint_past_the_window_ends_the_call_at_once_and_says_so() -> None:
    outcome, waits = run(limited(3600))
    assert isinstance(outcome, EndpointFailure)
    assert waits == []
    assert "3600 s" in str(outcome)
    assert "endpoint.retries.rate_limited.window_s" in str(outcome)


def test_the_endpoints_configuration_changes_one_part_of_one_rule() -> None:
    spec = EndpointSpec(retries={"dropped": RetrySpec(attempts=2)})
    assert rules_of(spec) == {**RULES, "dropped": Rule(2, RULES["dropped"].window_s)}


def test_without_retries_every_failure_is_the_last() -> None:
    rules = rules_of(without_retries(EndpointSpec()))
    for kind in RULES:
        outcome, waits = run(failures(kind, 2), **rules)
        assert isinstance(outcome, EndpointFailure)
        assert waits == []


@pytest.mark.parametrize(
    ("kind", "terminal"),
    [
        ("bad_request", True),
        ("context_length_exceeded", True),
        ("request_too_large_for_quota", True),
        ("unauthorized", False),  # with a right key the same row can be played
        ("not_found", False),
        ("quota_exhausted", False),
    ],
)
def test_what_waiting_does_not_mend_is_not_retried(kind: str, terminal: bool) -> None:
    outcome, waits = run(failures(kind, 1))
    assert isinstance(outcome, EndpointFailure)
    assert (outcome.terminal, waits) == (terminal, [])


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
        (429, b'{"error": {"message": "Rate limit reached on tokens per min", "type": "tokens"}}', "rate_limited"),
        (
            429,
            b'{"error": {"message": "Request too large for m on tokens per min (TPM): Limit 9, Requested 12",'
            b' "type": "tokens", "code": "rate_limit_exceeded"}}',
            "request_too_large_for_quota",
        ),
        (429, b'{"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}', "quota_exhausted"),
        (402, b"", "quota_exhausted"),
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


@pytest.mark.parametrize(("status", "overloaded"), [(429, True), (503, True), (529, True), (500, False), (400, False)])
def test_which_statuses_ask_for_less(status: int, overloaded: bool) -> None:
    assert failure_of_status(status, {}, b"", "http://h/v1").overloaded is overloaded


@pytest.mark.parametrize(
    ("kind", "maybe"),
    [("unreachable", False), ("rate_limited", False), ("unauthorized", False), ("dropped", True), ("timeout", True)],
)
def test_surely_not_delivered_is_told_from_maybe(kind: str, maybe: bool) -> None:
    assert EndpointFailure(kind, "no").maybe_acted_on is maybe


def test_a_hint_in_milliseconds_is_taken_before_the_rounded_one() -> None:
    headers = {"retry-after-ms": "350", "retry-after": "1"}
    assert failure_of_status(429, headers, b"", "http://h/v1").retry_after_s == 0.35


def test_a_secret_is_masked_before_the_message_is_cut() -> None:
    add_secret("sk-secret-value")
    message = clean_message("x" * 395 + "sk-secret-value and\nmore")
    assert "sk-" not in message
    assert "\n" not in message
    assert len(message) == 401


def test_a_secret_is_masked_in_every_spelling() -> None:
    add_secret('p"ss/w\u00f6rd')
    raw = rb'["p\"ss/w\u00f6rd", "p\"ss\/w\u00f6rd", "p%22ss/w%C3%B6rd"]'
    assert mask_bytes(raw) == b'["***", "***", "***"]'
    assert str(EndpointFailure("dropped", 'said p"ss/w\u00f6rd')) == "said ***"


def test_a_redirects_address_and_a_placeholder_key() -> None:
    add_secret("sk-in-a-header")
    add_secret("EMPTY")
    failure = failure_of_status(302, {"location": "http://b/?key=sk-in-a-header"}, b"EMPTY", "http://h/v1")
    assert str(failure) == "http://h/v1 answered 302 to http://b/?key=***: EMPTY"
