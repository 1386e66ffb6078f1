"""CPU time and memory of process trees, read from /proc: what a measurement cost, whoever spent it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.reliability.process_tree import command_of, descendants

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_S: Final = 0.25
#: Kind of process -> what its command line holds.
_MARKS: Final = {"workers": "pyspark.daemon", "jvm": "org.apache.spark"}


def cpu_s(*, without: int | None = None) -> dict[str, float]:
    """Return the CPU seconds of this process and all below it, ended ones included, by kind.

    Args:
        without: A process below this one (the stub) that is left out with all below it, if there is one.

    Returns:
        `workers` (Spark's Python workers and their daemon), `jvm`, and `driver` for everything else.
    """
    left_out = set() if without is None else {without, *descendants(without)}
    spent = dict.fromkeys([*_MARKS, "driver"], 0.0)
    for pid in [os.getpid(), *descendants(os.getpid())]:
        if pid not in left_out:
            spent[_kind(pid)] += _cpu_s(pid)
    return spent


def _kind(pid: int) -> str:
    command = command_of(pid)
    return next((kind for kind, mark in _MARKS.items() if mark in command), "driver")


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_S


@dataclass
class Peaks:
    """Highest resident memory of processes below this one, in MB, by kind and process; kinds as in `cpu_s`."""

    mb: dict[str, dict[int, float]] = field(default_factory=dict)

    def look(self) -> None:
        """Take note of what the kernel has recorded (VmHWM) for the processes that live now."""
        for pid in descendants(os.getpid()):
            found = self.mb.setdefault(_kind(pid), {})
            found[pid] = max(found.get(pid, 0.0), _peak_mb(pid))


def _peak_mb(pid: int) -> float:
    """Return the highest resident memory that a process has had; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


@contextmanager
def peaks() -> Iterator[Peaks]:
    """Watch the memory of Spark's processes for the while."""
    seen, over = Peaks(), threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            seen.look()

    watcher = threading.Thread(target=watch, name="peaks")
    watcher.start()
    try:
        yield seen
    finally:
        seen.look()
        over.set()
        watcher.join()
