"""`code_tests`: the answer is a program, or the body of a function, and passes the task's tests in a sandbox.

What a task's ``tests`` are tells the form (`verifier_inputs`, names as prepare scripts give them):

- text that defines ``check(candidate)``, as HumanEval has it, with `entry_point` and, for answers that complete it,
  `prompt`;
- a list of statements such as ``assert add(1, 2) == 3``, as MBPP has it, with an optional `setup` to run before them;
- a list of ``{"input": ..., "output": ...}``: the program reads one from stdin and writes the other to stdout. Blanks
  at the end of a line, and blank lines at the end, do not count.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from gym_spark.config import JsonObject
from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text
from gym_spark.verify.code_answer import before_definition, code_of, definition
from gym_spark.verify.machine_speed import slowness
from gym_spark.verify.sandbox.base import Limits, Outcome, Sandbox

#: Runs the parts in one module, each compiled for itself so that a ``from __future__`` may head each. All are read
#: before the first runs, which could overwrite the tests behind it. The module is not ``__main__``: what a program does
#: when it is called is not under test. The mark shows that the tests came to their end, which exit code 0 does not:
#: ``sys.exit()`` in the answer has it too.
_DRIVER: Final = """
import os, sys, types
module = sys.modules["answer"] = types.ModuleType("answer")
sources = []
for name in {parts!r}:
    with open(name, encoding="utf-8") as file:
        sources.append((name, file.read()))
for name, source in sources:
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
os.write(1, {mark!r})
"""

#: Tests of one program that may run into the limit of time before the rest are not run, and count as failed.
_TIMEOUTS: Final = 3
#: Failed tests that the detail lists, and characters of stderr that it holds.
_LISTED: Final = 20
_STDERR_CHARS: Final = 1000


class CodeTests(Verifier):
    """Reward 1 if the answer's code passes all tests, else 0; the scores say which share passed and what cut it short.

    The code is the answer's last fenced block, or all of it (`code_answer.code_of`). Limits are of CPU time, which
    others on the machine do not use up; they are scaled by the measured speed of the machine (`machine_speed`).

    Args:
        cpu_limit_s: CPU seconds of one run of the program, on the reference machine; rounded up to whole seconds.
        wall_limit_s: Seconds of one run; ten times the limit of CPU time unless given.
        memory_mb: Mebibytes of address space.
    """

    name = "code_tests"
    needs = ("tests",)
    # The interpreter decides as well; its minor version is the same on driver and workers, as pyspark demands.
    version = "2 python==" + ".".join(platform.python_version_tuple()[:2])
    wants_sandbox = True

    def __init__(
        self,
        *,
        cpu_limit_s: Annotated[float, Field(gt=0)] = 5.0,
        wall_limit_s: Annotated[float, Field(gt=0)] | None = None,
        memory_mb: Annotated[int, Field(ge=64)] = 1024,
    ) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._wall_limit_s = wall_limit_s or 10 * cpu_limit_s
        self._memory_mb = memory_mb
        self._sandbox: Sandbox | None = None
        self._told: JsonObject = {}
        self._limits = Limits()

    def use_sandbox(self, sandbox: Sandbox) -> None:
        """Take the sandbox to run code in; without one, every verdict is a ``verifier_error``."""
        self._sandbox = sandbox

    def warm_up(self) -> None:
        """Measure the machine's speed, and set the limits by it."""
        scale = slowness()
        self._limits = Limits(
            cpu_s=self._cpu_limit_s * scale, wall_s=self._wall_limit_s * scale, memory_bytes=self._memory_mb << 20
        )
        self._told = {"cpu_limit_s": round(self._limits.cpu_s, 2), "machine_slowness": scale}
        if self._sandbox is not None:
            self._told["sandbox"] = self._sandbox.description()

    def verify(self, item: Judgeable) -> Verdict:
        """Run the tests; a task without usable tests raises, an answer without code scores 0."""
        if self._sandbox is None:
            raise ValueError("code_tests runs code that the model wrote, and was given no sandbox to run it in")
        if not self._told:
            self.warm_up()
        tests: Any = item.verifier_inputs.get("tests")
        runs: _Runs
        if isinstance(tests, str) and tests.strip():
            entry_point = _text(item.verifier_inputs, "entry_point")
            code = code_of(answer_text(item), entry_point)
            runs = _functional(_function_parts(item.verifier_inputs, code, entry_point, tests))
        elif _is_list_of(tests, str):
            code = code_of(answer_text(item))
            runs = _functional([code, _text(item.verifier_inputs, "setup", ""), "\n".join(tests)])
        elif _is_list_of(tests, dict):
            code = code_of(answer_text(item))
            runs = _conversations(code, tests)
        else:
            raise ValueError(f"the task's tests are {str(tests)[:100]!r}; they must be text, or a list (not empty)")
        if not code.strip():
            return Verdict.scored(0.0, detail={"outcome": "failed", "reason": "the answer holds no code"})
        return self._judged(code, runs, self._sandbox)

    def _judged(self, code: str, runs: _Runs, sandbox: Sandbox) -> Verdict:
        failed: dict[int, _Failure] = {}
        cpu_s, timeouts = 0.0, 0
        for index, run in enumerate(runs.each):
            if timeouts == _TIMEOUTS:
                failed[index] = _Failure("not_run", "", "")
                continue
            outcome = sandbox.run(runs.files, runs.argv, stdin=run.stdin, limits=self._limits)
            cpu_s = max(cpu_s, outcome.cpu_s)
            failure = _failure(outcome, run)
            if failure is not None:
                failed[index] = failure
                timeouts += failure.outcome == "exec_timeout"
        first = next(iter(failed.values()), _Failure("passed", "", ""))
        detail = {"outcome": first.outcome, "cpu_s": round(cpu_s, 3), **self._told}
        detail |= {key: text for key, text in (("reason", first.reason), ("stderr", first.stderr)) if text}
        if len(runs.each) > 1:
            detail |= {"tests": len(runs.each), "failed_tests": list(failed)[:_LISTED]}
        kinds = {failure.outcome for failure in failed.values()}
        scores = {kind: float(kind in kinds) for kind in ("exec_timeout", "exec_violation")}
        if runs.counts:
            scores["tests_passed"] = 1 - len(failed) / len(runs.each)
        return Verdict.scored(float(not failed), extracted_answer=code, scores=scores, detail=detail)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a program: what it is given, and what must come of it."""

    stdin: str = ""
    #: All of stdout, blanks at ends apart; None where only `mark` is looked for.
    expected: str | None = None
    mark: bytes = b""


@dataclass(frozen=True, slots=True)
class _Runs:
    """A program, and how often it is run."""

    files: dict[str, str]
    argv: list[str]
    each: Sequence[_Run]
    #: Whether each run is one of the task's tests, to be counted.
    counts: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    #: ``failed``, ``exec_timeout``, ``exec_violation`` or ``not_run``.
    outcome: str
    reason: str
    stderr: str


def _functional(parts: Sequence[str]) -> _Runs:
    """Return the one run of code with its tests behind it."""
    mark = f"\n{secrets.token_hex()}\n".encode()
    files = {f"part{number}.py": text for number, text in enumerate(parts)}
    driver = _DRIVER.format(parts=list(files), mark=mark)
    return _Runs(files | {"main.py": driver}, ["main.py"], [_Run(mark=mark)], counts=False)


def _function_parts(inputs: Mapping[str, Any], code: str, entry_point: str, tests: str) -> list[str]:
    """Return the sources to run in order: the prompt's beginning, the function, and the tests.

    Code that defines the function itself still gets what the prompt has before it: imports, and helpers. Other code is
    the function's body, and goes on where the prompt ends.
    """
    prompt = _text(inputs, "prompt", "")
    if definition(entry_point).search(code):
        parts = [before_definition(prompt, entry_point), code]
    else:
        parts = [prompt + ("" if prompt.endswith("\n") else "\n") + code]
    return [*parts, f"{tests}\n\ncheck({entry_point})\n"]


def _conversations(code: str, tests: Sequence[Any]) -> _Runs:
    """Return a run of the program for each pair of input and output."""
    each = [_Run(stdin=_text(test, "input"), expected=_text(test, "output")) for test in tests]
    return _Runs({"main.py": code}, ["main.py"], each, counts=True)


def _failure(outcome: Outcome, run: _Run) -> _Failure | None:
    """Return how a run failed, or None if it passed."""
    stderr = outcome.stderr.decode("utf-8", "replace")[-_STDERR_CHARS:]
    if outcome.kind != "ended":
        return _Failure(outcome.kind, f"limit: {outcome.reason}", stderr)
    if outcome.exit_code:
        return _Failure("failed", f"exit code {outcome.exit_code}", stderr)
    if run.expected is None:
        ended = run.mark in outcome.stdout
        return None if ended else _Failure("failed", "it ended before the tests did", stderr)
    shown = outcome.stdout.decode("utf-8", "replace")
    return None if _lines(shown) == _lines(run.expected) else _Failure("failed", "another output", stderr)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _text(inputs: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = inputs.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"the task's {key} is {value!r:.100}; it must be text")
    return value


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, kind) for each in value)
