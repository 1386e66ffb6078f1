"""Instructions on the form of an answer: lists, sections, marks, beginnings and ends."""

from __future__ import annotations

import json
import re
from typing import Final

from gym_spark.config import JsonObject
from gym_spark.verify.instructions.base import Check, number, text

_PLACEHOLDER: Final = re.compile(r"\[[^\[\]\n]*\]")
#: Blanks of any kind stand before a bullet; what follows a "*" may be the line's end.
_STAR: Final = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH: Final = re.compile(r"^[^\S\n]*-.*$", re.MULTILINE)
_HIGHLIGHT: Final = re.compile(r"\*([^\n*]*)\*")
_DOUBLE: Final = re.compile(r"\*\*([^\n*]*)\*\*")
_CHOICES: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _placeholders(answer: str, arguments: JsonObject) -> bool:
    return len(_PLACEHOLDER.findall(answer)) >= number(arguments, "num_placeholders")


def _bullets(answer: str, arguments: JsonObject) -> bool:
    return len(_STAR.findall(answer)) + len(_DASH.findall(answer)) == number(arguments, "num_bullets")


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
    inner = answer.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        inner = inner.removeprefix(fence)
    try:
        json.loads(inner.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(answer: str, arguments: JsonObject) -> bool:
    """Look for a title on one line, from its first ``<<`` to its last ``>>``: a greedy expression, in linear time."""
    for line in answer.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


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
