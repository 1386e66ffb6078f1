"""A run's processes, as /proc shows them: which are alive, what each one is, and which one is talking to a port."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: Spark's own names in the command lines of its processes.
_WORKER_MARK: Final = "pyspark.daemon"
_EXECUTOR_MARK: Final = "CoarseGrainedExecutorBackend"
#: State of an open connection in /proc/net/tcp.
_ESTABLISHED: Final = "01"


def descendants(root: int) -> list[int]:
    """Return all processes below one."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        children.setdefault(parent_of(pid), []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def parent_of(pid: int) -> int:
    """Return a process's parent, 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def command_of(pid: int) -> str:
    """Return a process's command line, empty if it is gone."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; one that nobody has waited for yet has ended too."""
    fields = _stat(pid)
    return not fields or fields[0] == "Z"


def wait_for_end_of(session: int, limit_s: float = 60.0) -> None:
    """Wait until no process of the session is left: the JVM ends when it sees that its driver is gone.

    Raises:
        TimeoutError: Some are left.
    """
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in _all_pids() if _session_of(pid) == session]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of session {session} are left: {[command_of(pid) for pid in left]}")
        time.sleep(0.1)


def busy_workers(root: int, port: int) -> list[int]:
    """Return the Python workers below a process that have a connection to a local port: those that call the model."""
    sockets = _sockets_to(port)
    return [pid for pid in descendants(root) if _WORKER_MARK in command_of(pid) and _open_sockets(pid) & sockets]


def busy_executors(root: int, port: int) -> list[int]:
    """Return the executors (JVMs) below a process whose Python workers call the model."""
    found = set()
    for pid in busy_workers(root, port):
        while pid > 1 and _EXECUTOR_MARK not in command_of(pid):
            pid = parent_of(pid)
        if pid > 1:
            found.add(pid)
    return sorted(found)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, none if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _session_of(pid: int) -> int:
    return 0 if is_gone(pid) else int((_stat(pid) or ["", "0", "0", "0"])[3])


def _sockets_to(port: int) -> set[str]:
    """Return the inodes of the sockets that are connected to a local port."""
    inodes = set()
    for line in (_PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def _open_sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    inodes = set()
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    except OSError:  # it has ended
        pass
    return inodes
