"""The code in an answer: text enters, source code leaves, with every blank at its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FENCE: Final = re.compile(
    r"^(?P<quote>(?:[ \t]*+>[ ]?+)*+)(?P<indent>[ \t]*+)(?P<mark>`{3,}|~{3,})(?P<label>[^`\n]*)$", re.MULTILINE
)
#: Blanks by which CommonMark lets a closing mark stand further in than the opening one; a tab is four.
_FURTHER_IN: Final = 3
_TAB: Final = 4

#: How an answer begins that is code without a fence: an indented mark in it belongs to a docstring. One that begins
#: indented may be prose all the same, and a mark with a label then opens a block.
_BARE: Final = re.compile(
    r"\s*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|import\s+\w|from\s+[\w.]+\s+import\s|@\w)"
    r"|(?P<indented>(?:[ \t]*\n)*+(?:[ ]{4}|\t)[ \t]*+[^\s`~>])"
)
_PYTHON: Final = frozenset({"", "python", "python3", "py", "py3"})


@dataclass(frozen=True, slots=True)
class _Block:
    label: str
    code: str


def code_of(answer: str, entry_point: str | None = None) -> str:
    """Return the code in an answer; nothing is ever stripped from it, since a body begins with its indentation.

    That is the last fenced block labelled as Python or not at all, or the last of any label. Of several, the last that
    defines `entry_point` is preferred: an example of use often follows. Without a block the whole answer is code, up
    to a closing mark that nothing opened.

    Args:
        answer: The answer, without the model's reasoning.
        entry_point: Name that the code should define.
    """
    blocks, rest = _blocks(answer)
    if not blocks:
        return rest
    candidates = [block for block in blocks if block.label in _PYTHON] or blocks
    if entry_point is not None:
        candidates = [block for block in candidates if definition(entry_point).search(block.code)] or candidates
    return candidates[-1].code


def definition(name: str) -> re.Pattern[str]:
    """Return what finds the definition of a name at the top level of a source."""
    known = re.escape(name)
    return re.compile(rf"^(?:(?:async[ \t]+)?def[ \t]+{known}\b|class[ \t]+{known}\b|{known}[ \t]*[:=])", re.MULTILINE)


def before_definition(source: str, name: str) -> str:
    """Return what stands before the definition of a name and its decorators; all of the source where it has none."""
    found = definition(name).search(source)
    if found is None:
        return source
    lines = source[: found.start()].splitlines(keepends=True)
    while lines and lines[-1].startswith("@"):
        lines.pop()
    return "".join(lines)


def _blocks(answer: str) -> tuple[list[_Block], str]:
    """Return the fenced blocks, and the text before a mark at the end that closes nothing (all of it without one).

    A block ends at a mark of its own kind that is as long, has no label, and stands as far out (CommonMark), or with
    the text.
    """
    blocks, opening = [], None
    bare = _BARE.match(answer)
    for fence in _FENCE.finditer(answer):
        if opening is None:
            inside = bare and _depth(fence) and not (bare["indented"] and fence["label"].strip())
            opening = None if inside else fence
        elif _closes(fence, opening):
            blocks.append(_block(opening, answer[opening.end() + 1 : fence.start()]))
            opening = None
    if opening is None:
        return blocks, answer
    left = answer[opening.end() + 1 :]
    if not left.strip() and not opening["label"].strip():
        return blocks, answer[: opening.start()]
    return [*blocks, _block(opening, left)], ""


def _depth(fence: re.Match[str]) -> int:
    return len(fence["indent"].expandtabs(_TAB)) + fence["quote"].count(">")


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    further_in = len(fence["indent"].expandtabs(_TAB)) - len(opening["indent"].expandtabs(_TAB))
    return (
        fence["mark"].startswith(opening["mark"])
        and not fence["label"].strip()
        and further_in <= _FURTHER_IN
        and fence["quote"].count(">") <= opening["quote"].count(">")
    )


def _block(opening: re.Match[str], content: str) -> _Block:
    """Return a block whose lines lose what stands before its opening mark: blanks, as in a list, and quoting."""
    indent, quotes = opening["indent"], opening["quote"].count(">")
    words = opening["label"].strip().lower().split()
    if quotes:
        blank = "[ ]?" if opening["quote"].endswith(" ") else ""
        content = re.sub(rf"^(?:[ \t]*+>){{1,{quotes}}}{blank}", "", content, flags=re.MULTILINE)
    if indent:
        width = len(indent.expandtabs(_TAB))
        content = re.sub(rf"^(?:{re.escape(indent)}| {{1,{width}}})", "", content, flags=re.MULTILINE)
    return _Block(words[0] if words else "", content)
