"""A job as an operator submits it: Spark's own launcher, the shipped settings, and a session that is there already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fake_openai import FakeOpenAI

ROOT = Path(__file__).parents[2]


def test_spark_submit_runs_an_evaluation_with_the_shipped_settings(tmp_path: Path) -> None:
    """Each request is sent once, and the profile is printed."""
    programs = Path(sys.executable).parent
    submit = [str(programs / "spark-submit"), "--properties-file", str(ROOT / "conf" / "spark" / "local.conf")]
    with FakeOpenAI() as server:
        run = ["--benchmark", "arithmetic", "--limit", "3", "--num-repeats", "2", "--run-id", "j", "--json"]
        run += ["--model", "fake", "--model-url", server.url, "--lake", str(tmp_path / "lake")]
        done = subprocess.run(
            [*submit, str(ROOT / "jobs" / "run.py"), *run],
            # As in an activated virtual environment.
            env=os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert server.requests == 3 * 2 + 1
    # Spark's launcher puts what a job says on its standard error on standard output too.
    profile = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert (profile["coverage"]["planned"], profile["coverage"]["scored"]) == (6, 6)
