"""The whole flow on a real language model, served on this machine for the length of the run."""

from __future__ import annotations

import json
from pathlib import Path

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, RUNS
from tests.e2e.conftest import Run
from tests.reliability.process_tree import command_of, descendants


def test_the_small_model_is_evaluated_from_end_to_end(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Without an address the model is served, asked, verified and profiled; its server is gone afterwards."""
    words = ["--benchmark", "arithmetic", "--run-id", "r1", "--limit", 6, "--num-repeats", 3]
    told = gym("eval", "run", *words, "--json", "--samples", 1)
    assert told.code == 0, told.err
    shown = json.loads(told.out)
    assert shown["model"] == "SmolLM2-135M-Instruct"
    assert shown["coverage"]["scored"] == 18
    values = {(m["name"], m["denominator"]): m["value"] for m in shown["metrics"]}
    assert 0 <= values["pass@1", "planned"] <= values["pass@2", "planned"] <= values["pass@3", "planned"] <= 1
    assert shown["samples"][0]["answer"]
    rows = lake.read(ROLLOUTS).collect()
    assert len({row["output_text"] for row in rows}) > 6, "a model answers in words of its own"
    assert all(row["usage"]["output_tokens"] > 0 for row in rows)
    assert "xllamacpp" in json.loads(lake.read(RUNS).collect()[0]["versions"])["server"]
    assert not [pid for pid in descendants(_this_process()) if "local_server" in command_of(pid)]
    again = gym("eval", "run", *words, "--json", "--resume")
    assert "no request was sent" in again.err
    assert "Serving" not in again.err
    assert json.loads(again.out)["metrics"] == shown["metrics"]


def _this_process() -> int:
    return int(Path("/proc/self").resolve().name)
