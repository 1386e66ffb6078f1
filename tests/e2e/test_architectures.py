"""The same flow under Spark Connect and on a cluster of executor processes: no RDD, no shared Python process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI, last_user_text

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("kind", "session"),
    [
        ("connect", "pyspark.sql.connect.session.SparkSession"),
        ("local-cluster[2,1,1024]", "pyspark.sql.session.SparkSession"),
    ],
)
def test_the_whole_flow_runs(kind: str, session: str, tmp_path: Path) -> None:
    """Prepare, collect, verify and profile, called from a running event loop: each rollout once, right numbers."""
    with FakeOpenAI(lambda body, n: last_user_text(body).removeprefix("Q: ") if n % 2 else "no") as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.whole_flow", kind, str(tmp_path / "lake"), server.url],
            cwd=REPOSITORY,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.requests == 6 * 2 + 1
        assert server.peak <= 4
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["session"] == session
    assert told["profile"]["coverage"]["scored"] == 12
    metrics = {(metric["name"], metric["denominator"]): metric for metric in told["profile"]["metrics"]}
    assert metrics["pass@1", "planned"]["value"] == pytest.approx(6 / 12)
