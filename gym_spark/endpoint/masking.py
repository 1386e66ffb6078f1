"""Secrets are masked by value: whatever form a server or library gives the text, the value itself is looked for.

The values are known process-wide: text leaves a process at many places (rows, status files, logs), and each of them
must mask the keys of all clients.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import quote

MASK: Final = "***"
#: Shorter values are placeholders ("EMPTY", "none", "x"), and masking them would eat ordinary words of answers.
SHORTEST_SECRET: Final = 6

#: Spelling -> its bytes, longest first: a spelling may be a part of another.
_spellings: dict[str, bytes] = {}
#: Secret -> what finds it in JSON where any of its characters may be escaped.
_escaped: dict[str, re.Pattern[bytes]] = {}


def add_secret(value: str) -> None:
    """Mask `value`, which is ASCII, from here on: also as JSON text, in Python's notation, and quoted for a URL."""
    if len(value) < SHORTEST_SECRET:
        return
    forms = {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value), quote(value, safe="")}
    known = sorted(forms | _spellings.keys(), key=len, reverse=True)
    _spellings.clear()
    _spellings.update((form, form.encode()) for form in known)
    _escaped[value] = re.compile(b"".join(map(_any_spelling, value)))


def _any_spelling(character: str) -> bytes:
    """Match an ASCII character of a JSON text, as itself or escaped in one of the ways that RFC 8259 §7 allows."""
    itself, code = re.escape(character).encode(), rb"\\u(?i:%04x)" % ord(character)
    return rb"(?:\\?%s|%s)" % (itself, code) if character in '"\\/' else rb"(?:%s|%s)" % (itself, code)


def mask(text: str) -> str:
    """Return `text` with every known secret replaced."""
    for form in _spellings:
        text = text.replace(form, MASK)
    return text


def mask_bytes(raw: bytes) -> bytes:
    """Return a body as it came over the wire with every known secret replaced, however its JSON escapes it."""
    for form in _spellings.values():
        if form in raw:
            raw = raw.replace(form, MASK.encode())
    if b"\\u" in raw or b"\\/" in raw:
        for pattern in _escaped.values():
            raw = pattern.sub(MASK.encode(), raw)
    return raw
