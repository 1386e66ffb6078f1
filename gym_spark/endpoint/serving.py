"""Starts the embedded model server as a process of its own, waits for its health, and stops it at the end."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import httpx

from gym_spark.endpoint.model_file import model_file
from gym_spark.errors import ConfigError, GymSparkError

#: The model loads in a second; this allows for a cold disk and a busy machine.
START_LIMIT_S: Final = 60.0
#: Each step of stopping (end of input, SIGTERM) gets this long before the next, harder one.
STOP_STEP_S: Final = 3.0
#: Tokens of prompt and answer per request: the demo's and GSM8K's questions with a long answer. 23 KB of memory each.
CONTEXT_TOKENS: Final = 2048
_POLL_S: Final = 0.05
#: Characters of a server's log line in a message.
_WORDS_LIMIT: Final = 300
#: A line of llama.cpp's log: time, ``E`` for error, text.
_LOGGED_ERROR: Final = re.compile(r"[\d.]+ E (.*)")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running embedded endpoint.

    Attributes:
        url: Base address, ending in ``/v1``.
        model: Model name, for the requests and the run's record.
        server_version: Software that serves it, for the run's record.
        pid: Its process.
    """

    url: str
    model: str
    server_version: str
    pid: int


def local_server_version() -> str:
    """Return the software that the embedded endpoint runs on, for the run's record.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return f"xllamacpp {metadata.version('xllamacpp')}"
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "The embedded model server needs the package 'xllamacpp', which is not installed; run "
            "`pip install 'gym-spark[local]'`, or give --model-url."
        ) from error


@contextmanager
def local_model_server(
    threads: int = 1, parallel: int = 4, model_path: Path | None = None, context: int = CONTEXT_TOKENS
) -> Iterator[LocalServer]:
    """Serve the small model on a free loopback port for the length of the ``with`` block.

    Args:
        threads: Threads of computation. One is fastest beside other work: two that wait for each other lose more.
        parallel: Requests computed at once; further ones wait inside the server.
        model_path: GGUF file to serve; the bundled small model unless given.
        context: Tokens of prompt and answer, per request.

    Raises:
        ConfigError: `xllamacpp` or the model file is missing or broken.
        GymSparkError: The server was not ready in time.
    """
    version = local_server_version()
    model = model_file(model_path)
    with tempfile.TemporaryDirectory(prefix="gym-spark-server-") as folder:
        log, address = Path(folder, "log"), Path(folder, "address")
        options = {
            "model": model.path,
            "alias": model.name,
            "address-file": address,
            "threads": threads,
            "parallel": parallel,
            "context": context,
        }
        process = _start([f"--{name}={value}" for name, value in options.items()], log)
        try:
            base = _wait_until_healthy(process, model.path, address, log)
            yield LocalServer(url=f"{base}/v1", model=model.name, server_version=version, pid=process.pid)
        finally:
            _stop(process)


def _start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gym_spark.endpoint.local_server", *arguments],
            stdin=subprocess.PIPE,  # held open: its end tells the child that we are gone
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop it when its last requests are done with
        )


def _wait_until_healthy(process: subprocess.Popen[bytes], model: Path, address: Path, log: Path) -> str:
    """Return the server's address, without ``/v1``, once it answers its health check."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ConfigError(
                f"The embedded model server could not start with '{model}' ({_last_words(log)}); check the file and "
                "the package 'xllamacpp' (`pip install --force-reinstall 'gym-spark[local]'`), or give --model-url."
            )
        if address.exists():
            base = address.read_text(encoding="utf-8").rstrip("/")
            if _healthy(base):
                return base
        time.sleep(_POLL_S)
    raise GymSparkError(f"The model server was not ready within {START_LIMIT_S:.0f} s ({_last_words(log)}).")


def _healthy(base: str) -> bool:
    try:
        # No proxy from the environment stands between us and our own loopback.
        return httpx.get(f"{base}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    for harder in (process.terminate, process.kill):
        try:
            process.wait(STOP_STEP_S)
        except subprocess.TimeoutExpired:
            harder()
    process.wait()


def _last_words(log: Path) -> str:
    """Return the last error that llama.cpp logged, else the last line, which ends a traceback."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [said[1] for line in lines if (said := _LOGGED_ERROR.fullmatch(line))]
    return " ".join((errors or lines or ["it said nothing"])[-1].split())[:_WORDS_LIMIT]
