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


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """Add usages field by field: unknown + known = known, all unknown stays unknown, and a sum too large is."""
    rows = list(usages)
    sums: dict[str, int | None] = {}
    for field in dataclasses.fields(Usage):
        known = [value for row in rows if (value := getattr(row, field.name)) is not None]
        sums[field.name] = total if known and (total := sum(known)) <= LARGEST_COUNT else None
    return Usage(**sums)
