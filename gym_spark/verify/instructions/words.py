"""Instructions on words, letters, length and language."""

from __future__ import annotations

import re
import string
from functools import cache
from typing import Any, Final

from gym_spark.config import JsonObject
from gym_spark.verify.instructions.base import Check, number, related, text, texts

_WORD: Final = re.compile(r"\w+")
#: Of the letters a to z alone, as its prompts say.
_LOWERCASE_WORD: Final = re.compile(r"\b[a-z]+\b")
#: Ends the first word of a paragraph.
_PUNCTUATION: Final = re.compile(r"[.,?!'\"]")

#: Where the convention of the Penn Treebank, which IFEval's word tokenizer has, parts a text into words; hyphens,
#: slashes and single full stops do not. Own code, since NLTK would be needed for nothing else. Pieces without letters
#: may differ: they are no capitals.
_MARKS: Final = r"""\s\[\](){}<>;@#$%&?!*"`«»“”„\u2018\u2019\u2012-\u2015"""
_ENDING: Final = rf"(?<=[^'{_MARKS}])(?=(?:'(?:[smd]|ll|re|ve)|n't)\.*(?:[{_MARKS}:,]|$))"
#: Words that are two.
_TWO: Final = "|".join(
    rf"(?<=\b{one})(?={two}\b)"
    for one, two in map(str.split, ("can not", "gim me", "gon na", "got ta", "lem me", "wan na"))
)
_BETWEEN_WORDS: Final = re.compile(rf"[{_MARKS}]|--|''|\.{{2,}}|[:,](?!\d)|{_ENDING}|{_TWO}", re.IGNORECASE)

#: Characters from which the language is told: more tell no more.
_TELLING: Final = 20_000
#: Characters of which sentences are told: some thousand, where tasks ask for twenty. Punkt takes three seconds for a
#: million, and the loose rule asks for eight forms of an answer.
_SENTENCES_CHARS: Final = 100_000


def _occurs(word: str, answer: str, *, whole: bool) -> int:
    before, behind = (r"(?<!\w)", r"(?!\w)") if whole else ("", "")  # no \b: "C++" ends in none
    return len(re.findall(before + re.escape(word) + behind, answer, re.IGNORECASE))


def _keywords(answer: str, arguments: JsonObject) -> bool:
    return all(_occurs(word, answer, whole=False) for word in texts(arguments, "keywords"))


def _frequency(answer: str, arguments: JsonObject) -> bool:
    count = _occurs(text(arguments, "keyword").strip(), answer, whole=False)
    return related(count, arguments, "relation", "frequency")


def _forbidden(answer: str, arguments: JsonObject) -> bool:
    return not any(_occurs(word, answer, whole=True) for word in texts(arguments, "forbidden_words"))


def _letter(answer: str, arguments: JsonObject) -> bool:
    letter = text(arguments, "letter").lower()
    if len(letter) != 1:
        raise ValueError(f"letter is {letter!r}; it must be one character")
    return related(answer.lower().count(letter), arguments, "let_relation", "let_frequency")


def _letters(answer: str, arguments: JsonObject) -> bool:
    count = sum(letter in string.ascii_letters for letter in answer)
    return related(count, arguments, "relation", "N")


def _lowercase_words(answer: str, arguments: JsonObject) -> bool:
    return len(_LOWERCASE_WORD.findall(answer)) <= number(arguments, "N")


def _capital_words(answer: str, arguments: JsonObject) -> bool:
    count = sum(map(str.isupper, _BETWEEN_WORDS.split(answer)))
    return related(count, arguments, "capital_relation", "capital_frequency")


def _words(answer: str, arguments: JsonObject) -> bool:
    return related(len(_WORD.findall(answer)), arguments, "relation", "num_words")


def sentences(answer: str) -> list[str]:
    """Split a text, the first `_SENTENCES_CHARS` characters of it, into sentences, by the Punkt model for English."""
    return [sentence for sentence in _punkt().tokenize(answer[:_SENTENCES_CHARS]) if sentence.strip()]


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
    """Check a paragraph's first word. Empty paragraphs are not counted, but have a place: an official fault, kept."""
    wanted, place = number(arguments, "num_paragraphs"), number(arguments, "nth_paragraph")
    first = text(arguments, "first_word").lower()
    if not 1 <= place <= wanted:
        raise ValueError(f"nth_paragraph is {place}; it must be one of the {wanted} paragraphs")
    paragraphs = answer.split("\n\n")
    if sum(bool(paragraph.strip()) for paragraph in paragraphs) != wanted:
        return False
    words = paragraphs[place - 1].split(maxsplit=1)
    return bool(words) and _first_letters(words[0]) == first


def _first_letters(word: str) -> str:
    return _PUNCTUATION.split(word.lstrip("'").lstrip('"'), maxsplit=1)[0].lower()


def _sentences_begin(answer: str, arguments: JsonObject) -> bool:
    first = text(arguments, "first_word").lower()
    # A compound such as "first-rate" is a word of its own.
    found = [sentence.split()[0].strip(string.punctuation).lower() for sentence in sentences(answer)]
    return bool(found) and all(word == first for word in found)


def _last_word(answer: str, arguments: JsonObject) -> bool:
    last, found = text(arguments, "last_word").lower(), answer.rsplit(maxsplit=1)[-1:]
    return bool(found) and "".join(_WORD.findall(found[0])).lower() == last


def _language(answer: str, arguments: JsonObject) -> bool:
    language = text(arguments, "language")
    if language not in _detectors().get_lang_list():
        raise ValueError(f"language is {language!r}, which cannot be told; it must be one such as 'en' or 'zh-cn'")
    return _is_language(answer, language)


def _is_language(answer: str, language: str) -> bool:
    """Tell the language; a text that tells none, such as digits, counts as right, as in the original."""
    from langdetect.lang_detect_exception import LangDetectException  # not at the top: as in `_detectors`

    detector = _detectors().create()
    try:
        detector.append(answer[:_TELLING])
        return bool(detector.detect() == language)
    except LangDetectException:
        return True


def _uppercase(answer: str, arguments: JsonObject) -> bool:
    return answer.isupper() and _is_language(answer, "en")


def _lowercase(answer: str, arguments: JsonObject) -> bool:
    return answer.islower() and _is_language(answer, "en")


# Imports here and not at the top: the models take a second, and this module is imported to list what there is.
@cache
def _punkt() -> Any:
    import punkt

    return punkt.tokenizer_for("english")


@cache
def _detectors() -> Any:
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.seed = 0  # else the same text is of one language now and of another later
    factory.load_profile(PROFILES_DIRECTORY)
    return factory


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
