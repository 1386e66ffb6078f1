"""What a sandbox is: a Python program and limits enter, how it ended leaves. Threads may share one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from gym_spark.errors import GymSparkError

Kind = Literal["ended", "exec_timeout", "exec_violation"]

#: Tries of one run whose sandbox failed to start, for reasons that pass on a busy machine.
_TRIES: Final = 3

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class SandboxError(GymSparkError):
    """The sandbox failed, not the program in it: what would have come of the program is unknown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. CPU, memory and file size hold for one process, which `may_fork` can multiply."""

    #: Seconds of CPU time, counted up to the next whole second.
    cpu_s: float = 5.0
    #: Seconds from the program's start to its end: generous, since it also passes while others have the CPU.
    wall_s: float = 50.0
    memory_bytes: int = 1 << 30
    #: Size of one file, and of all files together.
    file_bytes: int = 16 << 20
    #: What it may write to stdout, and to stderr.
    output_bytes: int = 1 << 20
    #: May start other processes; threads it may in any case.
    may_fork: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    #: ``ended`` by itself, or by a limit that shows as an ordinary error to it (memory, files, processes).
    kind: Kind
    #: Exit code, or minus the number of the signal that ended it.
    exit_code: int
    stdout: bytes
    stderr: bytes
    #: Of the program and its start, as far as it is known after a kill.
    cpu_s: float
    wall_s: float
    #: Which limit, where the kind is not ``ended``.
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.kind == "ended" and self.exit_code == 0


class Sandbox(ABC):
    """Runs Python programs that nobody has read. A class of one's own is named ``module:Class``, and takes no argument.

    It must give the program an empty environment, no network, no file of the machine but what Python itself needs, a
    folder of its own as working directory, and must leave no process behind. `choice.choose` tries some of that out.
    """

    name: ClassVar[str]

    @abstractmethod
    def version(self) -> str:
        """Return the version of what contains the program, for the record."""

    @abstractmethod
    def run_once(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: Limits) -> Outcome:
        """Run a program as :meth:`run` says.

        Raises:
            SandboxError: the sandbox failed, so that nothing is known of the program.
        """

    def run(self, files: Mapping[str, str], argv: Sequence[str], *, stdin: str = "", limits: Limits) -> Outcome:
        """Run a Python program to its end, and end all that it has started.

        Args:
            files: The contents of its working folder, by plain names.
            argv: The script, one of `files`, and its arguments.
            stdin: Its standard input.
            limits: What it may use.

        Raises:
            SandboxError: the sandbox failed, also when it was tried again.
        """
        wrong = [name for name in files if not _PLAIN_NAME.fullmatch(name)]
        if wrong:
            raise ValueError(f"'{wrong[0]}' is no plain file name")
        # Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes "?".
        contents = {name: text.encode("utf-8", "replace") for name, text in files.items()}
        for left in reversed(range(_TRIES)):
            try:
                return self.run_once(contents, argv, stdin.encode("utf-8", "replace"), limits)
            except SandboxError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def description(self) -> str:
        """Return name and version, for the run's record and a verdict's detail."""
        return f"{self.name} {self.version()}"
