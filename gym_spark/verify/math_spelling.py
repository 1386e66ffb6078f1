r"""Spellings that math-verify does not read, or reads as something else: a text enters, one that it reads right leaves.

Each rule has one meaning, and the table in tests/unit/test_verify_math.py has a row that the library alone gets wrong:

- Thousands parted by LaTeX's or Unicode's thin blanks: ``12\,345``. An ordinary blank may part two numbers and stays.
- ``1 1/2`` with a proper fraction, which is 3/2 and not a product; ``1e5``; the sign of degrees, or ``km/h`` and the
  like, behind a number.
- Full-width digits and signs, and characters that take no room.
- A decimal that repeats, ``0.1\overline{6}`` or ``\bar``. Not "0.333..." and "0.(3)", which can mean something else.
- ``1.5 million``, ``2\text{ thousand}``, as a second reading.
- The last box, where others stand before it: the library joins boxes that are near each other, so that "\boxed{5}. No,
  \boxed{4}." is the pair 5, 4. Boxes with only "and", "or" or a comma between them are one answer and stay together.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Final

from gym_spark.verify.extraction import closing_brace

#: Full-width forms, as Chinese and Japanese texts have them, are plain; what takes no room is nothing.
_PLAIN_FORMS: Final = {0xFF01 + offset: 0x21 + offset for offset in range(94)} | dict.fromkeys((0x200B, 0x2060, 0xFEFF))

_THIN: Final = r"(?:\\[,!; ]|\{,\}|,\\!|[\u00a0\u2009\u202f])"
_THOUSANDS: Final = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_THIN}\d{{3}})+(?!\d)")
_SCIENTIFIC: Final = re.compile(r"(?<![\w\\.])(\d{1,40}(?:\.\d{1,40})?)[eE]([+-]?\d{1,9})(?!\w)")
_PLAIN_EXPONENT: Final = 30
#: Where a fraction in its place means the same: nothing divides by it or raises it.
_REPEATING: Final = re.compile(
    r"(?<![\w.,/^}\\])(\d{0,15})\.(\d{0,15})"
    r"\\(?:overline|bar)\s*(?:\{\s*(\d{1,15})\s*\}|(\d))(?!\s*[\d^])"
)
_MIXED: Final = re.compile(r"(?<![\w./^])(\d{1,15}) +(\d{1,15})/(\d{1,15})(?![\d/])")
#: Not where minutes follow.
_DEGREES: Final = re.compile(r"(\d)\s?\u00b0[CF]?(?![\w\s]*\d)")
#: Behind the number that is all of an answer; the library knows units, but takes "km/h" for a quotient.
_RATE: Final = re.compile(
    r"(\d)\s*(?:mm|cm|km|m|mi|ft|g|kg|L)/(?:hr|h|sec|s|min|L|ml|mL|m|cm)(?:\^[23]|\^\{[23]\}|[\u00b2\u00b3])?(?=\s*\.?\s*(?:[}$]|$))"
)
_MAGNITUDES: Final = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE: Final = re.compile(
    r"(?<![\d.,])(?P<digits>\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?)(?:\s|~|\\[ ,])*"
    rf"(?:(?P<word>{'|'.join(_MAGNITUDES)})\b|\\(?:text|mathrm)\{{\s*(?P<latex>{'|'.join(_MAGNITUDES)})\b(?P<unit>[^{{}}]*)\}})",
    re.IGNORECASE,
)

_BOX: Final = re.compile(r"\\boxed\s*\{")
_JOINT: Final = re.compile(r"(?:[\s$,;&]|\\[()\[\],;]|\\quad|\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")

#: Boxes that are looked at, from the last: nobody gives more answers, and hostile text may hold many.
_BOXES: Final = 20


def respelled(text: str) -> str:
    """Return the text with thousands, mixed numbers, repeating decimals, powers of ten, degrees, rates made plain."""
    text = text.translate(_PLAIN_FORMS)
    text = _THOUSANDS.sub(lambda match: re.sub(_THIN, "", match[0]), text)
    text = _MIXED.sub(_improper, text)
    text = _REPEATING.sub(_fraction, text)
    text = _SCIENTIFIC.sub(_digits, text)
    return _RATE.sub(r"\1", _DEGREES.sub(r"\1", text))


def _improper(match: re.Match[str]) -> str:
    whole, part, denominator = (int(match[group]) for group in (1, 2, 3))
    # "3 5/4" is no mixed number.
    return f"{whole * denominator + part}/{denominator}" if part < denominator else match[0]


def _fraction(match: re.Match[str]) -> str:
    once, repeated = match[1] + match[2], match[3] or match[4]
    # 0.1666... times 10 (for the 1) times 9 (for each repeated digit) is a whole number.
    value = Fraction(int(once + repeated) - int(once or 0), 10 ** len(match[2]) * (10 ** len(repeated) - 1))
    return f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value.numerator)


def _digits(match: re.Match[str]) -> str:
    if abs(int(match[2])) > _PLAIN_EXPONENT:
        return rf"{match[1]}\times 10^{{{match[2]}}}"
    return _plain(Decimal(f"{match[1]}e{match[2]}"))


def written_out(text: str) -> str:
    """Return the text with "million" and the like multiplied out: apart, for the task may ask for millions."""
    return _MAGNITUDE.sub(_product, text)


def _product(match: re.Match[str]) -> str:
    word = (match["word"] or match["latex"]).lower()
    number = _plain(Decimal(match["digits"].replace(",", "")).scaleb(_MAGNITUDES[word]))
    return rf"{number}\text{{{match['unit']}}}" if (match["unit"] or "").strip() else number


def _plain(number: Decimal) -> str:
    digits = format(number, "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def last_answer(text: str) -> str:
    """Return the text from the last box on, or from the first of those that are one answer with it.

    The whole text where no box is left out so.
    """
    boxes = list(_BOX.finditer(text))[-_BOXES:]
    for left, right in reversed(list(pairwise(boxes))):
        end = closing_brace(text, left.end())
        if end is None or end >= right.start() or not _JOINT.fullmatch(text, end + 1, right.start()):
            return text[right.start() :]
    return text
