r"""Where an answer stands in a text: the whole text enters, the answer's own text or None leaves.

The last place counts, since a model that thinks aloud changes its mind. Each search is linear in the text, whatever it
holds. Reasoning is gone already (`base.answer_text`).
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Final, Literal

import regex

Place = Literal["boxed", "final_answer", "last_line", "tag", "full_response"]

_BOX: Final = re.compile(r"\\boxed\s*\{")
_BRACE: Final = re.compile(r"\\.|[{}]", re.DOTALL)
_WRAPPER: Final = re.compile(r"\\(?:text|textbf|textit|texttt|mathrm|mathbf|mathit|mathsf|emph)\{")

#: "Answer: x", "**Final answer:** x", "Answer:\nx"; the full-width colon too. The blanks may hold line breaks.
_ANSWER: Final = r"(?<![^\W_])answer[*_`]*\s*[:\uff1a]"


def last_boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` holds, without ``\text{...}`` and the like around it.

    A box without its closing brace is an answer that was cut off: None, even where a finished box stands before it.
    """
    boxes = deque(_BOX.finditer(text), maxlen=1)
    if not boxes:
        return None
    end = closing_brace(text, boxes[0].end())
    return unwrapped(text[boxes[0].end() : end]) if end is not None else None


def closing_brace(text: str, start: int) -> int | None:
    """Return where the brace closes whose inside begins at `start`. An escaped brace is a character like any other."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return brace.start()
    return None


def unwrapped(latex: str) -> str:
    r"""Return LaTeX without a ``\text{...}``, ``\mathbf{...}`` or the like around the whole of it, and stripped."""
    latex = latex.strip()
    for _ in range(4):  # nobody means more of them
        wrapper = _WRAPPER.match(latex)
        if not wrapper or closing_brace(latex, wrapper.end()) != len(latex) - 1:
            break
        latex = latex[wrapper.end() : -1].strip()
    return latex


def labelled(text: str, prefix: str = "") -> list[str]:
    """Return what stands behind each ``Answer:``, to the end of its line and without half a pair of ``**``.

    Args:
        text: The whole text.
        prefix: What may stand before an answer too, such as "Réponse :"; letter case does not count.
    """
    return [_whole_emphasis(match[1].strip()) for match in _label(prefix).finditer(text)]


@lru_cache
def _label(prefix: str) -> regex.Pattern[str]:
    # `regex` looks for a word without regard to case twenty times as fast as `re`.
    other = f"|{regex.escape(prefix)}" if prefix else ""
    label = rf"(?:{_ANSWER}{other})"
    # A heading above an "Answer:" is no answer. Possessive: with a blank less the next label would not be seen.
    heading = rf"(?![*_`#>\s]*+(?:final\s+)?{label})"
    return regex.compile(rf"{label}(?:[*_`]+(?=\s))?\s*+{heading}(.+)", regex.IGNORECASE)


def _whole_emphasis(text: str) -> str:
    # "**Answer: x**" leaves "x**".
    for mark in ("**", "__"):
        if text.count(mark) % 2:
            before, _, behind = text.rpartition(mark)
            at_end = not behind.strip(" .,;:!?")  # "2**3" has none there
            text = (before + behind if at_end else text.removeprefix(mark)).strip()
    return text


def tagged(text: str, tag: str) -> str | None:
    """Return what the last ``<tag>...</tag>`` holds, stripped; None where the last opened one is not closed."""
    start = text.rfind(f"<{tag}>")
    end = text.find(f"</{tag}>", start)
    return text[start + len(tag) + 2 : end].strip() if 0 <= start < end else None


def answer_at(place: Place, text: str, *, tag: str = "answer") -> str | None:
    """Return the answer that stands at a place of the text, or None.

    ``final_answer`` is what follows the last ``Answer:`` (a box in it is opened), or else the last box.
    """
    if place == "boxed":
        return last_boxed(text)
    if place == "tag":
        return tagged(text, tag)
    if place == "final_answer":
        behind = labelled(text)
        boxed = last_boxed(behind[-1] if behind else text)
        return boxed if boxed is not None or not behind else behind[-1]
    lines = text.strip().splitlines()
    if not lines:
        return None
    return lines[-1].strip() if place == "last_line" else text.strip()
