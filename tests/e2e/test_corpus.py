"""Every profile of the conformance corpus, through `eval import` and `eval profile`, beside what NeMo Gym computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gym_spark import reporting
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.aggregating import Shards, write_aggregate
from gym_spark.interchange.gym.importing import GymFiles, import_gym_run
from gym_spark.interchange.gym.profiling import ProfileFiles
from gym_spark.planning import tasks_of
from gym_spark.prepare.catalog import find_benchmark
from gym_spark.results.curves import pass_majority
from gym_spark.results.custom import metric_rows
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import find_run, get_run
from gym_spark.tables.schemas import METRICS
from tests.corpus import Case, differences, steps

Profile = Callable[[Case, bool], dict[str, Any]]

#: Where the peer's rule is a defect (SEMANTICS.md, [D]): what it is, and what we do.
DEFECTS: Final = {
    ("syn_ulp_reward", "profile"): "its histogram cannot be binned, and it stops; we compute the statistics",
    ("syn_bigint", "profile"): "its histogram cannot be binned, and it stops; we compute the statistics",
    ("syn_mixed_ids", "profile"): "it stops at ids of both kinds; we order numbers before texts",
    (
        "syn_stamps_a",
        "profile_partial",
    ): "it counts the masked by agent, of which two servers share one; we by label",
    ("syn_bigint", "profile_nohist"): "its mean of three equal means is one unit off at 4.6e17, so its spread is not 0",
}


#: Each kind of case once: a step takes some seconds on Spark, and all of them are run with GYM_SPARK_LONG=1.
SHORT: Final = (
    *("real_aalcr", "real_circle_click", "real_placeholder", "syn_bigint", "syn_duplicates", "syn_majority_a"),
    *("syn_mask_a", "syn_perf_a", "syn_ragged_a", "syn_shards_a", "syn_stamps_a", "syn_string_ids"),
)


@pytest.fixture(scope="module")
def profiled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Import a case and write its profile; once, where a second step asks for the same."""
    folder = tmp_path_factory.mktemp("corpus")
    lake = Lake(spark, str(folder / "lake"))
    done: dict[str, dict[str, Any]] = {}

    def profile(case: Case, allow_partial: bool) -> dict[str, Any]:
        if case.name not in done:
            done[case.name] = computed(case, allow_partial)
        return done[case.name]

    def computed(case: Case, allow_partial: bool) -> dict[str, Any]:
        if find_run(lake, case.name) is None:
            import_gym_run(lake, GymFiles([case.folder / "rollouts.jsonl"]), case.name)
        files = ProfileFiles(folder / f"{case.name}.jsonl")
        reporting.profile(lake, get_run(lake, case.name), files=files, allow_partial=allow_partial)
        rows = lake.read(METRICS, run_id=case.name, denominator="measured").collect()
        return {
            "metrics": {(row["label"], row["name"]): row["value"] for row in rows},
            "reward_profiling": [strict(line) for line in files.groups.read_text().splitlines()],
            "agent_metrics": strict(files.agents.read_text()),
            "repeat_level_metrics": strict(files.repeats.read_text()),
        }

    return profile


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize(("case", "step"), steps("profile", short=SHORT))
def test_a_profile_equals_the_peers(case: Case, step: str, profiled: Profile) -> None:
    expected = case.expected(step)
    allow_partial = step == "profile_partial"
    if not expected["ok"] and (case.name, step) not in DEFECTS:
        with pytest.raises(ConfigError):
            profiled(case, allow_partial)
        return
    ours = {name: made for name, made in profiled(case, allow_partial).items() if name != "metrics"}
    if (case.name, step) not in DEFECTS:
        assert differences(ours, {name: expected[name] for name in ours}) == []
    elif step == "profile_partial":
        assert differences(ours["reward_profiling"], expected["reward_profiling"]) == []
        covered = [entry for entry in ours["agent_metrics"] if "coverage/masked_rollouts" in entry]
        assert {entry["agent_ref"]["name"] for entry in covered} == {"agent_c", "srv_two", "srv_five"}
    elif step == "profile_nohist":
        found = differences(ours, {name: expected[name] for name in ours})
        assert [text.split(":")[0].rpartition("/")[2] for text in found] == ["big", "big"]
    else:
        assert ours["reward_profiling"]


@pytest.mark.parametrize("name", ["syn_majority_a", "syn_mask_a", "syn_ragged_a"])
def test_the_metrics_table_has_the_peers_pass_and_majority(name: str, profiled: Profile) -> None:
    """Its pass@k, pass@1[avg-of-k] and majority@k over rewards, with their spread across runs."""
    (case,) = [one.values[0] for one in steps("pass_majority") if one.id == f"{name}-pass_majority"]
    ours = profiled(case, True)["metrics"]
    compared = 0
    for run, expected in case.expected("pass_majority")["by_agent"].items():
        for metric, value in expected.get("metrics", {}).items():
            if isinstance(value, float) and (run, metric) in ours:
                assert ours[run, metric] == pytest.approx(value, rel=1e-9, abs=1e-12), metric
                compared += 1
        assert all((run, metric) in ours for metric in expected.get("metrics", {}) if metric.startswith("majority@"))
    assert compared > 10


#: Where the peer stops at its histogram, or at ids of both kinds.
STOPS: Final = {"syn_ulp_reward", "syn_bigint", "syn_mixed_ids"}


#: A benchmark whose metrics are those of the corpus' aggregate_custom.
OWN_METRICS: Final = Path(__file__).parents[1] / "data" / "own_metrics"


@pytest.mark.parametrize(("case", "step"), steps("aggregate_custom"))
def test_metrics_of_ones_own_equal_the_peers_hooks(case: Case, step: str, lake: Lake, tmp_path: Path) -> None:
    """Of every grain: the run, places in a task, tasks and repeats; a name missing in one repeat is in none."""
    import_gym_run(lake, GymFiles([case.folder / "rollouts.jsonl"]), "theirs")
    runs = [(lake, get_run(lake, "theirs"))]
    reporting.write_aggregate_of(runs, tmp_path / "X.jsonl", find_benchmark("tallied", [OWN_METRICS]))
    (ours,) = strict((tmp_path / "X_aggregate_metrics.json").read_text())
    expected = case.expected(step)
    compared = ("agent_metrics", "key_metrics", "group_level_metrics", "repeat_level_metrics")
    assert differences({name: ours[name] for name in compared}, {name: expected[name] for name in compared}) == []
    assert {group["best_reward"] for group in ours["group_level_metrics"]} == {0.0, 1.0}
    assert len(ours["agent_metrics"]["per_sample_aggregate"]["no_answer"]) == 8
    assert all("odd" not in entry for entry in ours["repeat_level_metrics"])


@pytest.mark.parametrize("case", [one.values[0] for one in steps("pass_majority_scores")])
def test_subsets_equal_the_peers(case: Case, lake: Lake, tmp_path: Path) -> None:
    """By a field of the tasks: with --by in the aggregate, and over other scores by a metric of one's own."""
    expected = case.expected("pass_majority_scores")["by_agent"]["agent_a"]["subset"]
    import_gym_run(lake, GymFiles([case.folder / "rollouts.jsonl"]), "theirs")
    record = get_run(lake, "theirs")
    reporting.write_aggregate_of([(lake, record)], tmp_path / "X.jsonl", by="difficulty")
    (entry,) = strict((tmp_path / "X_aggregate_metrics.json").read_text())
    values = tuple({name.partition("/")[0] + "/" for name in expected})
    ours = {name: value for name, value in entry["agent_metrics"].items() if name.startswith(values)}
    theirs = {name: value for name, value in expected.items() if "symbolic" not in name}
    assert any("majority@" in name for name in theirs)
    assert differences(ours, theirs) == []
    rollouts = metric_rows(reporting.run_outcomes(lake, record), tasks_of(lake, record))
    found = pass_majority(
        rollouts,
        scores={"accuracy": "reward", "symbolic": F.col("scores")["is_correct"]},
        subset=F.get_json_object("verifier_inputs", "$.difficulty"),
    )
    assert differences({row["name"]: row["value"] for row in found.collect()}, expected) == []


@pytest.mark.parametrize(
    ("case", "step"), [one for one in steps("aggregate", short=SHORT) if one.values[1] != "aggregate_custom"]
)
def test_an_aggregate_equals_the_peers(case: Case, step: str, spark: SparkSession, tmp_path: Path) -> None:
    expected = case.expected(step)
    options = case.steps()[step] | expected.get("options", {})
    shards = Shards(
        [case.folder / name for name in options.get("shards", ["rollouts.jsonl"])],
        options.get("count_failure_classes_as_zero", ()),
        options.get("count_missing_rollouts_as_zero", False),
    )
    if not expected["ok"] and case.name not in STOPS:
        with pytest.raises(ConfigError):
            write_aggregate(spark, shards, tmp_path / "X.jsonl", merge=False)
        assert list(tmp_path.iterdir()) == []
        return
    write_aggregate(spark, shards, tmp_path / "X.jsonl", merge=True)
    ours = strict((tmp_path / "X_aggregate_metrics.json").read_text())
    if not expected["ok"]:
        assert ours[0]["agent_metrics"]["num_repeats"] > 0
    elif step == "aggregate_nohist" and case.name == "syn_bigint":
        found = differences(ours, expected["aggregate_metrics"])
        assert [text.split(":")[0].rpartition("/")[2] for text in found] == ["big", "big"]
    else:
        assert differences(ours, expected["aggregate_metrics"]) == []
    if "merged_order" in expected:
        merged = [strict(line) for line in (tmp_path / "X.jsonl").read_text().splitlines()]
        keys = [[row.get("_ng_task_index", 0), row.get("_ng_rollout_index", 0)] for row in merged]
        assert keys == [entry[:2] for entry in expected["merged_order"]]
