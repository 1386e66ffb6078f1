"""`string_match`: the answer, taken from where the task wants it, equals, contains or matches an accepted text.

What two texts may differ in and be equal, decided once (tests/unit/test_verify_string_match.py has the table):

- Letter case, unless `case_sensitive`, by Unicode case folding; compatibility forms ("ﬁ", full-width letters: NFKC).
- Runs of white space, and a pair of quotes, backquotes, ``*``, ``_`` or ``$`` around the whole.
- Full stops, commas, colons and semicolons at the end, ``!`` and ``?`` where no digit stands before ("5!" is not 5).

Numbers are texts here, "1,000" is not "1000": use `numeric` or `math` for these.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, Literal

import regex

from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text, expected_answers
from gym_spark.verify.extraction import Place, answer_at
from gym_spark.verify.patterns import Pattern, parameter, timed_out

#: Opening -> closing mark. The last ones are typographic: double, single, French and German.
_PAIRS: Final = {mark: mark for mark in "\"'`*_$"} | {
    "\u201c": "\u201d",
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
    "\u201e": "\u201c",
}
_PLACES: Final = ("boxed", "final_answer", "last_line", "tag", "full_response")

#: Letters of scripts that part words by blanks. In others (Chinese, Thai) every place is a word's edge.
_LETTER: Final = r"[\p{Lu}\p{Ll}\p{Lt}\p{Lm}\p{M}\p{N}_]"


class StringMatch(Verifier):
    r"""Reward 1 if the extracted answer agrees with one of ``expected_answer``, else 0.

    A task may have ``extraction_mode``, ``case_sensitive`` and ``pattern`` of its own; a parameter that is given wins.

    Args:
        extraction_mode: Where the answer stands: ``boxed`` (the last ``\boxed{}``), ``final_answer`` (behind the last
            "Answer:", or else the last box; the default), ``last_line``, ``tag`` or ``full_response``.
        tag: Name of the XML tag of ``tag``.
        pattern: Regular expression that finds the answer instead: its last match, or group 1 of that.
        compare: ``equal``; ``contains``: an accepted text stands in the answer as whole words or numbers (also where it
            is denied, "not Paris"); ``pattern``: accepted texts are regular expressions for the whole answer.
        case_sensitive: Compare with regard to case.
        punctuation: ``ends``: as above; ``keep``: it counts; ``ignore``: none counts, anywhere.
        whitespace: ``collapse`` runs of it to one blank, or ``ignore`` all of it.
        compatibility: Hold compatibility forms equal (NFKC); else only what looks the same (NFC).
    """

    name = "string_match"
    version = f"2 regex=={version('regex')}"
    needs = ("expected_answer",)

    def __init__(
        self,
        *,
        extraction_mode: Place | None = None,
        tag: str = "answer",
        pattern: str | None = None,
        compare: Literal["equal", "contains", "pattern"] = "equal",
        case_sensitive: bool | None = None,
        punctuation: Literal["ends", "keep", "ignore"] = "ends",
        whitespace: Literal["collapse", "ignore"] = "collapse",
        compatibility: bool = True,
    ) -> None:
        self._place = extraction_mode
        self._tag = tag
        self._compare = compare
        self._case_sensitive = case_sensitive
        self._punctuation = punctuation
        self._whitespace = whitespace
        self._form: Literal["NFC", "NFKC"] = "NFKC" if compatibility else "NFC"
        self._pattern = pattern
        if pattern is not None:
            parameter(self.name, pattern)  # a mistake is told before a rollout is paid for

    def verify(self, item: Judgeable) -> Verdict:
        """Extract and compare; an answer that is not where it should be scores 0 and extracts None."""
        exact_case = self._case_sensitive
        if exact_case is None:
            exact_case = _task_value(item, "case_sensitive", bool, False)
        wanted = [self._wanted(text, exact_case=exact_case) for text in expected_answers(item)]
        try:
            found = self._extracted(item)
            if not found:
                return Verdict.scored(0.0, detail={"reason": "the answer is not where the task wants it"})
            right = self._agrees(found, wanted, exact_case=exact_case)
        except TimeoutError:
            return timed_out()
        if self._compare == "equal":  # what equal answers differ in shall not part them in a vote, but for the case
            found = self._normalised(found, exact_case=True)
        return Verdict.scored(float(right), extracted_answer=found)

    def _extracted(self, item: Judgeable) -> str | None:
        text = answer_text(item)
        pattern = self._pattern
        if pattern is None and self._place is None:
            pattern = _task_value(item, "pattern", str, None)
        if pattern is not None:
            found = Pattern(pattern).last(text)
            return found.strip() if found is not None else None
        place = self._place or _task_value(item, "extraction_mode", str, "final_answer")
        if place not in _PLACES:
            raise ValueError(f"the task's extraction_mode is {place!r}; it must be one of {', '.join(_PLACES)}")
        return answer_at(place, text, tag=self._tag)

    def _wanted(self, text: str, *, exact_case: bool) -> str | Pattern:
        if self._compare == "pattern":
            return Pattern(text, ignore_case=not exact_case)
        if wanted := self._normalised(text, exact_case=exact_case):
            return wanted
        raise ValueError(f"nothing is left to compare of the task's expected_answer {text!r}")

    def _agrees(self, found: str, wanted: list[str | Pattern], *, exact_case: bool) -> bool:
        answer = self._normalised(found, exact_case=exact_case)
        for one in wanted:
            if isinstance(one, Pattern):
                right = one.matches(unicodedata.normalize(self._form, found))
            else:
                right = contains(answer, one) if self._compare == "contains" else answer == one
            if right:
                return True
        return False

    def _normalised(self, text: str, *, exact_case: bool) -> str:
        text = unicodedata.normalize(self._form, text)
        if not exact_case:
            text = unicodedata.normalize(self._form, text.casefold())
        if self._punctuation == "ignore":
            text = "".join(" " if unicodedata.category(char)[0] == "P" else char for char in text)
        text = ("" if self._whitespace == "ignore" else " ").join(text.split())
        return _without_ends(text) if self._punctuation == "ends" else text


def _task_value(item: Judgeable, key: str, kind: type, default: Any) -> Any:
    value = item.verifier_inputs.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"the task's {key} is {value!r}; it must be {kind.__name__}")
    return value


def _without_ends(text: str) -> str:
    """Return the text without the pairs and the end's punctuation that do not count; all of it where none is left."""
    start, end = 0, len(text)
    while start < end:
        last = text[end - 1]
        if last.isspace() or last in ".,;:" or (last in "!?" and end - start > 1 and not text[end - 2].isdigit()):
            end -= 1
        elif text[start].isspace():
            start += 1
        elif end - start > 1 and _PAIRS.get(text[start]) == last:
            start, end = start + 1, end - 1
        else:
            break
    return text[start:end] or text


def contains(text: str, wanted: str) -> bool:
    """Tell whether a text stands in another one as whole words or numbers: no "cat" in "concatenate", no 5 in -1.5."""
    return _whole(wanted).search(text) is not None


@lru_cache(maxsize=4096)
def _whole(wanted: str) -> regex.Pattern[str]:
    before = rf"(?<!{_LETTER})" if regex.match(_LETTER, wanted[0]) else ""
    after = rf"(?!{_LETTER})" if regex.match(_LETTER, wanted[-1]) else ""
    if wanted[0].isdigit():
        before += r"(?<!\d[.,])(?<!(?:^|[^\p{L}\p{N})\]])[-\u2212])(?<!(?:^|[^\d])\.)"
    if wanted[-1].isdigit():
        after += r"(?![.,]\d)(?!\s?%)"
    return regex.compile(before + regex.escape(wanted) + after)
