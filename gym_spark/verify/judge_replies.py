"""What a judge said: its reply enters, a reward leaves, or `JudgeFailed` where no single one can be read.

Nothing is guessed. A reply that was cut off counts for nothing, whatever it holds: its verdict was still to come. In a
whole one the verdict is what all labels agree on. Where they differ ("it is not [[A=B]], so: [[A!=B]]"), those of the
last line with any text decide, since that is where the prompt wants the verdict, if they agree; else there is none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from gym_spark.endpoint.wire import Reply
from gym_spark.verify.base import JudgeFailed, without_reasoning

T = TypeVar("T")

_SHARE: Final = re.compile(r"\[\[\s*([+-]?\d{1,9}(?:\.\d{1,15})?)\s*\]\]")
_CRITERION: Final = re.compile(r"\[\[\s*(\d{1,4})\s*:\s*(yes|no)\s*\]\]", re.IGNORECASE)
#: Characters of a reply that are shown in a reason, from its end.
_SHOWN: Final = 200


def said(reply: Reply) -> str:
    """Return a reply's text without reasoning.

    Raises:
        JudgeFailed: It is empty, was cut off, or was withheld by a filter.
    """
    if reply.answer_state == "filtered":
        raise JudgeFailed("filtered", "a content filter withheld the judge's reply")
    if reply.answer_state == "truncated":
        raise JudgeFailed(
            "truncated", "the judge's reply was cut off before its end; raise the judge's max_output_tokens"
        )
    text = without_reasoning(reply.output_text or "").strip()
    if not text:
        raise JudgeFailed("empty", "the judge's reply holds no text besides its reasoning")
    return text


class Labels:
    """Labels and the rewards that they stand for.

    A label in letters ("NO") is none within a word ("NOT"), and the longest counts where one is part of another. As it
    is written it counts anywhere. In another case ("No.") it counts at the end of the text, where the verdict is
    wanted, unless two labels differ by case alone: within a sentence "no" may be any word ("There is no difference").

    Args:
        rewards: Label -> reward.

    Raises:
        ValueError: There is no label, or an empty one.
    """

    def __init__(self, rewards: Mapping[str, float]) -> None:
        if not rewards or not all(label.strip() for label in rewards):
            raise ValueError("labels must name at least one label, and none may be empty")
        self._rewards = dict(rewards)
        longest_first = sorted(rewards, key=len, reverse=True)
        either = itertools.combinations(longest_first, 2)
        case_matters = any(re.fullmatch(re.escape(one), other, re.IGNORECASE) for one, other in either)
        forms = [_whole(label) if case_matters else _whole_or_last(label) for label in longest_first]
        self._pattern = re.compile("|".join(f"(?P<label{at}>{form})" for at, form in enumerate(forms)))
        self._of_label = {f"label{at}": self._rewards[label] for at, label in enumerate(longest_first)}

    def mirrored(self, reward: float) -> float:
        """Return what a reward is for the other of two answers: the best of one is the worst of the other."""
        return min(self._rewards.values()) + max(self._rewards.values()) - reward

    def reward(self, text: str) -> float:
        """Return what the labels in a reply stand for.

        Raises:
            JudgeFailed: There is none, or several that differ (``unparseable``).
        """
        return _agreed(text, lambda part: (self._of_label[str(m.lastgroup)] for m in self._pattern.finditer(part)))


def _whole(label: str) -> str:
    before, behind = (r"(?<!\w)" * label[0].isalnum(), r"(?!\w)" * label[-1].isalnum())
    return f"{before}{re.escape(label)}{behind}"


def _whole_or_last(label: str) -> str:
    """Match a label as it is written, or in another case with nothing behind it but marks ("**No.**")."""
    return rf"{_whole(label)}|(?i:{_whole(label)})(?=[\W_]*\Z)"


def share_in(text: str) -> float:
    """Return the share, from 0 to 1, that a reply ends with.

    Raises:
        JudgeFailed: There is none, several, or one that is no share (``unparseable``).
    """
    share = _agreed(text, lambda part: (float(match[1]) for match in _SHARE.finditer(part)))
    if not 0 <= share <= 1:
        raise JudgeFailed("unparseable", f"the judge's share is {share:g}, and must be from 0 to 1")
    return share


def criteria_in(text: str, count: int) -> list[bool]:
    """Return for each criterion, numbered from 1, whether a reply says that it is met.

    Raises:
        JudgeFailed: A criterion has no answer, or answers that differ (``unparseable``).
    """
    found: dict[int, set[bool]] = {}
    for match in _CRITERION.finditer(text):
        found.setdefault(int(match[1]), set()).add(match[2].lower() == "yes")
    odd = [number for number in range(1, count + 1) if len(found.get(number, ())) != 1]
    if odd:
        how = "differing answers" if odd[0] in found else "no answer"
        raise JudgeFailed("unparseable", f"the judge gave {how} on criterion {odd[0]} of {count}{_ending(text)}")
    return [found[number].pop() for number in range(1, count + 1)]


def _agreed(text: str, values_in: Callable[[str], Iterable[T]]) -> T:
    """Return the one value that a reply holds, or else its last line."""
    values = set(values_in(text))
    if not values:
        raise JudgeFailed("unparseable", f"the judge's reply holds no verdict{_ending(text)}")
    if len(values) > 1:
        values = set(values_in(text.strip().splitlines()[-1]))
    if len(values) != 1:
        raise JudgeFailed("unparseable", f"the judge's reply holds verdicts that differ{_ending(text)}")
    return values.pop()


def _ending(text: str) -> str:
    return f"; it ends in {text[-_SHOWN:]!r}"
