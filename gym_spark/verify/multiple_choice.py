r"""`mcqa`: the option that the answer chose is the expected one.

How an answer chooses, by grading mode (tests/unit/test_verify_mcqa.py has the table):

- ``strict_single_letter_boxed``: the last ``\boxed{}`` holds one capital letter and nothing else but brackets and the
  like: ``\boxed{B}``, ``\boxed{(B)}``, ``\boxed{\text{B}}``.
- ``lenient_boxed``: or a letter that labels what follows (``\boxed{B: a square}``), or the text of exactly one option.
- ``lenient_answer_colon``: behind the last "Answer:", to the end of the line, is one letter or an option's whole text.
- ``lenient_answer_colon_md``: behind the last "Answer:" that has a letter, Markdown or LaTeX around it or not: an
  option's whole text, the leading letter, or else the last one that stands alone and is not denied. "A or B", "not B"
  and "neither A nor B" choose nothing; the pronoun "I" is no letter.

A task's ``template_metadata`` may have ``output_regex``, one or a list: the first whose last match is a letter or an
option's whole text decides; the mode is only asked where none is. It may have an ``answer_prefix``, which
``lenient_answer_colon_md`` takes for an "Answer:" too, with a boxed letter where neither is. Names and shapes are those
of NeMo Gym's rows.
"""

from __future__ import annotations

import re
import string
import unicodedata
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import regex

from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text
from gym_spark.verify.extraction import labelled, last_boxed, unwrapped
from gym_spark.verify.patterns import Pattern, parameter, timed_out
from gym_spark.verify.string_match import contains

GradingMode = Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"]
_MODES: Final = get_args(GradingMode)

#: Letter -> text of an option; None where the task names the letters alone.
Options = dict[str, str | None]

_LONE: Final = re.compile(r"[\s()\[\]{}.:$*`'\"]*([A-Z0-9])[\s()\[\]{}.:$*`'\"]*")
_LABEL: Final = re.compile(r"\s*[(\[]?([A-Z0-9])\s*[:).\]\-]")
#: "Answer: B", "Answer:B", but not "Answer: **B**": without Markdown, as the mode's name says.
_PLAIN_COLON: Final = regex.compile(  # `regex`, and the same rule for a heading, as in extraction
    r"answer\s*:\s*+(?!(?:final\s+)?answer\s*:)(.+)", regex.IGNORECASE
)
_STANDING_ALONE: Final = re.compile(r"(?<![^\W_])[A-Z](?![^\W_])")
_ANY_CASE: Final = re.compile(r"(?<![^\W_])[A-Za-z](?![^\W_])")
_LEADING: Final = re.compile(r"([A-Za-z0-9])(?![^\W_])(?!'|\u2019)")
#: "I checked", but not "I because ..." or "I is right", which say more about a letter.
_PRONOUN: Final = re.compile(r"I\s+(?!(?:and|as|because|due|for|has|is|nor|or|since|was)\b)[a-z]+")
_DENIED: Final = re.compile(
    r"(?:\b(?:not|neither|nor)|n['\u2019]t(?:\s+be)?)\s+(?:options?\s+|answers?\s+)?[(\[*_`\"']{0,4}$", re.I
)
_BEFORE: Final = 40  # characters in which a denial is looked for
_BETWEEN: Final = re.compile(r"\s*[/|&,;]\s*(?:(?:or|and)\s+)?|\s+(?:or|and)\s+|\s+", re.IGNORECASE)
_DECORATION: Final = "*_`$ \t\r\n.,;:()[]{}"

#: First letters of options in other scripts, as translated benchmarks have them.
_LETTERS: Final = str.maketrans(dict(zip("أبجدঅবডঢ", "ABCDABCD", strict=True)))

_NOTHING: Final = "the answer chooses no option in the form that the task wants"


class MultipleChoice(Verifier):
    """Reward 1 if the answer chooses the option ``expected_answer``, else 0; `extracted_answer` is the letter.

    A task has ``options``, a list of ``{letter: text}``, one such object, or a list of texts (A, B, ...); without them
    every letter is an option. ``expected_answer`` is a letter, or the text of one option.

    Args:
        grading_mode: How answers choose; wins over the task's own ``grading_mode``.
        output_regex: Regular expression that is used for every task, instead of a task's own.
    """

    name = "mcqa"
    version = f"2 regex=={version('regex')}"
    needs = ("expected_answer",)

    def __init__(self, *, grading_mode: GradingMode | None = None, output_regex: str | None = None) -> None:
        self._mode = grading_mode
        self._regex = output_regex
        if output_regex is not None:
            parameter(self.name, output_regex)  # a mistake is told before a rollout is paid for

    def verify(self, item: Judgeable) -> Verdict:
        """Find the chosen letter and compare; a task without the expected option raises."""
        task = item.verifier_inputs
        options = _options(task.get("options"))
        expected = _expected(task.get("expected_answer"), options)
        mode = self._mode or task.get("grading_mode") or _MODES[0]
        if mode not in _MODES:
            raise ValueError(f"the task's grading_mode is {mode!r}; it must be one of {', '.join(_MODES)}")
        text = answer_text(item)
        try:
            chosen = self._by_expression(text, task, options) or _chosen(mode, text, options, _prefix(task))
        except TimeoutError:
            return timed_out()
        if chosen is None:
            return Verdict.scored(0.0, detail={"reason": _NOTHING})
        return Verdict.scored(float(chosen == expected), extracted_answer=chosen)

    def _by_expression(self, text: str, task: dict[str, Any], options: Options) -> str | None:
        template = task.get("template_metadata")
        given = self._regex or (template.get("output_regex") if isinstance(template, dict) else None)
        if not given:
            return None
        for expression in given if isinstance(given, list) else [given]:
            if not isinstance(expression, str):
                raise ValueError(f"the task's output_regex is {given!r}; it must be text or a list of texts")
            found = Pattern(expression, ignore_case=True).last(text)
            if found is not None and (letter := _letter_or_text(found, options)):
                return letter
        return None


def _options(given: Any) -> Options:
    """Return the options by letter.

    Raises:
        ValueError: They are no options, or two have one letter.
    """
    if given is None or given == []:
        return dict.fromkeys(string.ascii_uppercase)
    pairs: list[tuple[Any, Any]]
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list) and all(isinstance(entry, dict) for entry in given):
        pairs = [pair for entry in given for pair in entry.items()]
    elif isinstance(given, list) and len(given) <= len(string.ascii_uppercase):
        pairs = list(zip(string.ascii_uppercase, given, strict=False))
    else:
        raise ValueError("the task's options are neither a list nor an object of letters and texts")
    options: Options = {}
    for letter, text in pairs:
        if text is None:  # a column of a table that other tasks have
            continue
        if not (isinstance(letter, str) and len(letter) == 1 and letter.isalnum() and isinstance(text, str)):
            raise ValueError(f"the task's option {letter!r}: {text!r} is not one letter and a text")
        if options.setdefault(letter.upper(), text) is not text:
            raise ValueError(f"two of the task's options have the letter {letter.upper()!r}")
    return options


def _expected(given: Any, options: Options) -> str:
    if isinstance(given, str):
        letter = given.strip().upper()
        if letter in options:
            return letter
        if by_text := _by_text(given, options):
            return by_text
    raise ValueError(f"the task's expected_answer {given!r} is not among its options {', '.join(sorted(options))}")


def _prefix(task: dict[str, Any]) -> str:
    template = task.get("template_metadata")
    prefix = template.get("answer_prefix") if isinstance(template, dict) else None
    if not isinstance(prefix, str | None):
        raise ValueError(f"the task's answer_prefix is {prefix!r}; it must be text")
    return prefix or ""


def _chosen(mode: str, text: str, options: Options, prefix: str) -> str | None:
    if mode == "lenient_answer_colon":
        lines = _PLAIN_COLON.findall(text)
        return _letter_or_text(unwrapped(lines[-1]), options) if lines else None
    if mode == "lenient_answer_colon_md":
        text = unicodedata.normalize("NFKC", text)
        lines = reversed(labelled(text, unicodedata.normalize("NFKC", prefix)))
        letter = next((letter for line in lines if (letter := _in_line(line, options))), None)
        if letter or not prefix:
            return letter
        mode = _MODES[0]
    boxed = last_boxed(text)
    if boxed is None:
        return None
    lone = _LONE.fullmatch(boxed)
    if lone or mode == "strict_single_letter_boxed":
        return lone[1] if lone and lone[1] in options else None
    # An option's whole text first: "E. coli" may be an option and is no label.
    if letter := _by_text(boxed, options):
        return letter
    label = _LABEL.match(boxed)
    if label and label[1] in options:
        return label[1]
    words = _plain(boxed)
    named = {letter for letter, option in options.items() if option and contains(words, _plain(option))}
    return named.pop() if len(named) == 1 else None


def _letter_or_text(found: str, options: Options) -> str | None:
    """Return the option whose letter, in either case, or whole text this is."""
    letter = unicodedata.normalize("NFKC", found).strip().translate(_LETTERS).upper()
    return letter if letter in options else _by_text(found, options)


def _by_text(found: str, options: Options) -> str | None:
    """Return the option whose text this is, white space and case apart; None where two have it."""
    wanted = _plain(found)
    letters = [letter for letter, text in options.items() if text is not None and _plain(text) == wanted]
    return letters[0] if len(letters) == 1 and wanted else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _in_line(line: str, options: Options) -> str | None:
    """Return the one letter that a line behind "Answer:" chooses."""
    boxed = last_boxed(line)
    line = unwrapped((boxed if boxed is not None else line).translate(_LETTERS).strip(_DECORATION))
    alone = [match for match in _ANY_CASE.finditer(line) if match[0].upper() in options]
    for left, right in pairwise(alone):
        if left[0].upper() != right[0].upper() and _BETWEEN.fullmatch(line, left.end(), right.start()):
            return None  # "A or B"
    if len(line) > 1 and (letter := _by_text(line, options)):
        return letter  # "a dog" chooses no A
    leading = _LEADING.match(line)
    if leading and not _PRONOUN.match(line):
        return leading[1].upper() if leading[1].upper() in options else None
    letters = [match[0] for match in _STANDING_ALONE.finditer(line) if not _says_else(line, match, options)]
    return letters[-1] if letters and letters[-1] in options else None


def _says_else(line: str, letter: re.Match[str], options: Options) -> bool:
    """Tell whether a letter that stands alone is denied, or is the pronoun."""
    if letter[0] == "I" and ("I" not in options or _PRONOUN.match(line, letter.start())):
        return True
    return _DENIED.search(line[max(0, letter.start() - _BEFORE) : letter.start()]) is not None
