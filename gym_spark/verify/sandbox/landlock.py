"""`landlock`: programs on the machine itself, with the kernel refusing files, sockets, other processes and signals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gym_spark.errors import ConfigError
from gym_spark.verify.sandbox.base import Limits, Outcome, Sandbox, SandboxError
from gym_spark.verify.sandbox.launcher import landlock_version
from gym_spark.verify.sandbox.process import TASKS, Confinement, needed_paths, run_confined
from gym_spark.verify.sandbox.users import CARE, UidCycle, can_become_others, others_can_read_python

_READABLE: Final = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom", "/dev/zero")

#: Entries of the working folder beyond which it is not looked through, but too much.
_ENTRIES: Final = 1000


class Landlock(Sandbox):
    """Runs each program in a folder of its own, for machines on which no namespaces can be made.

    Started as root, the program becomes a user that nobody is, where that user may run this Python; otherwise it keeps
    its user and loses the capabilities. It cannot start processes: without namespaces, they could not all be ended.
    """

    name = "landlock"

    def __init__(self) -> None:
        self._uids = UidCycle() if can_become_others(CARE) and others_can_read_python() else None

    def version(self) -> str:
        """Return the version of the kernel's interface, and whose rights programs have."""
        if sys.platform != "linux":
            raise SandboxError("it needs Linux")
        return f"{landlock_version()} ({'its own' if self._uids else 'the same'} user)"

    def run_once(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: Limits) -> Outcome:
        """Run a program as `Sandbox.run` says."""
        if limits.may_fork:
            raise ConfigError("The sandbox 'landlock' cannot run programs that start others; use bubblewrap.")
        uid = None if self._uids is None else self._uids.take()
        folder = tempfile.mkdtemp(prefix="gym-spark-sandbox-")
        try:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            if uid is not None:
                os.chown(folder, uid, uid)
            # Of another user's processes the kernel counts none; of this one's, those of Spark as well.
            inside = Confinement.of(
                argv,
                folder,
                limits,
                uid=uid,
                tasks=TASKS if uid is not None else None,
                parent=os.getpid(),
                landlock={"readable": [*_READABLE, *needed_paths()], "writable": [folder, "/dev/null"]},
            )
            return run_confined(
                inside.command, stdin, limits, folder=folder, too_much=lambda: _holds_more(folder, limits.file_bytes)
            )
        except OSError as error:
            raise SandboxError(f"the working folder could not be made ({error})") from error
        finally:
            _remove(folder)


def _holds_more(folder: str, limit: int) -> bool:
    """Tell whether the files below a folder take more than `limit` bytes, or are too many or too deep to count."""
    held = entries = 0
    todo = [folder]
    try:
        while todo:
            with os.scandir(todo.pop()) as found:
                for entry in found:
                    entries += 1
                    held += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    if held > 2 * limit or entries > _ENTRIES:
                        return True
    except FileNotFoundError:
        return False  # removed while it was counted; the next look counts again
    except OSError:
        return True  # it cannot be looked at: paths of thousands of letters, folders that nobody may read
    return False


def _remove(folder: str) -> None:
    """Remove a folder whatever a program has made of it."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Deeper than rmtree goes, or folders without the right to read them.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False)
