"""Runs of NeMo Gym in the lake, custom metrics, and several runs as one, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import METRICS, REVERIFICATIONS, ROLLOUTS, RUNS
from tests.e2e.conftest import Run
from tests.e2e.test_corpus import OWN_METRICS
from tests.e2e.test_flow import QUIZ, arguments, quiz
from tests.fake_openai import FakeOpenAI, last_user_text

HOOK = """
from pyspark.sql import functions as F

def metrics(rollouts):
    reward = F.coalesce("reward", F.lit(0.0))
    overall = rollouts.agg(F.sum(reward).alias("value")).withColumn("name", F.lit("solved"))
    tasks = rollouts.groupBy("task_id").agg(F.max(reward).alias("value")).withColumn("name", F.lit("best_reward"))
    repeats = rollouts.groupBy("rollout_index").agg((100 * F.avg(reward)).alias("value"))
    repeats = repeats.withColumn("name", F.lit("accuracy"))
    return overall.unionByName(tasks, allowMissingColumns=True).unionByName(repeats, allowMissingColumns=True)
"""


def result(task: int, repeat: int, reward: Any, **more: Any) -> dict[str, Any]:
    message = {"type": "message", "content": [{"type": "output_text", "text": "7"}]}
    response = {"output": [message], "usage": {"input_tokens": 3, "output_tokens": 5}}
    key = {"_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": "a"}}
    return key | {"reward": reward, "response": response} | more


def write(path: Path, rows: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_an_imported_run_is_profiled_with_its_failures_and_gaps_in_the_denominator(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Three of four planned rollouts are there, one of which failed once before; a torn last line is told."""
    rows = [result(0, 0, 1.0), result(0, 1, 0.0), result(1, 0, True)]
    path = write(tmp_path / "X.jsonl", rows, tail='{"_ng_task')
    inputs = [{key: row[key] for key in ("_ng_task_index", "_ng_rollout_index", "agent_ref")} for row in rows]
    write(
        tmp_path / "X_materialized_inputs.jsonl", [*inputs, inputs[0] | {"_ng_task_index": 1, "_ng_rollout_index": 1}]
    )
    failed = {"_ng_task_index": 1, "_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}
    write(
        tmp_path / "X_failures.jsonl",
        [failed | {"_ng_task_index": 0, "_ng_rollout_index": 0}, failed | {"_ng_rollout_index": 1}],
    )
    told = gym("eval", "import", "--rollouts", path, "--run-id", "theirs")
    assert told.code == 0, told.err
    assert "theirs: 3 of 4 planned rollouts; 2 failed attempts." in told.out
    assert "ends in the middle of a line: its last 10 bytes were left out" in told.err
    attempts = {
        (row.task_id, row.rollout_index, row.attempt): row.state
        for row in lake.read(ROLLOUTS).select("task_id", "rollout_index", "attempt", "state").collect()
    }
    assert attempts == {
        ("0", 0, 1): "failed",
        ("0", 0, 2): "completed",
        ("0", 1, 1): "completed",
        ("1", 0, 1): "completed",
        ("1", 1, 1): "failed",
    }
    shown = json.loads(gym("eval", "profile", "--run-id", "theirs", "--json").out)
    assert shown["coverage"]["failures"] == {"timeout_exceeded": 1}
    means = {item["denominator"]: item["value"] for item in shown["metrics"] if item["name"] == "mean_reward"}
    assert means == {"planned": 0.5, "scored": 2 / 3}
    refused = gym("eval", "profile", "--run-id", "theirs", "--output", tmp_path / "Y.jsonl")
    assert refused.code == 2
    assert "1 of 4 planned rollouts have no result" in refused.err
    allowed = gym("eval", "profile", "--run-id", "theirs", "--output", tmp_path / "Y.jsonl", "--allow-partial-rollouts")
    assert allowed.code == 0, allowed.err
    assert "pass@2/accuracy 100.0, pass@1[avg-of-2]/accuracy 75.0." in allowed.out
    groups = [json.loads(line) for line in (tmp_path / "Y_reward_profiling.jsonl").read_text().splitlines()]
    assert [group["reward_profile_completion_pct"] for group in groups] == [100.0, 50.0]
    assert groups[1]["rollout_infos"][0]["reward"] is True
    again = gym("eval", "import", "--rollouts", path, "--run-id", "theirs")
    assert (again.code, "exists" in again.err) == (2, True)


def side(task: int, repeat: int, failure: str, **more: Any) -> dict[str, Any]:
    """A row of the failure sidecar, which has a placeholder for a reward."""
    return result(task, repeat, 0.0, _ng_failure_class=failure, **more)


def test_an_answer_whose_judge_failed_is_a_completed_rollout_without_verdict(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """The last one of a rollout without result; it is no result in NeMo Gym's files, and the export shows its row."""
    path = write(tmp_path / "X.jsonl", [result(0, 0, 1.0)])
    inputs = [result(task, repeat, None) for task in (0, 1) for repeat in (0, 1, 2)]
    write(tmp_path / "X_materialized_inputs.jsonl", inputs)
    rows = [
        side(0, 0, "judge_failed"),
        side(0, 1, "judge_failed", error="first"),
        side(0, 1, "judge_failed", error="HTTP 500"),
        side(0, 1, "agent_run_error"),
        side(0, 2, "judge_failed", response=None),
        side(1, 0, "judge_invalid"),
        side(1, 1, "timeout_exceeded"),
        side(7, 0, "judge_failed"),
    ]
    write(tmp_path / "X_failures.jsonl", rows)
    told = gym("eval", "import", "--rollouts", path, "--run-id", "theirs")
    assert told.code == 0, told.err
    assert "theirs: 1 of 6 planned rollouts; 6 failed attempts." in told.out
    assert "The judge failed on 2 more, whose answers are stored" in told.out
    gym("eval", "export", "--run-id", "theirs", "--output", tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {(one["task_id"], one["rollout_index"], one["attempt"], one["state"]) for one in lines} == {
        ("0", 0, 1, "failed"),
        ("0", 0, 2, "completed"),
        ("0", 1, 1, "failed"),
        ("0", 1, 2, "completed"),
        ("0", 1, 3, "failed"),
        ("0", 2, 1, "failed"),
        ("1", 0, 1, "completed"),
        ("1", 1, 1, "failed"),
    }
    unjudged = [one for one in lines if one["verification"] and one["verification"]["state"] == "judge_failed"]
    details = [json.loads(one["verification"]["detail"]) for one in unjudged]
    assert [(one["reason"], one["_ng_failure_class"]) for one in details] == [
        ("HTTP 500", "judge_failed"),
        ("judge_invalid", "judge_invalid"),
    ]
    assert {one["output_text"] for one in unjudged} == {"7"}
    assert {one["verification"]["reward"] for one in unjudged} == {None}
    # Of six that are planned one counts, in our numbers and in NeMo Gym's.
    words = ["eval", "profile", "--run-id", "theirs", "--json", "--output", tmp_path / "Y.jsonl"]
    assert "5 of 6 planned rollouts have no result, or no verdict" in gym(*words).err
    shown = json.loads(gym(*words, "--allow-partial-rollouts").out)
    assert (shown["coverage"]["completed"], shown["coverage"]["scored"]) == (3, 1)
    (agent,) = json.loads((tmp_path / "Y_agent_metrics.json").read_text())
    assert agent["mean/reward"] == 1.0
    (group,) = [json.loads(line) for line in (tmp_path / "Y_reward_profiling.jsonl").read_text().splitlines()]
    assert (group["num_rollouts"], group["missing_num_rollouts"]) == (1, 2)


def test_a_run_without_such_answers_has_none_to_judge(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """And an answer of an odd shape is refused by file and line."""
    path = write(tmp_path / "X.jsonl", [result(0, 0, 1.0)])
    write(tmp_path / "X_materialized_inputs.jsonl", [result(0, repeat, None) for repeat in (0, 1)])
    odd = write(tmp_path / "X_failures.jsonl", [side(0, 1, "judge_failed", response={"output": [], "usage": []})])
    refused = gym("eval", "import", "--rollouts", path, "--run-id", "theirs")
    assert (refused.code, "X_failures.jsonl:1: 'usage' is a JSON list" in refused.err) == (2, True)
    assert not lake.exists(RUNS)
    odd.unlink()
    assert gym("eval", "import", "--rollouts", path, "--run-id", "theirs").code == 0
    told = gym("eval", "reverify", "--run-id", "theirs", "--verifier", "exact_match", "--judge-failed-only")
    assert told.code == 2
    assert "The run 'theirs' never had a verdict judge_failed in its own, 'imported'" in told.err
    assert not lake.exists(REVERIFICATIONS)


def test_files_that_are_no_run_are_refused_and_nothing_is_written(gym: Run, lake: Lake, tmp_path: Path) -> None:
    wrong = {
        "twice": ([result(0, 0, 1.0), result(0, 0, 1.0)], "More than one result row for 1 key: (0, 0)"),
        "shape": ([result(0, 0, 1.0, response=[])], "shape.jsonl:1: 'response' is a JSON list"),
        "list": (
            [result(0, 0, 1.0), result(0, 1, 1.0, response={"usage": []})],
            "list.jsonl:2: 'usage' is a JSON list",
        ),
        "nan": ([result(0, 0, float("nan"))], "nan.jsonl:1: the line is not strict JSON"),
    }
    for name, (rows, message) in wrong.items():
        told = gym("eval", "import", "--rollouts", write(tmp_path / f"{name}.jsonl", rows), "--run-id", name)
        assert told.code == 2
        assert message in told.err
        assert len(told.err.strip().splitlines()) == 1
    assert not lake.exists(RUNS)


def test_a_benchmarks_own_metrics_and_two_runs_as_one(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Values over the run, of tasks and of repeats stand in table, JSON and files; an overlap of runs is named."""
    shutil.copytree(QUIZ / "quiz", tmp_path / "own" / "quiz")
    (tmp_path / "own" / "quiz" / "metrics.py").write_text(HOOK)
    with (tmp_path / "own" / "quiz" / "benchmark.yaml").open("a") as file:
        file.write("key_metrics: [solved, mean_reward]\n")
    source = quiz(tmp_path / "quiz.jsonl", 4)
    own = ["--search-dir", tmp_path / "own"]

    def even(body: dict[str, Any], n: int) -> str:
        number = int(last_user_text(body).split()[1])
        return str(number) if number % 2 == 0 else "?"

    with FakeOpenAI(even) as server:
        words = [own[1] if word == QUIZ else word for word in arguments(server, "r1", source, "--no-preflight")]
        words += ["--num-repeats", "2"]
        told = gym(*words)
        assert told.code == 0, told.err
        assert "solved 4.000, mean_reward 0.500" in told.out
        assert gym(*["r2" if word == "r1" else word for word in words]).code == 0
        other = gym(*["r3" if word == "r1" else word for word in words], "--temperature", "0.5")
        assert other.code == 0
    shown = json.loads(gym("eval", "profile", "--run-id", "r1", "--json", *own, "--output", tmp_path / "X.jsonl").out)
    assert {item["name"]: item["value"] for item in shown["metrics"] if item["denominator"] == "custom"} == {
        "solved": 4.0
    }
    groups = [json.loads(line) for line in (tmp_path / "X_reward_profiling.jsonl").read_text().splitlines()]
    assert [group["best_reward"] for group in groups] == [1.0, 0.0, 1.0, 0.0]
    (agent,) = json.loads((tmp_path / "X_agent_metrics.json").read_text())
    assert (agent["solved"], agent["mean_across_repeats/accuracy"]) == (4.0, 50.0)
    stored = lake.read(METRICS, run_id="r1").where("denominator = 'measured'").collect()
    told = {row.name: row.value for row in stored}
    assert {name: told[name] for name in agent if name != "agent_ref"} == {
        name: value for name, value in agent.items() if name != "agent_ref"
    }
    assert told["pass@1[avg-of-2]/accuracy"] == 50.0
    assert {(row.label, row.n_tasks, row.n_rollouts) for row in stored} == {("single_turn", 4, 8)}
    repeats = json.loads((tmp_path / "X_repeat_level_metrics.json").read_text())
    assert [entry["accuracy"] for entry in repeats] == [50.0, 50.0]
    one, other = tmp_path / "one", tmp_path / "other"
    first = gym("eval", "aggregate", "--run-id", "r1", "--run-id", "r2", "--output", one / "A.jsonl")
    assert first.code == 0, first.err
    assert "8 have one in several runs" in first.out
    assert gym("eval", "aggregate", "--run-id", "r2", "--run-id", "r1", "--output", other / "A.jsonl").code == 0
    name = "A_aggregate_metrics.json"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    assert gym("eval", "aggregate", "--run-id", "r1", *own, "--output", other / "C.jsonl").code == 0
    (entry,) = json.loads((other / "C_aggregate_metrics.json").read_text())
    assert entry["key_metrics"] == {"solved": 4.0}
    assert [group["best_reward"] for group in entry["group_level_metrics"]] == [1.0, 0.0, 1.0, 0.0]
    refused = gym("eval", "aggregate", "--run-id", "r1", "--run-id", "r3", "--output", one / "B.jsonl")
    assert refused.code == 2
    assert "sampling.temperature" in refused.err


def test_own_metrics_of_an_imported_run_are_those_of_each_agent_alone(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Two agents over the same two tasks: each has its own numbers, and each task's line those of its agent."""
    rewards = {"a": {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 1.0, (1, 1): 1.0}, "b": {(0, 2): 0.0, (0, 3): 0.0, (1, 2): 0.0}}
    rows = [
        result(*key, reward, agent_ref={"name": agent}, extracted_answer="7")
        for agent, own in rewards.items()
        for key, reward in own.items()
    ]
    path = write(tmp_path / "X.jsonl", rows)
    assert gym("eval", "import", "--rollouts", path, "--run-id", "theirs").code == 0
    named = ["--run-id", "theirs", "--benchmark", "tallied", "--search-dir", OWN_METRICS, "--output"]
    told = gym("eval", "profile", *named, tmp_path / "Y.jsonl")
    assert told.code == 0, told.err
    agents = json.loads((tmp_path / "Y_agent_metrics.json").read_text())
    assert {entry["agent_ref"]["name"]: entry["solved"] for entry in agents} == {"a": 3.0, "b": 0.0}
    assert [entry["pass@2/accuracy"] for entry in agents] == [100.0, 0.0]
    assert [entry["per_sample_aggregate"]["accuracy"] for entry in agents] == [[100.0, 50.0], [0.0, 0.0]]
    lines = [json.loads(line) for line in (tmp_path / "Y_reward_profiling.jsonl").read_text().splitlines()]
    best = {(line["_ng_task_index"], line["agent_ref"]["name"]): line["best_reward"] for line in lines}
    assert best == {(0, "a"): 1.0, (0, "b"): 0.0, (1, "a"): 1.0, (1, "b"): 0.0}
    (solved,) = lake.read(METRICS, run_id="theirs", name="solved", denominator="custom").collect()
    assert solved["value"] == 3.0
    told = gym("eval", "aggregate", *named, tmp_path / "Z.jsonl")
    assert told.code == 0, told.err
    entries = json.loads((tmp_path / "Z_aggregate_metrics.json").read_text())
    assert [entry["key_metrics"]["majority@2/accuracy"] for entry in entries] == [75.0, 0.0]
    wrong = gym("eval", "aggregate", "--run-id", "theirs", "--by", "subject", "--output", tmp_path / "W.jsonl")
    assert wrong.code == 2
    assert "No scored task has the field 'subject'" in wrong.err
    files = gym("eval", "aggregate", "--rollouts", path, "--by", "subject", "--output", tmp_path / "W.jsonl")
    assert (files.code, "are about runs" in files.err) == (2, True)
    assert not list(tmp_path.glob("W*"))


def test_usage_that_is_not_known_is_null_and_never_zero(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Counts, the usage, the response: each may be null; none of them costs the row, or becomes a number."""
    output = [{"type": "message", "content": [{"type": "output_text", "text": "7"}]}]
    responses = [
        {"output": output, "usage": {"input_tokens": None, "output_tokens": 5}},
        {"output": output, "usage": None},
        None,
        {"usage": {"input_tokens": 3, "output_tokens": None}},
    ]
    rows = [result(task, 0, 1.0, response=response) for task, response in enumerate(responses)]
    path = write(tmp_path / "X.jsonl", rows)
    told = gym("eval", "import", "--rollouts", path, "--run-id", "theirs")
    assert told.code == 0, told.err
    counts = {
        row.task_id: (row.usage.input_tokens, row.usage.output_tokens, row.usage.total_tokens)
        for row in lake.read(ROLLOUTS).select("task_id", "usage").collect()
    }
    assert counts == {"0": (None, 5, None), "1": (None,) * 3, "2": (None,) * 3, "3": (3, None, None)}
    assert gym("eval", "profile", "--run-id", "theirs", "--output", tmp_path / "Y.jsonl").code == 0
    (agent,) = json.loads((tmp_path / "Y_agent_metrics.json").read_text())
    assert {name: agent[name] for name in agent if name.startswith(("mean/", "min/"))} == {
        **{"mean/reward": 1.0, "mean/input_tokens": 3.0, "mean/output_tokens": 5.0},
        **{"min/reward": 1.0, "min/input_tokens": 3.0, "min/output_tokens": 5.0},
    }
    lines = [json.loads(line) for line in (tmp_path / "Y_reward_profiling.jsonl").read_text().splitlines()]
    assert [{"input_tokens", "output_tokens"} & line["rollout_infos"][0].keys() for line in lines] == [
        {"output_tokens"},
        set(),
        set(),
        {"input_tokens"},
    ]
    assert gym("eval", "export", "--run-id", "theirs", "--output", tmp_path / "E.jsonl").code == 0
    exported = [json.loads(line)["usage"] for line in (tmp_path / "E.jsonl").read_text().splitlines()]
    assert [(usage["input_tokens"], usage["output_tokens"]) for usage in exported] == [
        (None, 5),
        (None, None),
        (None, None),
        (3, None),
    ]
    assert gym("eval", "aggregate", "--rollouts", path, "--output", tmp_path / "Z.jsonl").code == 0
    (entry,) = json.loads((tmp_path / "Z_aggregate_metrics.json").read_text())
    assert entry["agent_metrics"]["mean/input_tokens"] == 3.0
