"""`exact_match`: the whole answer equals an accepted text."""

from __future__ import annotations

import string
import unicodedata

from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text, expected_answers


class ExactMatch(Verifier):
    """Reward 1 if the answer equals one of ``expected_answer``, else 0.

    Blanks around either side never count, nor what cannot be seen (a byte order mark). Both sides are brought to one
    Unicode form (NFC), since two spellings of one accented letter look the same.

    Args:
        ignore_case: Compare without regard to case (Unicode case folding).
        strip_punctuation: Ignore punctuation around the answer, such as a full stop, quotes of any form or ``**``.
    """

    name = "exact_match"
    version = "2"
    needs = ("expected_answer",)

    def __init__(self, *, ignore_case: bool = False, strip_punctuation: bool = False) -> None:
        self._ignore_case = ignore_case
        self._strip_punctuation = strip_punctuation

    def verify(self, item: Judgeable) -> Verdict:
        """Compare the normalised answer with every accepted text; an empty answer extracts nothing."""
        accepted = {self._normalised(answer) for answer in expected_answers(item)}
        answer = self._normalised(answer_text(item))
        if not answer:
            return Verdict.scored(0.0)
        return Verdict.scored(float(answer in accepted), extracted_answer=answer)

    def _normalised(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        start, end = 0, len(text)
        while start < end and self._is_around(text[start]):
            start += 1
        while start < end and self._is_around(text[end - 1]):
            end -= 1
        return text[start:end].casefold() if self._ignore_case else text[start:end]

    def _is_around(self, char: str) -> bool:
        """Tell whether a character does not count at an end; ``$`` and the like are punctuation in ASCII alone."""
        kind = unicodedata.category(char)
        return (
            char.isspace()
            or kind == "Cf"
            or (self._strip_punctuation and (kind[0] == "P" or char in string.punctuation))
        )
