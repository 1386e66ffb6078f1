"""The profile of a large run, from Delta to written files and metrics, beside NeMo Gym's `RewardProfiler`.

    python -m tests.performance.profile_scale
    python -m tests.performance.profile_scale --rollouts 100000 4000000 --memory 4g
    python -m tests.performance.profile_scale --rollouts 16000 --peer PEER   # nemo_gym_peer.py says how PEER is made

For each size a run of tasks x 8 is written into a new lake by Spark (rewards, two scores, usage), and then profiled:
our numbers and NeMo Gym's files, as `eval profile --output` does. Session start is not part of it. Beside the peer's
profiler, which gets rows in memory, both commands are run whole, from their start to their files.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec, PartSpec, RunSpec
from gym_spark.flow import open_lake
from gym_spark.interchange.gym.profiling import ProfileFiles
from gym_spark.ledger import verification_id_of
from gym_spark.reporting import profile
from gym_spark.tables.lake import Lake, spark_schema
from gym_spark.tables.runs import RunRecord, record_run
from gym_spark.tables.schemas import METRICS, ROLLOUTS, RUNS, TASK_PROFILES, TASKS, VERIFICATIONS, Table
from tests.performance.accounting import cpu_s

REPEATS: Final = 8
#: The peer's profiler alone: rows are in memory, and nothing is written.
PEER: Final = """
import json, sys, time
from pathlib import Path
from nemo_gym.reward_profile import RewardProfiler
rows, results = ([json.loads(line) for line in Path(name).open()] for name in sys.argv[1:])
began = time.process_time()
RewardProfiler().profile_from_data(rows, results)
print(json.dumps({"cpu_s": time.process_time() - began}))
"""


def peer_files(rollouts: int, folder: Path) -> tuple[Path, Path]:
    """Write the same numbers as NeMo Gym's inputs and results."""
    draw = random.Random(7)
    inputs, results = folder / "peer_materialized_inputs.jsonl", folder / "peer.jsonl"
    with inputs.open("w") as told, results.open("w") as made:
        for at in range(rollouts):
            key = {"_ng_task_index": at // REPEATS, "_ng_rollout_index": at % REPEATS, "agent_ref": {"name": "a"}}
            told.write(json.dumps(key | {"responses_create_params": {"input": "q" * 500}}) + "\n")
            usage = {"input_tokens": draw.randrange(400), "output_tokens": draw.randrange(900), "total_tokens": 1300}
            scores = {"reward": float(draw.random() < 0.6), "strict": draw.random(), "loose": draw.random()}
            made.write(json.dumps(key | scores | {"response": {"usage": usage}}) + "\n")
    return inputs, results


def command_s(words: Sequence[str]) -> dict[str, float]:
    """Run a command to its end; wall seconds, its start included."""
    began = time.monotonic()
    subprocess.run(words, check=True, capture_output=True)
    return {"wall_s": round(time.monotonic() - began, 2)}


def beside_the_peer(peer: Path, rollouts: int, lake: Lake, folder: Path) -> Iterator[dict[str, object]]:
    """Measure the peer's profiler, its command, and ours."""
    inputs, results = peer_files(rollouts, folder)
    words = [str(peer / "bin" / "python"), "-c", PEER, str(inputs), str(results)]
    seen = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    yield {"what": "RewardProfiler", "rollouts": rollouts, **seen, "cpu_ms": 1000 * seen["cpu_s"] / rollouts}
    words = [str(peer / "bin" / "gym"), "eval", "profile", "--inputs", str(inputs), "--rollouts", str(results)]
    yield {"what": "gym eval profile", "rollouts": rollouts, **command_s(words)}
    record = stored_run(lake, rollouts)
    run_id, output = record.spec.run_id, str(folder / "ours.jsonl")
    words = [sys.executable, "-m", "gym_spark.cli", "eval", "profile", "--run-id", run_id, "--lake", lake.root]
    yield {"what": "gym-spark eval profile", "rollouts": rollouts, **command_s([*words, "--output", output])}


def stored_run(
    lake: Lake,
    rollouts: int,
    *,
    run_id: str | None = None,
    output_text: Column | None = None,
    verifier_inputs: str = '{"expected_answer":"4"}',
) -> RunRecord:
    """Write a run of so many rollouts, all scored, with answers of 2,000 characters unless given."""
    run_id = run_id or f"r{rollouts}"
    output_text = F.lit("x" * 2000) if output_text is None else output_text
    verifier = PartSpec(name="exact_match")
    spec = RunSpec(
        benchmark=run_id,
        dataset_version="1",
        run_id=run_id,
        endpoint=EndpointSpec(model="m"),
        verifier=verifier,
        num_repeats=REPEATS,
    )
    tasks = rollouts // REPEATS
    record = RunRecord(spec, "finished", verification_id_of(verifier), tasks, tasks * REPEATS, {})
    lake.ensure(RUNS, TASKS, ROLLOUTS, VERIFICATIONS, TASK_PROFILES, METRICS)
    task = lake.spark.range(tasks).select(
        F.sha1(F.col("id").cast("string")).substr(1, 16).alias("task_id"), F.col("id").alias("task_index")
    )
    numbers = F.array(*(F.lit(number) for number in range(REPEATS)))
    rows = task.withColumn("rollout_index", F.explode(numbers)).withColumn("draw", F.rand(7))
    usage = F.struct(
        (F.rand(1) * 400).cast("long").alias("input_tokens"),
        (F.rand(2) * 900).cast("long").alias("output_tokens"),
        F.lit(None).cast("long").alias("reasoning_tokens"),
        F.lit(None).cast("long").alias("cached_tokens"),
        F.lit(1300).cast("long").alias("total_tokens"),
    )
    now = F.current_timestamp()
    common = {"run_id": F.lit(run_id), "attempt": F.lit(1)}
    texts = _texts(run_id) | {"verifier_inputs": F.lit(verifier_inputs)}
    _write(lake, TASKS, task.withColumns({**texts, "shard": F.lit(0)}))
    played = {"usage": usage, "state": F.lit("completed"), "shard": F.lit(0), "output_text": output_text}
    counts = {name: F.lit(1) for name in ("model_calls", "requests", "turns")}
    _write(lake, ROLLOUTS, rows.withColumns(common | played | counts | {"started_at": now, "completed_at": now}))
    scores = F.create_map(F.lit("strict"), F.rand(3), F.lit("loose"), F.rand(4))
    judged = {
        "verification_id": F.lit(record.verification_id),
        "verifier": F.lit("exact_match"),
        "verifier_digest": F.lit("d"),
        "state": F.lit("scored"),
        "reward": (F.col("draw") < 0.6).cast("double"),
        "scores": scores,
        "verified_at": now,
        "extracted_answer": (F.col("draw") * 5).cast("int").cast("string"),
    }
    _write(lake, VERIFICATIONS, rows.withColumns(common | judged))
    record_run(lake, record)
    return record


def _texts(run_id: str) -> dict[str, object]:
    texts = {
        "benchmark": run_id,
        "version": "1",
        "fingerprint": "f",
        "responses_create_params": json.dumps({"input": "q" * 500}),
        "metadata": "{}",
    }
    return {name: F.lit(text) for name, text in texts.items()}


def _write(lake: Lake, table: Table, rows: object) -> None:
    known = set(rows.columns)  # type: ignore[attr-defined]
    columns = [
        F.col(field.name).cast(field.dataType)
        if field.name in known
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in spark_schema(table).fields
    ]
    lake.append(table, rows.select(*columns))  # type: ignore[attr-defined]


def measured(lake: Lake, record: RunRecord, folder: Path) -> dict[str, float]:
    """Profile a run; wall and CPU seconds, and CPU milliseconds per rollout."""
    cpu, began = sum(cpu_s().values()), time.monotonic()
    files = ProfileFiles(folder / f"{record.spec.run_id}.jsonl")
    profile(lake, record, files=files)
    wall, used = time.monotonic() - began, sum(cpu_s().values()) - cpu
    lines = sum(1 for _ in files.groups.open())
    if lines != record.planned_tasks:
        raise AssertionError(f"{lines} groups of {record.planned_tasks}")
    return {
        "rollouts": record.planned_rollouts,
        "wall_s": round(wall, 2),
        "cpu_s": round(used, 2),
        "cpu_ms": round(1000 * used / record.planned_rollouts, 4),
        "wall_us_per_rollout": round(1e6 * wall / record.planned_rollouts, 2),
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, nargs="+", default=[16_000, 100_000, 1_000_000])
    options.add_argument("--memory", help="spark.driver.memory")
    options.add_argument("--peer", type=Path, help="virtual environment with nemo-gym 0.7.0")
    options.add_argument("--peer-rollouts", type=int, default=16_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="gym-spark-performance-") as folder:
        settings = {"spark.driver.memory": given.memory} if given.memory else None
        lake = open_lake(f"{folder}/lake", settings, say=lambda text: None)
        measured(lake, stored_run(lake, 800), Path(folder))  # the JVM compiles what is hot
        if given.peer is not None:
            for seen in beside_the_peer(given.peer, given.peer_rollouts, lake, Path(folder)):
                print(json.dumps(seen), flush=True)  # noqa: T201
        for rollouts in given.rollouts:
            print(json.dumps({"what": "ours", **measured(lake, stored_run(lake, rollouts), Path(folder))}), flush=True)  # noqa: T201
        lake.spark.stop()


if __name__ == "__main__":
    main()
