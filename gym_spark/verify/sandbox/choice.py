"""Which sandbox: a setting comes in, one that has just shown that it holds leaves, or a refusal in one sentence."""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final

from gym_spark.errors import ConfigError, GymSparkError
from gym_spark.plugins import Registry
from gym_spark.verify.sandbox.base import Limits, Sandbox, SandboxError

OFF: Final = "off"

#: name -> where its class is, and one line about it.
_BUILTIN: Final = {
    "bubblewrap": ("gym_spark.verify.sandbox.bubblewrap:Bubblewrap", "namespaces of their own, by the program bwrap"),
    "landlock": ("gym_spark.verify.sandbox.landlock:Landlock", "Landlock and seccomp, where there are no namespaces"),
}

_REGISTRY: Final[Registry[Sandbox]] = Registry(
    "sandbox",
    "gym_spark.sandboxes",
    _BUILTIN,
    fits=lambda found: issubclass(found, Sandbox),
    wanted="a subclass of gym_spark.verify.sandbox.base.Sandbox",
)

#: Tries what no program may do; prints what it could do all the same, as a JSON list.
_PROBE: Final = """
import json, os, socket, sys
secret, folder, port, parent = json.load(sys.stdin)
done = []
def attempt(what, action):
    try:
        if action():
            done.append(what)
    except OSError:
        pass
attempt("read a file", lambda: open(secret).read())
attempt("write a file", lambda: open(os.path.join(folder, "escaped"), "w"))
attempt("reach the network", lambda: socket.create_connection(("127.0.0.1", port), 2))
attempt("read another environment", lambda: open("/proc/%d/environ" % parent).read())
attempt("read the first process's environment", lambda: open("/proc/1/environ").read())
attempt("start a process", lambda: os.fork() or os._exit(0))
attempt("see the caller's environment", lambda: set(os.environ) - {
    "HOME", "LANG", "LC_CTYPE", "OMP_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED", "TMPDIR"})
open("own", "w").write("x")
print(json.dumps(done))
"""


def choose(setting: str) -> Sandbox:
    """Return the sandbox that a setting names, after a test of it in this process.

    Args:
        setting: ``auto`` (bubblewrap, else Landlock), a registered name, or ``module:Class``.

    Raises:
        ConfigError: it is ``off``, unknown, or does not hold on this machine.
    """
    if setting == OFF:
        raise ConfigError("Code that a model wrote is run only with --sandbox auto, or another sandbox; this is off.")
    failures = {}
    for name in list(_BUILTIN) if setting == "auto" else [setting]:
        found = _tested(name)
        if isinstance(found, Sandbox):
            return found
        failures[name] = found
    told = "; ".join(f"{name}: {failure.rstrip('.')}" for name, failure in failures.items())
    remedy = "install bubblewrap, allow user namespaces, or" if setting == "auto" else "take --sandbox auto, or"
    raise ConfigError(f"Model-written code cannot be contained here ({told}); {remedy} name another with --sandbox.")


def sandbox_description(setting: str) -> str:
    """Return name and version of the sandbox that a setting stands for on this machine, for the run's record."""
    return OFF if setting == OFF else choose(setting).description()


@cache
def _tested(name: str) -> Sandbox | str:
    """Return a sandbox that holds, or what is wrong with it; tried once per process."""
    sandbox = _REGISTRY.build(name, {})
    try:
        escaped = _escapes(sandbox)
    except GymSparkError as error:
        return str(error)
    return f"a program in it could {', '.join(escaped)}" if escaped else sandbox


def _escapes(sandbox: Sandbox) -> list[str]:
    """Return what a program in the sandbox could do and may not.

    Raises:
        SandboxError: it does not run programs.
    """
    sandbox.version()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gym-spark-probe-"))
        # As open as a file can be: what keeps a program from it is the sandbox alone.
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text(secrets.token_hex())
        secret.chmod(0o666)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        told = json.dumps([str(secret), folder, listener.getsockname()[1], os.getpid()])
        outcome = sandbox.run({"probe.py": _PROBE}, ["probe.py"], stdin=told, limits=Limits())
    if not outcome.succeeded:
        shown = outcome.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SandboxError(f"a plain program failed in it ({outcome.kind}, exit code {outcome.exit_code}, {shown})")
    escaped: list[str] = json.loads(outcome.stdout)
    return escaped
