"""The first minute on a new machine: each thing that can be missing is told in one plain line with its remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / ".ci"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs that is all a script finds: no Java, no Python, no apt-get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "id", "sed", "head"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    """Put a program into the folder."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def run(script: str, machine: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts with nothing but the machine's programs."""
    environment = {"PATH": str(machine), **variables}
    return subprocess.run(
        [str(machine / "sh"), str(SCRIPTS / script)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ['openjdk version "17.0.15"', 'java version "21.0.1" 2023-10-17 LTS'])
def test_a_fitting_java_is_taken_in_silence(machine: Path, version: str) -> None:
    program(machine, "java", f"echo '{version}' >&2")
    done = run("ensure-java", machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("version", "seen"), [(None, "was not found"), ('"11.0.2"', "is Java 11"), ('"1.8.0_402"', "is Java 1")]
)
def test_no_or_an_old_java_is_one_line_that_says_what_to_install(machine: Path, version: str | None, seen: str) -> None:
    if version:
        program(machine, "java", f"echo 'openjdk version {version}' >&2")
    done = run("ensure-java", machine)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"'java' {seen}" in line
    assert "openjdk-17-jre-headless" in line


def test_root_on_debian_gets_java_installed(machine: Path) -> None:
    """Where Debian has no JDK 17 any more, 21 is taken."""
    (machine / "id").unlink()
    program(machine, "id", "echo 0")
    (machine / "chmod").symlink_to(str(shutil.which("chmod")))
    java = machine / "java"
    told = f"echo 'echo version \\\\\"21.0.1\\\\\" >&2' > {java}; chmod +x {java}"
    installing = f'case "$*" in *openjdk-21*) {told};; *17*) exit 100;; esac'
    program(machine, "apt-get", installing)
    assert run("ensure-java", machine).returncode == 0


def test_the_newest_python_that_fits_is_found(machine: Path) -> None:
    """A version manager's stand-in that only complains is passed over."""
    program(machine, "python3.13", "echo 'python3.13: command not found' >&2; exit 127")
    (machine / "python3.12").symlink_to(sys.executable)
    (machine / "python3").symlink_to(sys.executable)
    assert run("find-python", machine).stdout == "python3.12\n"


@pytest.mark.parametrize(
    ("python", "variables", "said"),
    [
        (None, {}, "no Python of 3.11 or newer was found"),
        ("exit 1", {}, "no Python of 3.11 or newer was found"),
        ('case "$2" in *ensurepip*) exit 1;; esac', {}, "'python3' lacks its venv module"),
        (None, {"PYTHON": "/no/python"}, "PYTHON is '/no/python'"),
    ],
    ids=["none", "too old", "without venv", "wrongly named"],
)
def test_a_missing_python_is_one_line(machine: Path, python: str | None, variables: dict[str, str], said: str) -> None:
    if python:
        program(machine, "python3", python)
    done = run("find-python", machine, **variables)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_command_that_needs_java_says_so_in_one_line(tmp_path: Path) -> None:
    """JAVA_HOME points nowhere: exit code 2 and the remedy, no traceback."""
    done = subprocess.run(
        [Path(sys.executable).parent / "gym-spark", "eval", "profile", "--run-id", "r", "--lake", tmp_path / "lake"],
        env=os.environ | {"JAVA_HOME": "/no/java"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "JAVA_HOME=/no/java" in line
    assert "install JDK 17 or 21" in line
