"""What cannot be profiled, imported or aggregated is told in one sentence, and nothing is written or overwritten."""

from __future__ import annotations

import json
from pathlib import Path

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import RUNS
from tests.e2e.conftest import Run


def rows_file(path: Path, *tasks: int) -> Path:
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "reward": 1.0, "response": {}}
        for task in tasks
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files_that_hold_nothing_or_numbers_too_large_are_not_imported(gym: Run, lake: Lake, tmp_path: Path) -> None:
    for path, told in (
        (rows_file(tmp_path / "empty.jsonl"), "has no row; there is nothing to import"),
        (rows_file(tmp_path / "large.jsonl", 2**63), "beyond 64 bits"),
    ):
        said = gym("eval", "import", "--rollouts", path, "--run-id", "r1")
        assert (said.code, told in said.err, said.err.count("gym-spark:")) == (2, True, 1), said.err
    assert not lake.exists(RUNS) or lake.read(RUNS).count() == 0


def test_a_target_in_the_way_stops_before_the_first_file(gym: Run, tmp_path: Path) -> None:
    """A folder with the name of the second file; an output that is an input; a lake without any of the runs."""
    rows = rows_file(tmp_path / "x.jsonl", 0, 1)
    assert gym("eval", "import", "--rollouts", rows, "--run-id", "r1").code == 0
    output = tmp_path / "out" / "o.jsonl"
    for name in ("agent_metrics", "aggregate_metrics"):
        (tmp_path / "out" / f"o_{name}.json").mkdir(parents=True)
    before = sorted(output.parent.iterdir())
    profile = gym("eval", "profile", "--run-id", "r1", "--output", output)
    aggregate = gym("eval", "aggregate", "--rollouts", rows, "--output", output)
    for said in (profile, aggregate):
        assert (said.code, "is a folder; choose another --output" in said.err) == (2, True), said.err
    assert sorted(output.parent.iterdir()) == before

    text = rows.read_text()
    itself = gym("eval", "aggregate", "--rollouts", rows, "--output", rows)
    assert (itself.code, "is one of the files that are aggregated" in itself.err) == (2, True)
    assert rows.read_text() == text

    other = tmp_path / "other"
    assert gym("eval", "import", "--rollouts", rows, "--run-id", "r2", lake=other).code == 0
    words = ["eval", "aggregate", "--run-id", "r1", "--lake", tmp_path / "lake", "--lake", other]
    lacks = gym(*words, "--output", tmp_path / "a.jsonl")
    assert (lacks.code, "has none of the runs named" in lacks.err) == (2, True), lacks.err
