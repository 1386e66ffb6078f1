"""How fast this machine runs Python, so that a limit of CPU time means the same work everywhere."""

from __future__ import annotations

import time
from functools import cache
from typing import Final

#: CPU seconds of :func:`_work` on the machine for which limits are meant, by Python 3.11; measured with this module.
REFERENCE_S: Final = 0.004
_TRIES: Final = 5
#: Up to here it is chance, and the limit is as it was written.
_CHANCE: Final = 1.25


@cache
def slowness() -> float:
    """Return how many times longer this machine takes than the reference, at least 1; measured once per process.

    The best of some tries counts: others on the machine can only make one slower. A faster machine keeps the limit.
    """
    found = round(min(_tried() for _ in range(_TRIES)) / REFERENCE_S, 2)
    return found if found > _CHANCE else 1.0


def _tried() -> float:
    began = time.thread_time()
    _work()
    return time.thread_time() - began


def _work() -> int:
    """Count, index and call, as programs do that solve small problems."""
    table = dict.fromkeys(range(256), 1)
    total = 0
    for number in range(60_000):
        table[number & 255] = total = (total * 31 + table[number % 251]) % 1_000_003
    return total
