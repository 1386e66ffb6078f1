"""How many tasks of a benchmark ``--limit`` stands for."""

from __future__ import annotations

import math
from fractions import Fraction


def limit_count(limit: int | float, tasks: int) -> int:
    """Return the number of tasks to use, never above `tasks`.

    Args:
        limit: A count (int, at least 1), or a share of the benchmark (float between 0 and 1), rounded up. A share is
            worked out for each benchmark anew.
        tasks: Tasks in the benchmark.
    """
    if isinstance(limit, int):
        return min(limit, tasks)
    # As the decimal that the user wrote: 0.07 * 100 is 7.000000000000001 in binary, and would become 8.
    return min(math.ceil(Fraction(str(limit)) * tasks), tasks)
