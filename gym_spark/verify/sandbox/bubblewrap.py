"""`bubblewrap`: programs in namespaces of their own, where nothing of the machine but Python is in sight."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Final

from gym_spark.errors import ConfigError
from gym_spark.verify.sandbox.base import Limits, Outcome, Sandbox, SandboxError
from gym_spark.verify.sandbox.process import Confinement, memory_file, needed_paths, run_confined
from gym_spark.verify.sandbox.users import NAMESPACES, UidCycle, can_become_others

_FOLDER: Final = "/w"
_FOLDER_BYTES: Final = 2  # times the limit of one file: the folder holds the program too
_SHM_BYTES: Final = 1 << 20
#: Seconds for the last process of the namespace to be gone, once its first has ended.
_GONE_S: Final = 5.0


class Bubblewrap(Sandbox):
    """Runs each program in new namespaces: no network but an own loopback, no other process, files only in memory.

    Started as root, bubblewrap makes them with root's rights, and the launcher then becomes a user that nobody is, who
    has neither a capability nor a file. Started without such rights, it makes them in a user namespace of their own.
    """

    name = "bubblewrap"

    def __init__(self) -> None:
        self._uids = UidCycle() if can_become_others(NAMESPACES) else None

    @cached_property
    def _program(self) -> str:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxError("the program bwrap is not installed")
        return found

    def version(self) -> str:
        """Return bubblewrap's version."""
        try:
            told = subprocess.run(
                [self._program, "--version"], capture_output=True, text=True, timeout=30, check=True, env={}
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"bwrap does not run ({error})") from error
        return told.stdout.split()[-1]

    def run_once(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: Limits) -> Outcome:
        """Run a program as `Sandbox.run` says."""
        if limits.may_fork and self._uids is None and os.getuid() == 0:
            raise ConfigError("Programs of root may not start others: the kernel does not limit how many.")
        uid = None if self._uids is None else self._uids.take()
        inside = Confinement.of(argv, _FOLDER, limits, uid=uid, supervised=True)
        with ExitStack() as stack:
            held = {name: stack.enter_context(memory_file(content)) for name, content in files.items()}
            status, status_end = os.pipe()
            stack.callback(os.close, status)
            try:
                return run_confined(
                    lambda report: [*self._namespaces(held, status_end, limits), *inside.command(report)],
                    stdin,
                    limits,
                    supervised=True,
                    pass_fds=(*held.values(), status_end),
                )
            finally:
                os.close(status_end)
                _wait_for_end(status)

    def _namespaces(self, held: Mapping[str, int], status: int, limits: Limits) -> list[str]:
        """Return bubblewrap's part of the command line."""
        words = [self._program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words += [
            "--unshare-cgroup-try",
            "--die-with-parent",
            "--as-pid-1",
            "--new-session",
            "--clearenv",
            "--cap-drop",
            "ALL",
        ]
        if self._uids is None:
            words.append("--unshare-user")
        else:
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        words += ["--json-status-fd", str(status), "--ro-bind", "/usr", "/usr"]
        for name in ("lib", "lib64", "bin"):
            place = Path("/", name)
            if place.is_symlink():
                words += ["--symlink", str(place.readlink()), str(place)]
            elif place.is_dir():
                words += ["--ro-bind", str(place), str(place)]
        words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
        for path in needed_paths():
            # Left to itself, bubblewrap gives a folder on the way the mode that it has outside.
            for parent in reversed(Path(path).parents[:-1]):
                words += ["--perms", "0755", "--dir", str(parent)]
            words += ["--ro-bind", path, path]
        words += ["--proc", "/proc", "--dev", "/dev"]
        words += ["--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
        words += ["--perms", "0777", "--size", str(_FOLDER_BYTES * limits.file_bytes), "--tmpfs", _FOLDER]
        for name, content in held.items():
            words += ["--perms", "0644", "--file", str(content), f"{_FOLDER}/{name}"]
        if not any(path.startswith("/tmp/") for path in needed_paths()):
            words += ["--symlink", _FOLDER, "/tmp"]
        return [*words, "--remount-ro", "/", "--chdir", _FOLDER]


def _wait_for_end(status: int) -> None:
    """Wait for the end of the namespace's first process, of which bubblewrap has told; others end with it."""
    os.set_blocking(status, False)
    try:
        told = os.read(status, 1 << 16)
        end = os.pidfd_open(json.JSONDecoder().raw_decode(told.decode())[0]["child-pid"])
    except (BlockingIOError, ProcessLookupError, ValueError):
        return  # nothing was started, or it has ended
    try:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if not poll.poll(1000 * _GONE_S):
            raise SandboxError("the processes of the sandbox did not end")
    finally:
        os.close(end)
