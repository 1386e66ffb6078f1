"""Nothing to prepare: only the metrics of this benchmark are used, over imported runs."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source


def rows(source: Source) -> Iterator[Row]:
    """Yield no rows."""
    return iter(())
