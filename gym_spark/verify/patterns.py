"""A benchmark's own regular expression, bounded in time: text enters, the last match leaves.

The library `regex` and not `re`: an expression such as ``(a|aa)+$`` can take years on the wrong answer, and only
`regex` can be told to give up. That spares a child process, so that judging with an expression is as fast as without.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import regex

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Verdict

#: Seconds of processor time, so that a busy machine changes no verdict; an ordinary search takes microseconds.
LIMIT_S: Final = 2.0


class Pattern:
    """A regular expression, in the syntax of `re`.

    Args:
        expression: The expression. What it finds is its group 1, or the whole match where it has no group.
        ignore_case: Match without regard to case.

    Raises:
        ValueError: It is no regular expression.
    """

    def __init__(self, expression: str, *, ignore_case: bool = False) -> None:
        try:
            self._compiled = regex.compile(expression, regex.IGNORECASE if ignore_case else 0)
        except regex.error as error:
            raise ValueError(f"pattern '{expression}' is not a regular expression ({error})") from error

    def last(self, text: str) -> str | None:
        """Return what the last match found; empty where its group took no part, None without a match.

        Raises:
            TimeoutError: It took more than `LIMIT_S`.
        """
        matches = deque(self._compiled.finditer(text, timeout=LIMIT_S), maxlen=1)
        if not matches:
            return None
        return matches[0][1] or "" if self._compiled.groups else str(matches[0][0])

    def matches(self, text: str) -> bool:
        """Tell whether the expression matches the whole text.

        Raises:
            TimeoutError: It took more than `LIMIT_S`.
        """
        return self._compiled.fullmatch(text, timeout=LIMIT_S) is not None


def parameter(verifier: str, expression: str) -> Pattern:
    """Return a verifier's parameter as a pattern.

    Raises:
        ConfigError: it is no regular expression.
    """
    try:
        return Pattern(expression)
    except ValueError as error:
        raise ConfigError(f"verifier '{verifier}': {error}.") from error


def timed_out() -> Verdict:
    """Return the verdict on an answer that an expression could not be done with."""
    return Verdict.unscored("verify_timeout", f"a regular expression was not done within {LIMIT_S:g} s")
