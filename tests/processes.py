"""A quiz run as a process of its own, for tests that kill, interrupt or watch it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
QUIZ = REPOSITORY / "tests" / "data" / "benchmarks"


def quiz_run(folder: Path, url: str, tasks: int, *more: str) -> list[str]:
    """Write a quiz of so many questions, and return the words of its run against the endpoint at `url`."""
    rows = (json.dumps({"question": f"{n}", "answer": "1"}) + "\n" for n in range(tasks))
    (folder / "quiz.jsonl").write_text("".join(rows))
    words = [sys.executable, "-m", "gym_spark.cli", "eval", "run", "--benchmark", "quiz", "--search-dir", str(QUIZ)]
    words += ["--source", str(folder / "quiz.jsonl"), "--lake", str(folder / "lake"), "--run-id", "r1"]
    return [*words, "--model", "fake", "--model-url", url, "--no-preflight", *more]


def start(words: list[str], **streams: Any) -> subprocess.Popen[Any]:
    """Start a command in a session of its own, so that a signal reaches all its processes and only those.

    A shell starts its background jobs with SIGINT ignored, and their children inherit that: a command of ours would not
    hear Ctrl-C because of how the tests were started.
    """
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    heard = ["env", "--default-signal=INT", *words]
    return subprocess.Popen(heard, cwd=REPOSITORY, env=environment, start_new_session=True, **streams)
