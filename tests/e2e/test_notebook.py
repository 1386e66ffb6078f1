"""The quickstart notebook as its users run it: in a Python of its own, on a session that it builds itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.py"

#: What a notebook's kernel is: code that runs while an event loop does.
IN_A_RUNNING_LOOP = """
import asyncio, runpy, sys

async def cell():
    runpy.run_path(sys.argv[1], run_name="__main__")

asyncio.run(cell())
"""


@pytest.mark.parametrize("python", [[], ["-c", IN_A_RUNNING_LOOP]], ids=["script", "running event loop"])
def test_the_quickstart_notebook_runs_unchanged_and_sends_each_request_once(tmp_path: Path, python: list[str]) -> None:
    """6 tasks x 4 repeats and one preflight, however often its cells look at the tables."""
    with FakeOpenAI() as server:
        given = {"GYM_SPARK_LAKE": str(tmp_path / "lake"), "GYM_SPARK_MODEL_URL": server.url, "GYM_SPARK_MODEL": "fake"}
        done = subprocess.run(
            [sys.executable, *python, str(NOTEBOOK)],
            env=os.environ | given,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert server.requests == 6 * 4 + 1
    assert "24 of 24 planned rollouts scored (100.0 %)" in done.stdout
    assert "pass@4" in done.stdout
    assert "The answer is" in done.stdout


def test_the_notebook_is_in_databricks_source_format() -> None:
    """Databricks takes a Python file for a notebook by its first line, and splits it at its separator."""
    lines = NOTEBOOK.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Databricks notebook source"
    assert lines.count("# COMMAND ----------") >= 6
    assert not [line for line in lines if line.startswith("# COMMAND") and line != "# COMMAND ----------"]
