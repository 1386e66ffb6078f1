"""Instructions on the form of an answer: lists, sections, marks, beginnings and ends."""

from __future__ import annotations

import json
import re
from typing import Final

from gym_spark.config import JsonObject
from gym_spark.verify.instructions.base import Check, number, text

_PLACEHOLDER: Final = re.compile(r"\[[^\[\]\n]*\]")
_BULLET: Final = re.compile(r"^[ \t]*(?:\*[^*\n]|-).*$", re.MULTILINE)
_HIGHLIGHT: Final = re.compile(r"\*([^\n*]*)\*")
_DOUBLE: Final = re.compile(r"\*\*([^\n*]*)\*\*")
_TITLE: Final = re.compile(r"<<([^\n<>]+)>>")
_FENCE: Final = re.compile(r"\A```(?:json)?", re.IGNORECASE)
_CHOICES: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _placeholders(answer: str, arguments: JsonObject) -> bool:
    return len(_PLACEHOLDER.findall(answer)) >= number(arguments, "num_placeholders")


def _bullets(answer: str, arguments: JsonObject) -> bool:
    return len(_BULLET.findall(answer)) == number(arguments, "num_bullets")


def _highlights(answer: str, arguments: JsonObject) -> bool:
    marked = [*_HIGHLIGHT.findall(answer), *_DOUBLE.findall(answer)]
    return sum(bool(part.strip()) for part in marked) >= number(arguments, "num_highlights")


def _sections(answer: str, arguments: JsonObject) -> bool:
    splitter = re.compile(rf"\s?{re.escape(text(arguments, 'section_spliter'))}\s?\d+\s?")
    return len(splitter.findall(answer)) >= number(arguments, "num_sections")


def _postscript(answer: str, arguments: JsonObject) -> bool:
    marker = text(arguments, "postscript_marker").strip()
    letters = [letter for letter in marker.lower() if letter.isalnum()]
    dotted = r"\.\s?".join(map(re.escape, letters))
    spelled = dotted if marker in ("P.S.", "P.P.S") else re.escape(marker.lower())
    return re.search(spelled + (r"\." if marker == "P.S." else ""), answer.lower()) is not None


def _choice(answer: str, arguments: JsonObject) -> bool:
    return any(choice in answer for choice in _CHOICES)


def _json(answer: str, arguments: JsonObject) -> bool:
    inner = _FENCE.sub("", answer.strip()).removesuffix("```").strip()
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return True


def _title(answer: str, arguments: JsonObject) -> bool:
    return any(title.strip() for title in _TITLE.findall(answer))


def _repeated_prompt(answer: str, arguments: JsonObject) -> bool:
    return answer.strip().lower().startswith(text(arguments, "prompt_to_repeat").strip().lower())


def _two_responses(answer: str, arguments: JsonObject) -> bool:
    """Tell whether two different answers stand between ``******``; an empty part counts only at the ends."""
    parts = [part.strip() for part in answer.split("******")]
    found = [part for part in parts if part]
    return all(parts[1:-1]) and len(found) == 2 and found[0] != found[1]


def _end(answer: str, arguments: JsonObject) -> bool:
    return answer.strip().strip('"').lower().endswith(text(arguments, "end_phrase").strip().lower())


def _quotation(answer: str, arguments: JsonObject) -> bool:
    bare = answer.strip()
    return len(bare) > 1 and bare.startswith('"') and bare.endswith('"')


def _no_comma(answer: str, arguments: JsonObject) -> bool:
    return "," not in answer


CHECKS: Final[dict[str, Check]] = {
    "combination:repeat_prompt": _repeated_prompt,
    "combination:two_responses": _two_responses,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": _choice,
    "detectable_format:json_format": _json,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:title": _title,
    "punctuation:no_comma": _no_comma,
    "startend:end_checker": _end,
    "startend:quotation": _quotation,
}
