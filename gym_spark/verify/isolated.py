"""Verifiers in child processes that can be killed: judgeable rollouts enter, verdicts leave, a hang costs one verdict.

Why not a library: pebble's ProcessPool is the nearest (concurrent.futures has no limit per item). It starts children
through `multiprocessing`, which imports the caller's ``__main__`` again (spawn) or inherits locks held by other threads
(fork). Tried with pebble 5.2.3: it refuses inside a daemonic process ("daemonic processes are not allowed to have
children"), leaves a timed-out child's own children running, and after a kill -9 of the parent a child that hangs lives
on.

So a child here is a plain `subprocess` with one pipe in each direction. It is reused for all items and replaced
after a kill; messages are JSON, since a child that has read hostile text is not to be unpickled.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Final

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier, warm_up
from gym_spark.verify.sandbox.choice import OFF

#: Address space of a child, bytes: generous for sympy, small enough that one expression cannot take the machine.
MEMORY_LIMIT: Final = 4 << 30

#: Size of one file that a child may write, bytes. It also holds for a log file that is the child's stderr.
FILE_LIMIT: Final = 1 << 30

#: Processes and threads that may come on top of those that the user has when a child starts: the kernel counts them by
#: user, and a worker's user also has Spark's. It does not count root's.
PROCESSES: Final = 1024

#: Seconds a child may take to start and import its libraries, on a busy machine; not charged to any item.
START_LIMIT_S: Final = 120.0

#: Items per child that may be judged ahead of the oldest unfinished one, so that one hang does not idle the others.
_AHEAD: Final = 8

# The parent's module path goes along: in a Spark worker it holds files that were shipped to it.
_BOOTSTRAP: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from gym_spark.verify.isolated import serve; serve(*map(int, sys.argv[2:]))"
)


@dataclass(slots=True)
class _Slot:
    """Place of one item's verdict, in the items' order; the item itself, which may be large, is not kept."""

    verdict: Verdict | None


class IsolatedPool:
    """Judges from one calling thread with up to `processes` children; the first starts with the first item.

    Args:
        verifier_name: Registered name or ``module:Class``.
        params: The verifier's parameters.
        processes: Children that work at the same time.
        limit_s: Wall seconds that one item may take. Its CPU seconds, of all threads together, may be one more: they
            end a child that hangs while nobody waits for it, which happens when `judge` is not asked for the next.
        sandbox: Where a verifier may run code that a model wrote (`sandbox.choice.choose`).
    """

    def __init__(
        self,
        verifier_name: str,
        params: Mapping[str, Any],
        *,
        processes: int = 1,
        limit_s: float = 10.0,
        sandbox: str = OFF,
    ) -> None:
        if processes < 1 or limit_s <= 0:
            raise ConfigError(f"processes ({processes}) and limit_s ({limit_s}) must be positive.")
        self._setup = {"name": verifier_name, "params": dict(params), "limit_s": limit_s, "sandbox": sandbox}
        self._processes = processes
        self._limit_s = limit_s
        self._idle: list[_Child] = []
        self._busy: dict[_Child, _Slot] = {}

    def judge(self, items: Iterable[Judgeable | Verdict]) -> Iterator[Verdict]:
        """Yield one verdict per item, in the items' order, reading `items` only a little ahead.

        A verdict among the items is passed on in its place: a row that was decided without the verifier.

        Raises:
            ConfigError: A child cannot build the verifier or import its libraries.
        """
        source, window, exhausted = iter(items), deque[_Slot](), False
        while True:
            while not exhausted and len(self._busy) < self._processes and len(window) < _AHEAD * self._processes:
                item = next(source, None)
                if item is None:
                    exhausted = True
                elif isinstance(item, Verdict):
                    window.append(_Slot(item))
                else:
                    window.append(_Slot(None))
                    self._dispatch(window[-1], item)
            while window and window[0].verdict is not None:
                yield window.popleft().verdict  # type: ignore[misc]  # mypy does not narrow window[0]
            if self._busy:
                self._collect()
            elif exhausted and not window:
                return

    def close(self) -> None:
        """Kill every child, busy or not; none of them holds anything that must be saved."""
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle, self._busy = [], {}

    def __enter__(self) -> IsolatedPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _dispatch(self, slot: _Slot, item: Judgeable) -> None:
        child = self._idle.pop() if self._idle else _Child(self._setup)
        if child.has_ended():  # while idle, which is not this item's doing
            child.kill()
            child = _Child(self._setup)
        self._busy[child] = slot
        child.send(_as_object(item), self._limit_s)

    def _collect(self) -> None:
        """Wait until a child has answered, died or used up its time, and give its slot the verdict."""
        first = min(child.deadline for child in self._busy)
        ready = set(wait([child.replies for child in self._busy], max(0.0, first - time.monotonic())))
        for child, slot in list(self._busy.items()):
            if child.replies in ready:
                slot.verdict = child.receive()
            elif child.deadline <= time.monotonic():
                child.kill()
                slot.verdict = Verdict.unscored("verify_timeout", f"no verdict within {self._limit_s:g} s")
            else:
                continue
            del self._busy[child]
            if child.alive:
                self._idle.append(child)


class _Child:
    """The parent's end of one child process, in its own process group."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        requests, self._requests = Pipe(duplex=False)
        self.replies, replies = Pipe(duplex=False)
        lifeline, self._lifeline = Pipe(duplex=False)
        with requests, replies, lifeline:
            ends = (requests.fileno(), replies.fileno(), lifeline.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), *map(str, ends)],
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a verifier prints must not mix with the caller's output
                start_new_session=True,
            )
        self.alive = True
        self.deadline = 0.0
        try:
            self._start(setup)
        except BaseException:  # an interrupt too: no child may be left behind
            self.kill()
            raise

    def _start(self, setup: Mapping[str, Any]) -> None:
        failure = f"did not start within {START_LIMIT_S:g} s"
        self.send(setup, START_LIMIT_S)
        if self.replies.poll(START_LIMIT_S):
            try:
                failure = json.loads(self.replies.recv_bytes())["failure"]
            except (EOFError, OSError):
                failure = f"ended with code {self._process.wait()} while starting"
        if failure:
            raise ConfigError(f"The child process of verifier '{setup['name']}' failed: {failure.rstrip('.')}.")

    def send(self, message: Mapping[str, Any], limit_s: float) -> None:
        """Send one message and start its clock; a child that is gone is noticed by the end of its replies."""
        self.deadline = time.monotonic() + limit_s
        with suppress(OSError):
            self._requests.send_bytes(json.dumps(message).encode())

    def receive(self) -> Verdict:
        """Return the verdict that is ready, or ``verifier_error`` if the child died instead."""
        try:
            return Verdict(**json.loads(self.replies.recv_bytes()))
        except (EOFError, OSError):
            self.kill()
            if self._process.returncode == -signal.SIGXCPU:
                return Verdict.unscored("verify_timeout", "no verdict within its CPU time")
            return Verdict.unscored(
                "verifier_error", f"the verifier's process ended with code {self._process.returncode}"
            )

    def has_ended(self) -> bool:
        """Tell whether the process is gone, for instance taken by the kernel for its memory."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process and whatever it has started, and wait for its end."""
        if not self.alive:
            return
        self.alive = False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for end in (self._requests, self.replies, self._lifeline):
            end.close()


def _as_object(item: Judgeable | Verdict) -> dict[str, Any]:
    # dataclasses.asdict would copy the nested JSON first.
    return {each.name: getattr(item, each.name) for each in fields(item)}


def serve(requests_fd: int, replies_fd: int, lifeline_fd: int) -> None:
    """Run in the child: build the verifier, then answer one request after the other until the pipe ends."""
    _die_with_parent(lifeline_fd)
    _limit(resource.RLIMIT_AS, MEMORY_LIMIT)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, FILE_LIMIT)
    _limit(resource.RLIMIT_NPROC, _tasks_of_this_user() + PROCESSES)
    requests, replies = Connection(requests_fd, writable=False), Connection(replies_fd, readable=False)
    with suppress(EOFError, BrokenPipeError):
        setup = json.loads(requests.recv_bytes())
        failure = ""
        try:
            verifier = load_verifier(setup["name"], setup["params"])
            warm_up(setup["name"], verifier, setup["sandbox"])
        except ConfigError as error:
            failure = str(error)
        replies.send_bytes(json.dumps({"failure": failure}).encode())
        while not failure:
            item = Judgeable(**json.loads(requests.recv_bytes()))
            _limit_cpu(setup["limit_s"])
            verdict = judge_one(verifier, item)
            replies.send_bytes(json.dumps(_as_object(verdict)).encode())


def _die_with_parent(lifeline_fd: int) -> None:
    """Have the kernel end this process group when the parent's end of the lifeline closes, however the parent ends.

    The end of the request pipe is only seen between two items. A pipe with O_ASYNC raises SIGIO when its other end
    closes, and SIGIO's default action is to terminate, also within one long operation in C. (PR_SET_PDEATHSIG would
    fire when the *thread* that started the child ends.)
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # a parent that ignores it has passed that on
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_cpu(limit_s: float) -> None:
    """Let this process use so many CPU seconds more, and one to spare: the limit counts all that it has ever used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(used.ru_utime + used.ru_stime + limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _tasks_of_this_user() -> int:
    """Count the processes and threads of this process's user, as the kernel does for its limit."""
    count, user = 0, os.getuid()
    for folder in os.scandir("/proc"):
        with suppress(OSError):  # it has ended
            if folder.name.isdigit() and folder.stat().st_uid == user:
                count += len(os.listdir(f"{folder.path}/task"))
    return count


def _limit(kind: int, wanted: int) -> None:
    """Lower a resource limit; a lower one that is already set stays."""
    hard = resource.getrlimit(kind)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (value, value))
