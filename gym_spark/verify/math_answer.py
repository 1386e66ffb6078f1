"""`math`: symbolic equality of the answer with the expected expression, by the library math-verify."""

from __future__ import annotations

import logging
import re
from importlib.metadata import version
from typing import Any, Final

from gym_spark.errors import RolloutError, boundary
from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text, expected_answers
from gym_spark.verify.extraction import answer_at, unwrapped
from gym_spark.verify.math_spelling import last_answer, respelled, written_out

#: The distributions whose release decides a verdict.
_LIBRARIES: Final = ("math-verify", "latex2sympy2-extended", "sympy")

_DELIMITED: Final = re.compile(r"\$|\\\(|\\\[|\\boxed|```")
_PROSE: Final = re.compile(r"(?<!\S)[A-Za-z]{2,}(?!\S)|[A-Za-z]{4,}")
_LATEX_WORD: Final = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\{[^{}]*\}|\\[A-Za-z]+")
#: An expected answer that is no mathematics but has one spelling: "Yes", "DNE".
_WORD: Final = re.compile(r"[^\W\d_]{2,20}")

#: A relation that the library would read as its right side, and what an expected answer then has as well.
_ONE_SIDED: Final = re.compile(
    r"^[\s$]*(?:[<>\u2264\u2265]|\\(?:l|g)(?:t|e|eq|eqslant)(?![A-Za-z]))|\\neq?(?![A-Za-z])|\\not\s*=|\u2260|!="
)
_RELATION: Final = re.compile(r"[<>\u2264\u2265\u2260]|!=|\\(?:neq?|(?:l|g)(?:t|e|eq|eqslant))(?![A-Za-z])|\\not\s*=")

#: Longer text is not one bare expression.
_BARE_CHARS: Final = 400


class MathAnswer(Verifier):
    r"""Reward 1 if an expected answer equals the answer's expression, else 0.

    Both sides are parsed as LaTeX and as plain expressions, in the spelling of `math_spelling`. A text that is one bare
    expression without delimiters, as expected answers are, is read as LaTeX as a whole: the library alone takes the 2
    from ``2\sqrt{3}``. An expected answer of one word ("Yes") is compared as text.

    The library's own rules hold for the rest: decimals are equal to six places (0.333333 is 1/3), 50 % is 50 and 0.5,
    units are not compared, and an equation counts for its right side, also "1=1" and "2=3". But a relation without a
    left side, or "not equal", is no number ("> 5", ``\neq 5``), though the library reads it so.

    The library guards itself by SIGALRM, which only works in a main thread and not within one long operation in C, so
    its own limits are off and the limit of the isolated child process rules.
    """

    name = "math"
    needs = ("expected_answer",)
    version = "3 " + " ".join(f"{library}=={version(library)}" for library in _LIBRARIES)
    isolated = True

    def __init__(self) -> None:
        self._library: Any = None

    def warm_up(self) -> None:
        """Import the library and compile its expressions."""
        # Here and not at the top: it imports sympy (a second, 100 MB), and only the child process needs it.
        import math_verify

        self._library = math_verify
        # With its limits off, the library warns once that the caller must have some; the caller has.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        math_verify.verify(self._parsed(r"$\frac{1}{2}$"), self._parsed("0.5"), timeout_seconds=None)

    def verify(self, item: Judgeable) -> Verdict:
        """Compare; an expected answer that cannot be parsed raises, an answer that cannot be scores 0."""
        if self._library is None:
            self.warm_up()
        text = answer_text(item)
        words = set[str]()
        golds = list[Any]()
        for expected in expected_answers(item):
            if _WORD.fullmatch(unwrapped(expected)) and not self._parsed(expected):
                words.add(unwrapped(expected).casefold())
            else:
                golds += self._gold(expected)
        word = _word_of(text) if words else None
        if word and word.casefold() in words:
            return Verdict.scored(1.0, extracted_answer=word)
        last = respelled(last_answer(text))
        extracted = word
        for reading in dict.fromkeys((last, written_out(last), respelled(text))):  # the whole may hold a list of boxes
            answer = self._answer(reading)
            spelled = next((part.strip() for part in answer if isinstance(part, str)), None)
            fitting = [gold for gold in golds if not (spelled and _is_another_relation(spelled, gold))]
            # Expected side first: the comparison is not symmetric.
            if any(self._library.verify(gold, answer, timeout_seconds=None, raise_on_error=True) for gold in fitting):
                return Verdict.scored(1.0, extracted_answer=spelled)
            extracted = extracted or spelled
        return Verdict.scored(0.0, extracted_answer=extracted)

    def _gold(self, text: str) -> list[list[Any]]:
        """Return what an expected answer can be read as."""
        plain = respelled(text)
        readings = [
            parsed for reading in dict.fromkeys((plain, written_out(plain))) if (parsed := self._parsed(reading))
        ]
        if not readings:
            raise ValueError(f"the task's expected_answer {text!r} cannot be parsed as mathematics")
        return readings

    def _answer(self, text: str) -> list[Any]:
        try:
            with boundary("verifier"):
                return self._parsed(text)
        except RolloutError as error:
            if isinstance(error.__cause__, MemoryError | RecursionError):
                raise  # the machine's limit, not the answer's mistake
            return []

    def _parsed(self, text: str) -> list[Any]:
        """Return the expression and the text it came from, or an empty list where nothing could be parsed."""
        spelled = text.strip()
        for candidate in ([f"${spelled}$"] if _is_bare(spelled) else []) + [spelled]:
            parsed: list[Any] = self._library.parse(candidate, parsing_timeout=None, raise_on_error=True)
            if any(not isinstance(part, str) for part in parsed):
                return parsed
        return []


def _is_another_relation(spelled: str, gold: list[Any]) -> bool:
    """Tell whether an answer is a one-sided relation where the expected one, as parsed, is none at all."""
    return bool(_ONE_SIDED.search(spelled)) and not any(
        _RELATION.search(part) for part in gold if isinstance(part, str)
    )


def _word_of(text: str) -> str | None:
    """Return the one word that an answer is: in its last box, or behind "Answer:", or all of it."""
    found = (answer_at("final_answer", text) or text).strip(" \t\n.*_$\"'")
    return found if _WORD.fullmatch(found) else None


def _is_bare(text: str) -> bool:
    """Tell whether the text is one line of mathematics, without delimiters and without prose."""
    if not text or len(text) > _BARE_CHARS or "\n" in text or _DELIMITED.search(text):
        return False
    return not _PROSE.search(_LATEX_WORD.sub(" ", text))
