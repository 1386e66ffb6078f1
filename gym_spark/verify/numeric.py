r"""`numeric`: the last number in the answer equals the expected number.

What counts as a number, decided once (tests/unit/test_verify_numeric.py has the table):

- A minus (``-``, U+2212, or an en dash) is a sign only where no letter, digit or closing bracket stands before it, so
  "2-7" is 2 and 7, a date's last number is its day, and "5 - 3 = 2" ends in 2. With a blank behind it, it is one
  behind ``:``, ``=`` and ``(``, or where the text is nothing but this number; else it may be a list's mark.
- Thousands are groups of exactly three digits, parted by a comma, a narrow blank or LaTeX's ``{,}`` and ``\,``;
  "1, 2" and "1,2" are two numbers each. An ordinary blank parts them where a group begins with 0, as no number of its
  own does: "1 000 000" is one number, "1 234 567" are three.
- A currency sign, a percent sign, a full stop and units are not part of the number: "25 %" is 25, never 0.25.
- Digits glued to a letter before them ("CO2") or raised ("m^2") are no number.
- ``1.5e-3``, ``1.5 x 10^3`` and ``1.5 \times 10^{3}`` are one number each. A fraction is two numbers: use `math`.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation
from typing import Annotated, Final

from pydantic import Field

from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text, expected_answers
from gym_spark.verify.patterns import parameter, timed_out

_SEPARATOR: Final = r"(?:,|\{,\}|\\,|\u00a0|\u2007|\u2009|\u202f)"
_MINUS: Final = "-\u2212\u2013"
_NUMBER: Final = re.compile(
    rf"""
    (?<![A-Za-z0-9_^]) (?<!\^\{{) (?<!\d\.)     # not inside a word, a number or an exponent
    (?:(?P<sign>(?<![\w)\]}}%])[{_MINUS}+])       # a sign, not a hyphen or an operator
      | (?:(?<=[:=(])|(?<=[:=(][ ])|\A(?=[{_MINUS}][ ][\d.,]+\Z)) (?P<apart>[{_MINUS}])[ ](?=[\d.])
    )?
    (?:\\?[$€£¥]\s?)?(?P<inner>[{_MINUS}](?=[\d.]))? # $5, -$5 and $-5
    (?P<digits>
        [1-9]\d{{0,2}}(?=(?:[ ]\d{{3}}){{0,5}}?[ ]0\d\d)(?:[ ]\d{{3}}){{1,6}}(?!\d)(?:\.\d+)? |
        \d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)(?:\.\d+)?
        | \d+(?:\.\d+)?
        | (?<!\.)\.\d+
    )
    (?:[eE](?P<e>[-\u2212+]?\d+)(?!\w)
      | \s*(?:\u00d7|\\times|\\cdot|\*|x)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[-\u2212+]?\d+)\}}?
    )?
    """,
    re.VERBOSE,
)

#: No trap: what over- or underflows becomes infinite or zero and compares unequal instead of raising.
_ARITHMETIC: Final = Context(prec=60, traps=[])

#: Beyond this magnitude a number is spelled with an exponent: plain digits would be as long as the exponent says.
_PLAIN_DIGITS: Final = 40


class Numeric(Verifier):
    """Reward 1 if the last number of the answer equals one of ``expected_answer`` exactly, in decimals; else 0.

    An expected answer holds exactly one number; of GSM8K's solutions the part after ``####`` counts.
    `extracted_answer` is the number in plain spelling ("$1,234.50" is "1234.5"), so that equal numbers are equal text.

    Args:
        tolerance: Accepted relative difference to the expected number.
        pattern: Regular expression; the number is looked for in its last match (in group 1 if it has one) instead of
            in the whole answer.
    """

    name = "numeric"
    version = "2"
    needs = ("expected_answer",)

    def __init__(self, *, tolerance: Annotated[float, Field(ge=0)] = 0.0, pattern: str | None = None) -> None:
        self._tolerance = Decimal(str(tolerance))
        self._pattern = parameter(self.name, pattern) if pattern is not None else None

    def verify(self, item: Judgeable) -> Verdict:
        """Compare the last number with every accepted one; an answer without a number scores 0 and extracts None."""
        accepted = [_expected_number(text) for text in expected_answers(item)]
        text = answer_text(item)
        try:
            found = _numbers(text if self._pattern is None else self._pattern.last(text) or "")
        except TimeoutError:
            return timed_out()
        if not found:
            return Verdict.scored(0.0)
        literal, value = found[-1]
        right = any(self._equal(value, gold) for gold in accepted)
        return Verdict.scored(float(right), extracted_answer=_plain(value), detail={"literal": literal})

    def _equal(self, value: Decimal, gold: Decimal) -> bool:
        if value == gold or not self._tolerance:
            return value == gold
        difference = _ARITHMETIC.abs(_ARITHMETIC.subtract(value, gold))
        return difference <= _ARITHMETIC.multiply(self._tolerance, _ARITHMETIC.abs(gold))


def _expected_number(text: str) -> Decimal:
    found = _numbers(text.rpartition("####")[2])
    if len(found) != 1:
        raise ValueError(f"the task's expected_answer {text!r} holds {len(found)} numbers; numeric needs exactly one")
    return found[0][1]


def _numbers(text: str) -> list[tuple[str, Decimal]]:
    """Return every number in order, as it was written and as a value."""
    found = []
    for match in _NUMBER.finditer(text.strip()):
        sign = "-" if (match["sign"] or match["apart"] or match["inner"] or "+") in _MINUS else ""
        exponent = (match["e"] or match["power"] or "0").replace("\u2212", "-")
        spelled = f"{sign}{re.sub(f'{_SEPARATOR}| ', '', match['digits'])}e{exponent}"
        try:
            found.append((match[0].strip(), Decimal(spelled)))
        except InvalidOperation:  # an exponent of more than eighteen digits
            continue
    return found


def _plain(value: Decimal) -> str:
    if not value:
        return "0"
    if abs(value.adjusted()) > _PLAIN_DIGITS:
        return str(value)
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
