"""Many small rollouts, and few large ones: files and memory stay bounded."""

from __future__ import annotations

import os
from pathlib import Path

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, VERIFICATIONS
from tests.e2e.conftest import Run
from tests.e2e.test_flow import arguments, quiz
from tests.fake_openai import FakeOpenAI
from tests.reliability.large_rollouts import large_run

#: The probe as it was written down is 300; a few show the same, since what is in flight and one part fill the memory.
LARGE = int(os.environ.get("GYM_SPARK_LARGE_ROLLOUTS", "12"))
SIZE = 4 << 20


def test_p50_a_thousand_short_rollouts_make_few_commits_and_files(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """At most 20 commits and 40 files in either table, the creation of the table included."""
    source = quiz(tmp_path / "quiz.jsonl", 1000)
    with FakeOpenAI() as server:
        told = gym(*arguments(server, "r1", source, "--concurrency", 32, "--no-preflight"))
        assert told.code == 0, told.err
        assert server.requests == 1000
    for table in (ROLLOUTS, VERIFICATIONS):
        assert lake.read(table).count() == 1000
        assert lake.spark.sql(f"DESCRIBE HISTORY {lake.name(table)}").count() <= 20
        assert len(lake.read(table).inputFiles()) <= 40


def test_p51_answers_of_4_mb_pass_every_stage_with_python_workers_limited_to_1_gb(tmp_path: Path) -> None:
    """Run, verify, profile, status and export, each a process with default settings but for the limit."""
    seen = large_run(tmp_path, rollouts=LARGE, size=SIZE, spark={"spark.executor.pyspark.memory": "1g"})
    assert str(1 << 30) in seen["limits"], "the limit did not apply"
    assert seen["coverage"]["scored"] == LARGE
    assert seen["lines"] == LARGE
