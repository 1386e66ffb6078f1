"""Tokens that model calls cost, where unknown is never 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: What the tables can hold. No server has spent more: a count beyond is unknown.
LARGEST_COUNT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls; None where the server did not say, never 0 for unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    total_tokens: int | None = None


#: Their names, once: this is done for every model call.
_COUNTS: Final = tuple(field.name for field in dataclasses.fields(Usage))


def usage_row(usage: Usage) -> dict[str, int | None]:
    """Return a usage as the struct that tables hold."""
    return {name: getattr(usage, name) for name in _COUNTS}


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """Add usages field by field: unknown + known = known, all unknown stays unknown, and a sum too large is."""
    rows = list(usages)
    return Usage(*(_sum([getattr(row, name) for row in rows]) for name in _COUNTS))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return total if known and (total := sum(known)) <= LARGEST_COUNT else None
