"""Instructions on words, letters, length and language."""

from __future__ import annotations

import re
import string
from functools import cache
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.verify.instructions.base import Check, number, related, text, texts

_WORD: Final = re.compile(r"\w+")
#: Ends the first word of a paragraph.
_PUNCTUATION: Final = re.compile(r"[.,?!'\"]")
_CAPITAL_WORD: Final = re.compile(r"[^\W\d_]+(?:[.&-][^\W\d_]+)*\.?")
#: Characters from which the language is told: more tell no more.
_TELLING: Final = 20_000


def _occurs(word: str, answer: str, *, whole: bool) -> int:
    edge = r"\b" if whole else ""
    return len(re.findall(edge + re.escape(word) + edge, answer, re.IGNORECASE))


def _keywords(answer: str, arguments: JsonObject) -> bool:
    return all(_occurs(word, answer, whole=False) for word in texts(arguments, "keywords"))


def _frequency(answer: str, arguments: JsonObject) -> bool:
    count = _occurs(text(arguments, "keyword").strip(), answer, whole=False)
    return related(count, arguments, "relation", "frequency")


def _forbidden(answer: str, arguments: JsonObject) -> bool:
    return not any(_occurs(word, answer, whole=True) for word in texts(arguments, "forbidden_words"))


def _letter(answer: str, arguments: JsonObject) -> bool:
    letter = text(arguments, "letter").lower()
    return related(answer.lower().count(letter), arguments, "let_relation", "let_frequency")


def _letters(answer: str, arguments: JsonObject) -> bool:
    return related(sum(map(str.isalpha, answer)), arguments, "relation", "N")


def _lowercase_words(answer: str, arguments: JsonObject) -> bool:
    return sum(map(str.islower, _WORD.findall(answer))) <= number(arguments, "N")


def _capital_words(answer: str, arguments: JsonObject) -> bool:
    count = sum(map(str.isupper, _CAPITAL_WORD.findall(answer)))
    return related(count, arguments, "capital_relation", "capital_frequency")


def _words(answer: str, arguments: JsonObject) -> bool:
    return related(len(_WORD.findall(answer)), arguments, "relation", "num_words")


def sentences(answer: str) -> list[str]:
    """Split a text into sentences, by the Punkt model for English."""
    return [sentence for sentence in _library("punkt").sent_tokenize(answer) if sentence.strip()]


def _sentences(answer: str, arguments: JsonObject) -> bool:
    return related(len(sentences(answer)), arguments, "relation", "num_sentences")


def _paragraphs(answer: str, arguments: JsonObject) -> bool:
    return _are_paragraphs(answer, number(arguments, "num_paragraphs"))


def _two_paragraphs(answer: str, arguments: JsonObject) -> bool:
    return _are_paragraphs(answer, 2)


def _are_paragraphs(answer: str, wanted: int) -> bool:
    """Count paragraphs between ``***`` dividers; an empty one counts not at the ends, and is wrong in between."""
    parts = [part.strip() for part in answer.split("***")]
    return all(parts[1:-1]) and sum(map(bool, parts)) == wanted


def _nth_paragraph(answer: str, arguments: JsonObject) -> bool:
    paragraphs = answer.split("\n\n")
    wanted, place = number(arguments, "num_paragraphs"), number(arguments, "nth_paragraph")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if count != wanted or not 1 <= place <= min(count, len(paragraphs)):
        return False
    words = paragraphs[place - 1].split()
    return bool(words) and _first_letters(words[0]) == text(arguments, "first_word").lower()


def _first_letters(word: str) -> str:
    return _PUNCTUATION.split(word.lstrip("'\""), maxsplit=1)[0].lower()


def _sentences_begin(answer: str, arguments: JsonObject) -> bool:
    first = text(arguments, "first_word").lower()
    # A compound such as "first-rate" is a word of its own.
    found = [sentence.split()[0].strip(string.punctuation).lower() for sentence in sentences(answer)]
    return bool(found) and all(word == first for word in found)


def _last_word(answer: str, arguments: JsonObject) -> bool:
    found = _WORD.findall(answer)
    return bool(found) and found[-1].lower() == text(arguments, "last_word").lower()


def _language(answer: str, arguments: JsonObject) -> bool:
    return _is_language(answer, text(arguments, "language"))


def _is_language(answer: str, language: str) -> bool:
    """Tell the language; a text that tells none, such as digits, counts as right, as in the original."""
    detector = _library("langdetect")
    try:
        return bool(detector.detect(answer[:_TELLING]) == language)
    except detector.LangDetectException:
        return True


def _uppercase(answer: str, arguments: JsonObject) -> bool:
    return answer.isupper() and _is_language(answer, "en")


def _lowercase(answer: str, arguments: JsonObject) -> bool:
    return answer.islower() and _is_language(answer, "en")


@cache
def _library(name: str) -> Any:
    # Here and not at the top: their models take a second, and this module is imported to list what there is.
    if name == "punkt":
        import punkt

        return punkt
    import langdetect

    langdetect.DetectorFactory.seed = 0  # else the same text is of one language now and of another later
    return langdetect


CHECKS: Final[dict[str, Check]] = {
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _uppercase,
    "change_case:english_lowercase": _lowercase,
    "count:lowercase_counting": _lowercase_words,
    "first_word:first_word_sent": _sentences_begin,
    "keywords:existence": _keywords,
    "keywords:forbidden_words": _forbidden,
    "keywords:frequency": _frequency,
    "keywords:letter_frequency": _letter,
    "language:response_language": _language,
    "last_word:last_word_answer": _last_word,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_words": _words,
    "letters:letter_counting": _letters,
    "paragraphs:paragraphs": _two_paragraphs,
}
