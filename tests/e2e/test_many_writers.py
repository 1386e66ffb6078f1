"""Several processes that write one table at once: nothing is lost, and nothing is paid for twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from gym_spark.flow import draft
from gym_spark.prepare.catalog import find_benchmark
from gym_spark.prepare.publish import publish
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ALL, ROLLOUTS, VERIFICATIONS
from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import QUIZ, quiz_run, start
from tests.reliability.stored import read_stored, verdict_counts

TASKS, JOBS = 100, 4


def test_p50_four_jobs_share_a_run_while_a_fifth_process_compacts_its_table(lake: Lake, tmp_path: Path) -> None:
    """A hundred rows, a hundred requests, and every process ends well."""
    (tmp_path / "spark.yaml").write_text('{"spark": {"spark.master": "local[2]", "spark.driver.memory": "1g"}}')
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.05)) as server:
        # One request at a time for each job, as `--concurrency` is the whole run's.
        more = ("--concurrency", str(JOBS), "--config", str(tmp_path / "spark.yaml"))
        words = quiz_run(tmp_path, server.url, TASKS, *more)
        publish(lake, draft(find_benchmark("quiz", [QUIZ]), sources=[tmp_path / "quiz.jsonl"], num_shards=16))
        words = [word for word in words if word not in ("--source", str(tmp_path / "quiz.jsonl"))]
        lake.ensure(*ALL.values())
        jobs = [
            start([*words, "--shards", f"{number}/{JOBS}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for number in range(1, JOBS + 1)
        ]
        try:
            while any(job.poll() is None for job in jobs):
                for table in (ROLLOUTS, VERIFICATIONS):
                    lake.compact(table, above=1, run_id="r1")
                time.sleep(0.2)
        finally:
            for job in jobs:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
        told = [job.communicate()[0] for job in jobs]
        assert [job.returncode for job in jobs] == [0] * JOBS, told
        assert server.requests == TASKS
    stored = read_stored(tmp_path / "lake", "r1")
    assert len(stored.committed) == TASKS
    assert stored.twice == []
    assert set(verdict_counts(tmp_path / "lake").values()) == {1}
    assert len(verdict_counts(tmp_path / "lake")) == TASKS
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.name(ROLLOUTS)}")
    assert history.where("operation = 'OPTIMIZE'").count() > 0, "the fifth process had nothing to do"
