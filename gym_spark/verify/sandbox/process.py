"""One confined process: started through the launcher, watched by limits of time and output, and ended whole."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from gym_spark.verify.sandbox.base import Kind, Limits, Outcome, SandboxError

#: Seconds in which the launcher must be ready, on a busy machine; not charged to the program.
START_LIMIT_S: Final = 60.0
#: Threads and processes of one program.
TASKS: Final = 64
#: Seconds between two looks at what the program has written to disk.
_LOOK_S: Final = 0.1
#: Seconds for the last of the output to arrive after the program's end.
_DRAIN_S: Final = 5.0

#: The program's whole environment. Sets in one order each time, so that a verdict can be repeated; one thread for
#: numpy and its like, whose threads count as CPU and memory.
ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the launcher applies."""

    argv: Sequence[str]
    cpu_s: int
    memory_bytes: int
    file_bytes: int
    may_fork: bool
    #: Bound of the user's threads and processes; None where the user has others.
    tasks: int | None = TASKS
    #: User to become; None to stay.
    uid: int | None = None
    #: Whether the launcher stays as the namespace's first process, and reports the program's end.
    supervised: bool = False
    #: The process with which to die; None where the sandbox sees to that.
    parent: int | None = None
    #: ``readable`` and ``writable`` paths; None where other files are out of sight.
    landlock: dict[str, Sequence[str]] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(argv: Sequence[str], folder: str, limits: Limits, **more: Any) -> Confinement:
        """Return the confinement of a Python program that works in `folder`."""
        return Confinement(
            argv=[interpreter(), "-P", "-s", "-B", *argv],
            cpu_s=math.ceil(limits.cpu_s),
            memory_bytes=limits.memory_bytes,
            file_bytes=limits.file_bytes,
            may_fork=limits.may_fork,
            environment=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
            **more,
        )

    def command(self, report: int) -> list[str]:
        """Return the launcher's command line; `report` is the file descriptor that it reports to."""
        return [interpreter(), "-I", "-S", "-B", "-c", f"{_launcher()}\nmain({asdict(self)!r}, {report})"]


@cache
def _launcher() -> str:
    return files("gym_spark.verify.sandbox").joinpath("launcher.py").read_text(encoding="utf-8")


@cache
def interpreter() -> str:
    """Return the Python that runs programs: this one, outside any virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def needed_paths() -> list[str]:
    """Return what Python needs to read, beside /usr: its own folders, and nothing else below its prefix."""
    prefixes = {Path(interpreter()).parent.parent, Path(sys.base_prefix), Path(sys.base_exec_prefix)}
    return sorted(
        str(prefix / part)
        for prefix in prefixes
        if prefix not in (Path("/"), Path("/usr"))
        for part in ("bin", "lib", "lib64")
        if (prefix / part).is_dir()
    )


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a file descriptor to read the content from, which cannot be written through it."""
    writable = os.memfd_create("input")
    try:
        with open(writable, "wb", closefd=False) as stream:
            stream.write(content)
        readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    finally:
        os.close(writable)
    try:
        yield readable
    finally:
        os.close(readable)


@dataclass(slots=True)
class _Watched:
    """A started process and what has come from it."""

    process: subprocess.Popen[bytes]
    limits: Limits
    streams: dict[int, bytearray]
    report: int
    supervised: bool
    began: float = 0.0
    wall_s: float = 0.0
    ended_by: tuple[Kind, str] | None = None


def run_confined(
    command: Callable[[int], Sequence[str]],
    stdin: bytes,
    limits: Limits,
    *,
    supervised: bool = False,
    pass_fds: Sequence[int] = (),
    folder: str | None = None,
    too_much: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run one command that contains the launcher, and return how the program ended.

    Args:
        command: Returns the command line, given the file descriptor of the launcher's report.
        stdin: The program's input.
        limits: What it may use; CPU, memory and single files are the launcher's to limit.
        supervised: Whether the launcher reports the program's end; otherwise the command's end is the program's.
        pass_fds: Further file descriptors that the command needs.
        folder: Its working directory.
        too_much: Tells whether more lies on disk than may.

    Raises:
        SandboxError: the program was not started, for a reason that is not its own.
    """
    with ExitStack() as stack:
        report, launcher_end = os.pipe()
        stack.callback(os.close, report)
        try:
            source = stack.enter_context(memory_file(stdin))
            process = subprocess.Popen(
                command(launcher_end),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd=folder,
                pass_fds=(launcher_end, *pass_fds),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"the sandbox could not be started ({error})") from error
        finally:
            os.close(launcher_end)
        assert process.stdout is not None
        assert process.stderr is not None
        stack.enter_context(process.stdout)
        stack.enter_context(process.stderr)
        outputs = (process.stdout.fileno(), process.stderr.fileno())
        watched = _Watched(process, limits, {fd: bytearray() for fd in (*outputs, report)}, report, supervised)
        try:
            _watch(watched, too_much)
        finally:
            cpu_s = _end(process)
        _drain(watched)
        stdout, stderr = (bytes(watched.streams[fd]) for fd in outputs)
        return _outcome(watched, stdout, stderr, cpu_s)


def _watch(watched: _Watched, too_much: Callable[[], bool]) -> None:
    """Read until the process ends or a limit of time, output or disk is reached."""
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for fd in watched.streams:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        end = os.pidfd_open(watched.process.pid)
        try:
            selector.register(end, selectors.EVENT_READ)
            while watched.ended_by is None:
                for key, _ in selector.select(_LOOK_S):
                    if key.fd == end:
                        watched.wall_s = time.monotonic() - (watched.began or began)
                        return
                    if not _read(watched, key.fd):
                        selector.unregister(key.fd)
                now = time.monotonic()
                if not watched.began and now - began > START_LIMIT_S:
                    return  # the report says why, by its silence
                if watched.began and now - watched.began > watched.limits.wall_s:
                    watched.ended_by = ("exec_timeout", "wall")
                if too_much():
                    watched.ended_by = ("exec_violation", "files")
            watched.wall_s = time.monotonic() - watched.began
        finally:
            os.close(end)


def _read(watched: _Watched, fd: int) -> bool:
    """Take what has arrived; return False at the stream's end."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return True
    held = watched.streams[fd]
    held += chunk[: watched.limits.output_bytes - len(held)]
    if fd == watched.report and held and not watched.began:
        watched.began = time.monotonic()
    if len(held) >= watched.limits.output_bytes:
        watched.ended_by = ("exec_violation", "output")
    return bool(chunk)


def _end(process: subprocess.Popen[bytes]) -> float:
    """Kill the process's whole group, wait for its end, and return the CPU seconds that it used."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its number is not free before it is waited for
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def _drain(watched: _Watched) -> None:
    """Read what is left in the pipes, whose last writers are about to end."""
    deadline = time.monotonic() + _DRAIN_S
    with selectors.DefaultSelector() as selector:
        for fd in watched.streams:
            selector.register(fd, selectors.EVENT_READ)
        while watched.ended_by is None and selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(deadline - time.monotonic()):
                if not _read(watched, key.fd):
                    selector.unregister(key.fd)


def _outcome(watched: _Watched, stdout: bytes, stderr: bytes, cpu_s: float) -> Outcome:
    ready, *rest = bytes(watched.streams[watched.report]).decode("utf-8", "replace").split("\n")
    told = [line for line in rest if line]
    code = watched.process.returncode
    if ready == "ready" and told and told[-1].startswith("ended "):
        _, status, used = told.pop().split()
        code, cpu_s = os.waitstatus_to_exitcode(int(status)), float(used)
    elif watched.supervised and watched.ended_by is None:
        told.append("it ended before the program did")
    if ready != "ready" or told:
        if ready != "ready":
            told = [ready or stderr.decode("utf-8", "replace").strip()[-500:], *told]
        raise SandboxError(f"the sandbox could not run the program ({'; '.join(filter(None, told))})")
    kind, reason = watched.ended_by or _told_by(code, cpu_s, watched.limits)
    return Outcome(kind, code, stdout, stderr, cpu_s, watched.wall_s, reason)


def _told_by(code: int, cpu_s: float, limits: Limits) -> tuple[Kind, str]:
    """Tell from the signal that ended a program, and its CPU time, which limit it met."""
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s >= limits.cpu_s):
        return "exec_timeout", "cpu"
    if code == -signal.SIGSYS:
        return "exec_violation", "system call"
    if code == -signal.SIGXFSZ:
        return "exec_violation", "files"
    return "ended", ""
