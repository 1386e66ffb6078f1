"""Users that nobody is, for programs to run as where a sandbox starts as root, and whether that can be done."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from gym_spark.verify.sandbox.process import interpreter, needed_paths

#: Taken in turn: the kernel counts processes by user, and counts those that have just ended for a while, so that one
#: user for all programs would fail to start some.
FIRST_UID: Final = 60001
UIDS: Final = 200

#: Numbers of capabilities: what becoming another user takes, what making namespaces takes, and what it takes to
#: give another user a folder, to end its process, and to remove what it has left.
_BECOME: Final = (6, 7)  # CAP_SETGID, CAP_SETUID
NAMESPACES: Final = (21,)  # CAP_SYS_ADMIN
CARE: Final = (0, 1, 3, 5)  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL


class UidCycle:
    """Gives out user numbers in turn, from a start that differs between processes."""

    def __init__(self) -> None:
        self._next = os.getpid() * 7

    def take(self) -> int:
        """Return the next one; a race between threads at worst gives one twice, which costs nothing."""
        self._next += 1
        return FIRST_UID + self._next % UIDS


def can_become_others(more: Sequence[int]) -> bool:
    """Tell whether this process is root, with the rights to become another user, and the capabilities `more`.

    Root of a container may lack them, or the users themselves.
    """
    if os.getuid() != 0:
        return False
    status = Path("/proc/self/status").read_text()
    held = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    if not all(held >> capability & 1 for capability in (*_BECOME, *more)):
        return False
    ranges = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= FIRST_UID and first + count >= FIRST_UID + UIDS for first, _, count in ranges)


@cache
def others_can_read_python() -> bool:
    """Tell whether any user of this machine may run the interpreter; below a home folder that is often not so."""
    places = [Path(interpreter()), *map(Path, needed_paths())]
    parents = {parent for place in places for parent in (place, *place.parents)}
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in parents)
