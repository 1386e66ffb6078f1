"""Sandboxes hold what they promise: FIELD-NOTES P60, on each backend that can run here."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_spark.errors import ConfigError
from gym_spark.verify.sandbox.base import Limits, Outcome, Sandbox, SandboxError
from gym_spark.verify.sandbox.choice import choose, sandbox_description

BACKENDS = ("bubblewrap", "landlock")


def backend_or_skip(name: str) -> Sandbox:
    try:
        return choose(name)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(params=BACKENDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return backend_or_skip(request.param)


def run(sandbox: Sandbox, code: str, **limits: Any) -> Outcome:
    return sandbox.run({"main.py": code}, ["main.py"], limits=Limits(**{"cpu_s": 2.0, "wall_s": 20.0} | limits))


def processes_with(word: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_some_sandbox_holds_on_this_machine() -> None:
    """Otherwise every other test here would be skipped."""
    assert sandbox_description("auto").split()[0] in BACKENDS
    assert sandbox_description("off") == "off"


def test_a_program_has_its_files_its_arguments_its_input_and_threads(sandbox: Sandbox) -> None:
    code = """
import os, sys, threading
thread = threading.Thread(target=print, args=("in a thread", flush := True))
thread.start()
thread.join()
open("own", "w").write("x")
print(sorted(os.listdir()), sys.argv[1:], sys.stdin.read(), open("data.txt", encoding="utf-8").read())
print("aside", file=sys.stderr)
sys.exit(7)
"""
    files = {"main.py": code, "data.txt": "déjà"}
    outcome = sandbox.run(files, ["main.py", "a b"], stdin="in\n", limits=Limits())
    assert outcome.stdout.decode().splitlines()[1:] == ["['data.txt', 'main.py', 'own'] ['a b'] in", " déjà"]
    assert (outcome.kind, outcome.exit_code, outcome.stderr) == ("ended", 7, b"aside\n")
    assert 0 < outcome.cpu_s < 2
    assert 0 < outcome.wall_s < 20


def test_the_environment_is_empty_but_for_what_python_needs(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    names = run(sandbox, "import os\nprint(*sorted(os.environ))").stdout.decode().split()
    assert set(names) <= {"HOME", "LANG", "LC_CTYPE", "OMP_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED", "TMPDIR"}


def test_nothing_of_gym_spark_and_no_installed_package_is_in_sight(sandbox: Sandbox) -> None:
    code = (
        "import sys\ntry:\n    import gym_spark\nexcept ImportError:\n    print('none', sys.prefix == sys.base_prefix)"
    )
    assert run(sandbox, code).stdout == b"none True\n"


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("while True: pass", "exec_timeout", "cpu"),
        ("import time; time.sleep(60)", "exec_timeout", "wall"),
        ("import os; os.close(1); os.close(2)\nwhile True: pass", "exec_timeout", "cpu"),
        ("while True: print('x' * 1000)", "exec_violation", "output"),
        ("import sys\nwhile True: print('x' * 1000, file=sys.stderr)", "exec_violation", "output"),
        ("import signal, os; signal.signal(25, signal.SIG_DFL); f = open('f', 'wb'); f.truncate(1 << 30)",
         "exec_violation", "files"),
        ("import ctypes; ctypes.CDLL(None).unshare(0x10000000)", "exec_violation", "system call"),
        ("import os; os.abort()", "ended", ""),
    ],
    ids=["cpu", "sleep", "closed output", "stdout", "stderr", "file size", "namespaces", "abort is no violation"],
)  # fmt: skip
def test_a_limit_that_ends_a_program_is_told_apart(sandbox: Sandbox, code: str, kind: str, reason: str) -> None:
    outcome = run(sandbox, code, cpu_s=1.0, wall_s=3.0 if reason == "wall" else 20.0)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert len(outcome.stdout) <= Limits().output_bytes


def test_processes_that_a_program_may_start_die_with_it_and_are_few() -> None:
    sandbox = backend_or_skip("bubblewrap")
    mark = f"{86400 + secrets.randbelow(10**6)}.5"
    daemon = f"""
import os, subprocess
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(3):
                os.close(fd)
            os.execv("/bin/sleep", ["sleep", "{mark}"])
        os._exit(0)
print(subprocess.run(["/bin/echo", "started"], capture_output=True).stdout)
"""
    try:
        outcome = run(sandbox, daemon, may_fork=True)
    except ConfigError as error:
        pytest.skip(str(error))
    assert outcome.succeeded, outcome.stderr
    assert b"started" in outcome.stdout
    assert processes_with(mark) == []
    bomb = (
        "import os, time\nn = 0\nwhile True:\n    if os.fork() == 0:\n        time.sleep(60)\n    n += 1\n    print(n)"
    )
    outcome = run(sandbox, bomb, may_fork=True)
    assert (outcome.kind, outcome.exit_code) == ("ended", 1)
    assert b"BlockingIOError" in outcome.stderr
    assert 10 < len(outcome.stdout.split()) < 80


def test_landlock_refuses_to_let_programs_start_others() -> None:
    sandbox = backend_or_skip("landlock")
    with pytest.raises(ConfigError, match="bubblewrap"):
        run(sandbox, "", may_fork=True)


def test_programs_sixteen_at_a_time_all_start(sandbox: Sandbox) -> None:
    """COMPONENTS.md: one user for all of them failed to start 126 of 164."""
    outcomes: list[bool] = []

    def some() -> None:
        outcomes.extend(run(sandbox, "print(1)", wall_s=60.0).stdout == b"1\n" for _ in range(4))

    threads = [threading.Thread(target=some) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 64


class Open(Sandbox):
    """Contains nothing: a plain process."""

    name = "open"

    def version(self) -> str:
        return "1"

    def run_once(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: Limits) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            command = [sys.executable, *argv]
            done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, timeout=60, check=False)
        return Outcome("ended", done.returncode, done.stdout, done.stderr, 0.1, 0.1)


class Stumbling(Sandbox):
    """Fails to start a few times, then stands in for the best that there is."""

    name = "stumbling"
    failures = 2

    def version(self) -> str:
        return "2.1"

    def run_once(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: Limits) -> Outcome:
        if self.failures:
            self.failures -= 1
            raise SandboxError("busy")
        return choose("auto").run_once(files, argv, stdin, limits)


class Broken(Stumbling):
    """Never starts."""

    failures = 10**9


def test_a_sandbox_of_one_s_own_is_tried_out_too_and_tried_again_where_it_fails_to_start() -> None:
    assert choose(f"{__name__}:Stumbling").description() == "stumbling 2.1"
    with pytest.raises(ConfigError, match=r"contained here .*Open: a program in it could read a file, write a file, "):
        choose(f"{__name__}:Open")
    with pytest.raises(ConfigError, match=r"contained here .*Broken: busy\); take --sandbox auto"):
        choose(f"{__name__}:Broken")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("off", "only with --sandbox auto"),
        ("bublewrap", "did you mean 'bubblewrap'"),
        ("no_such_module:Class", "cannot be imported"),
        ("json:JSONDecoder", "must be a subclass of gym_spark.verify.sandbox.base.Sandbox"),
    ],
)
def test_a_setting_that_names_no_sandbox_is_refused_in_one_sentence(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(setting)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_where_neither_works_the_refusal_says_why_of_both() -> None:
    """Without bwrap on the path, and in a process that has no Landlock: a filter answers as an old kernel does."""
    program = """
import ctypes, struct
libc = ctypes.CDLL(None)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
libc.prctl(38, 1, 0, 0, 0)
header = struct.pack("@HxxxxxxP", len(rules), ctypes.addressof(code))
assert libc.prctl(22, 2, ctypes.create_string_buffer(header), 0, 0) == 0
from gym_spark.errors import ConfigError
from gym_spark.verify.sandbox.choice import choose
try:
    choose("auto")
except ConfigError as error:
    print(error)
"""
    environment = os.environ | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("Model-written code cannot be contained here (bubblewrap: "), done.stderr
    assert "bwrap is not installed" in done.stdout
    assert "Landlock is off" in done.stdout
    assert "install bubblewrap" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_file_name_that_leads_elsewhere_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        sandbox.run({"../main.py": ""}, ["main.py"], limits=Limits())
