"""`code_tests`: programs that pass and fail, in the sandbox that this machine has; FIELD-NOTES P25."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from gym_spark.config import RunSpec
from gym_spark.connection import check_parts
from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, Verifier, judge_one, load_verifier, warm_up
from gym_spark.verify.machine_speed import slowness

ADD = 'def add(a, b):\n    """Return the sum of a and b."""\n'
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n"
FUNCTION = {"prompt": ADD, "entry_point": "add", "tests": CHECK}
ASSERTS = {"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]}
DOUBLES = {"tests": [{"input": "2\n", "output": "4\n"}, {"input": "5\n", "output": "10"}]}
HELPED = FUNCTION | {"prompt": f"def inner(a, b):\n    return a + b\n\n\n{ADD}"}
FULL = "def add(a, b):\n    return a + b\n"
DOUBLE = "print(int(input()) * 2)"


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    loaded = load_verifier("code_tests", {"cpu_limit_s": 2})
    warm_up("code_tests", loaded, "auto")
    return loaded


def judge(verifier: Verifier, inputs: dict[str, Any], answer: str | None) -> Verdict:
    return judge_one(verifier, Judgeable("t", 0, inputs, answer, "complete", None, None))


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        (FUNCTION, "    return a + b"),
        (FUNCTION, "    total = a\n    total += b\n    return total\n"),
        (FUNCTION | {"prompt": "def add(a, b):\n"}, "\treturn a + b"),
        (FUNCTION, "    return a + b\n```"),
        (FUNCTION, "```python\n    return a + b\n```"),
        (FUNCTION, FULL),
        (FUNCTION, f"Sure.\n```python\n{FULL}```\nFor example:\n```python\nprint(add(1, 1))\n```"),
        (FUNCTION, f"<think>\n```python\ndef add(a, b): return 0\n```\n</think>\n{FULL}"),
        (FUNCTION, f"from __future__ import annotations\n{FULL}"),
        (FUNCTION, f"{FULL}\nif __name__ == '__main__':\n    print(add(*map(int, input().split())))\n"),
        (FUNCTION, f"{FULL}print('debug')\n"),
        (FUNCTION, "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n" + FULL),
        (FUNCTION | {"prompt": "def add(a, b):"}, "    return a + b"),
        (FUNCTION | {"prompt": "def add(a, b):"}, "    c = a + b\n    return c"),
        (FUNCTION | {"prompt": f"from math import fsum\n\n{ADD}"}, "def add(a, b):\n    return int(fsum([a, b]))"),
        (HELPED, "    return inner(a, b)"),
        (HELPED, "def add(a, b):\n    return inner(a, b)"),
        ({"entry_point": "add", "tests": CHECK}, FULL),
        (FUNCTION, "add = lambda a, b: a + b  # é 日本"),
        (ASSERTS, FULL),
        (ASSERTS, FULL.replace("\n", "\r\n")),
        ({"setup": "one = 1", "tests": ["assert add(one, 2) == 3"]}, FULL),
        (DOUBLES, DOUBLE),
        (DOUBLES, f"```python\n{DOUBLE}\n```"),
        (DOUBLES, "def main():\n    print(int(input()) * 2, ' ')\n    print()\nif __name__ == '__main__':\n    main()"),
        ({"tests": [{"input": "é\n日本", "output": "日本 é"}]}, "a = input()\nb = input()\nprint(b, a)"),
    ],
    ids=[
        "P25 body only", "body of lines", "tab", "closing mark", "body in a fence", "whole function",
        "example after it", "reasoning with code", "future import", "main block", "prints", "dataclass",
        "prompt without line end", "prompt without line end, lines", "imports of the prompt",
        "helper of the prompt, body", "helper of the prompt, whole", "no prompt", "lambda, unicode", "asserts", "CRLF",
        "setup", "conversation", "conversation in a fence", "blanks at ends", "unicode in and out",
    ],
)  # fmt: skip
def test_right_code_passes(verifier: Verifier, inputs: dict[str, Any], answer: str) -> None:
    verdict = judge(verifier, inputs, answer)
    assert (verdict.state, verdict.reward, verdict.detail["outcome"]) == ("scored", 1.0, "passed"), verdict.detail


@pytest.mark.parametrize(
    ("inputs", "answer", "outcome", "shown"),
    [
        (FUNCTION, "    return a - b", "failed", "AssertionError"),
        (FUNCTION, "    return None", "failed", "AssertionError"),
        (FUNCTION, "return a + b", "failed", "SyntaxError"),
        (FUNCTION, "I cannot do that.", "failed", "SyntaxError"),
        (FUNCTION, "", "failed", "no code"),
        (FUNCTION, None, "failed", "no code"),
        (FUNCTION, "<think>hm", "failed", "no code"),
        (FUNCTION, "def sub(a, b):\n    return a - b", "failed", ""),
        (FUNCTION, "    return a + b\nimport sys\nsys.exit(0)", "failed", "before the tests"),
        (FUNCTION, "    import os\n    os._exit(0)", "failed", "before the tests"),
        (FUNCTION, "    return a + \0b", "failed", "null bytes"),
        (FUNCTION, "    return '\ud800' + " + "(" * 100_000, "failed", ""),
        (FUNCTION, "    while True: pass", "exec_timeout", "cpu"),
        (FUNCTION, "    import ctypes; ctypes.CDLL(None).unshare(0x10000000)", "exec_violation", "system call"),
        (ASSERTS, "def add(a, b):\n    return abs(a) + b", "failed", "AssertionError"),
        (DOUBLES, "print(4)", "failed", "another output"),
        (DOUBLES, "import sys\nprint(int(input()) * 2)\nsys.exit(1)", "failed", "exit code 1"),
        (DOUBLES, "print(int(input()) * 2, end='.')", "failed", "another output"),
    ],
    ids=[
        "wrong", "returns None", "lost indentation", "refusal", "empty", "none", "reasoning only", "another function",
        "exits 0 first", "exits 0 in the test", "null byte", "surrogate and depth", "hangs", "forbidden call",
        "one assert of two", "one conversation of two", "right output, exit code 1", "other ending",
    ],
)  # fmt: skip
def test_wrong_code_scores_0_with_the_reason(
    verifier: Verifier, inputs: dict[str, Any], answer: str | None, outcome: str, shown: str
) -> None:
    verdict = judge(verifier, inputs, answer)
    assert (verdict.state, verdict.reward, verdict.detail["outcome"]) == ("scored", 0.0, outcome), verdict.detail
    assert shown in json.dumps(verdict.detail)


@pytest.mark.parametrize(
    "inputs",
    [
        {}, {"tests": ""}, {"tests": []}, {"tests": [1]}, {"tests": ["assert 1", {"input": ""}]}, {"tests": CHECK},
        {"tests": CHECK, "entry_point": 1}, {"tests": [{"input": "1"}]}, {"tests": [{"input": 1, "output": "1"}]},
        FUNCTION | {"prompt": None}, ASSERTS | {"setup": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_task_without_usable_tests_is_an_error_and_no_zero(verifier: Verifier, inputs: dict[str, Any]) -> None:
    verdict = judge(verifier, inputs, FULL)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert "the task's" in verdict.detail["reason"]


def test_scores_say_which_share_of_the_conversations_passed_and_what_cut_one_short(verifier: Verifier) -> None:
    tests = [{"input": f"{number}", "output": f"{number}"} for number in range(4)]
    code = "n = int(input())\nwhile n == 2: pass\nprint(n if n != 1 else 'x')"
    verdict = judge(verifier, {"tests": tests}, code)
    assert verdict.reward == 0.0
    assert verdict.scores == {"tests_passed": 0.5, "exec_timeout": 1.0, "exec_violation": 0.0}
    assert (verdict.detail["failed_tests"], verdict.detail["tests"]) == ([1, 2], 4)
    assert verdict.extracted_answer == code


def test_a_program_that_always_hangs_is_not_run_for_each_of_many_tests() -> None:
    hasty = load_verifier("code_tests", {"cpu_limit_s": 1})
    warm_up("code_tests", hasty, "auto")
    verdict = judge(hasty, {"tests": [{"input": "", "output": ""}] * 50}, "while True: pass")
    assert (verdict.detail["outcome"], verdict.scores["tests_passed"]) == ("exec_timeout", 0.0)
    assert len(verdict.detail["failed_tests"]) == 20


def test_p25_sixteen_programs_at_a_time_get_the_verdict_that_each_gets_alone() -> None:
    """0.3 CPU seconds each, limit 1: by the clock each takes seconds, since they share the machine's cores."""
    limited = load_verifier("code_tests", {"cpu_limit_s": 1})
    warm_up("code_tests", limited, "auto")
    slow = "import time\ndef add(a, b):\n    while time.process_time() < 0.3: pass\n    return a + b"
    alone = judge(limited, FUNCTION, slow)
    together: list[Verdict] = []
    threads = [threading.Thread(target=lambda: together.append(judge(limited, FUNCTION, slow))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone.reward == 1.0
    assert [(verdict.state, verdict.reward) for verdict in together] == [("scored", 1.0)] * 16
    assert 0.3 <= alone.detail["cpu_s"] < 1
    assert alone.detail["cpu_limit_s"] == pytest.approx(slowness(), abs=0.01)
    assert alone.detail["machine_slowness"] == slowness() >= 1.0


def test_the_detail_names_the_sandbox_and_the_digest_the_python(verifier: Verifier) -> None:
    assert judge(verifier, FUNCTION, FULL).detail["sandbox"].split()[0] in ("bubblewrap", "landlock")
    assert "python==3." in verifier.version


def run_of(sandbox: str, verifier: str = "code_tests") -> RunSpec:
    endpoint = {"urls": ["http://127.0.0.1:9/v1"], "model": "m"}
    return RunSpec.model_validate(
        {"benchmark": "b", "run_id": "r", "verifier": verifier, "endpoint": endpoint, "sandbox": sandbox}
    )


def test_p60_without_a_sandbox_no_code_is_run_and_the_run_is_refused_before_it_costs_anything() -> None:
    with pytest.raises(ConfigError, match=r"runs code that the model wrote, which is off .* add --sandbox auto"):
        check_parts(run_of("off"))
    assert check_parts(run_of("auto")).sandbox == "auto"
    assert check_parts(run_of("off", "numeric")).sandbox == "off"
    unarmed = load_verifier("code_tests", {})
    with pytest.raises(ConfigError, match="--sandbox auto"):
        warm_up("code_tests", unarmed)
    verdict = judge(unarmed, FUNCTION, FULL)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert "no sandbox" in verdict.detail["reason"]
