"""NeMo Gym's reverifications in the conformance corpus, through `eval import` and `eval reverify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import VERIFICATIONS
from tests.corpus import Case, steps
from tests.e2e.conftest import Run

TOY: Final = "tests.spark.verifiers:Toy"
Key = tuple[int, int]

#: Our form of the steps that have no test of their own here. `overwrite`: another --verification-id, whose verdicts
#: `reverify` shows. `resume_retry`: the peer passes over what failed for good, unless told; with us what has a verdict
#: is passed over, and another --verification-id judges everything. `judge_failed*`, `append`: the peer judges the rows
#: of its failures file, with us failed attempts of the imported run, which are not judged; what --judge-failed-only
#: does is in test_reverify.py. `invalid_judge`: a judge's reply that cannot be read is `judge_failed`, whoever asks.
ELSEWHERE: Final = frozenset(
    {
        "reverify_overwrite",
        "reverify_resume_retry",
        "reverify_judge_failed",
        "reverify_judge_failed_invalid",
        "reverify_append",
        "reverify_invalid_judge",
    }
)


def imported(gym: Run) -> Case:
    (case,) = [one.values[0] for one in steps("reverify") if one.values[1] == "reverify"]
    told = gym("eval", "import", "--rollouts", case.folder / "rollouts.jsonl", "--run-id", "r1")
    assert told.code == 0, told.err
    return case


def by_key(rows: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in rows}


def verdicts(lake: Lake, verification_id: str) -> dict[Key, Any]:
    rows = lake.read(VERIFICATIONS, verification_id=verification_id).where("state != 'not_scored'").collect()
    return {(int(row["task_id"]), row["rollout_index"]): row for row in rows}


def test_a_reverification_equals_the_peers(gym: Run, lake: Lake) -> None:
    """Each scored row has the peer's reward and answer; what it routes to its failures file is unscored by kind."""
    case = imported(gym)
    expected = case.expected("reverify")
    told = gym("eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--verification-id", "again", "--json")
    assert told.code == 0, told.err
    ours = verdicts(lake, "again")
    scored = {key: (row["reward"], row["extracted_answer"]) for key, row in ours.items() if row["state"] == "scored"}
    peers = by_key(expected["output_rows"])
    assert scored == {key: (row["reward"], row["extracted_answer"]) for key, row in peers.items()}
    failures = by_key(expected["failure_rows"])
    kinds = {"judge_failed": "judge_failed", "timeout_exceeded": "verify_timeout"}
    failed = {key: row["state"] for key, row in ours.items() if row["state"] in kinds.values()}
    assert failed == {key: kinds[row["_ng_failure_class"]] for key, row in failures.items()}
    # The peer stores nothing of a reply that is not to be stored; with us every rollout has a verdict that says so.
    unstored = ours.keys() - scored.keys() - failed.keys()
    assert {ours[key]["state"] for key in unstored} <= {"verifier_error"}
    assert sorted([*scored, *failed, *unstored]) == sorted((key[0], key[1]) for key in expected["verified_keys"])
    mean = json.loads(gym("eval", "profile", "--run-id", "r1", "--verification-id", "again", "--json").out)
    metrics = {(metric["name"], metric["denominator"]): metric["value"] for metric in mean["metrics"]}
    assert expected["aggregate_metrics"][0]["agent_metrics"]["mean/reward"] == pytest.approx(
        sum(reward for reward, _ in scored.values()) / len(scored)
    )
    assert mean["coverage"]["scored"] == len(scored)
    assert metrics["mean_reward", "scored"] is not None


def test_a_server_of_unknown_mode_is_refused_and_forced_verdicts_are_marked(gym: Run, lake: Lake) -> None:
    case = imported(gym)
    assert not case.expected("reverify_unknown_mode")["ok"]
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", "tests.spark.verifiers:ToyOfUnknownMode"]
    refused = gym(*words)
    assert refused.code == 2
    assert "--force" in refused.err
    expected = by_key(case.expected("reverify_forced")["output_rows"])
    assert case.expected("reverify_forced")["output_name"].startswith("unsafe_")
    tasks = ",".join(sorted({str(task) for task, _ in expected}))
    forced = gym(*words, "--force", "--tasks", tasks, "--verification-id", "forced")
    assert forced.code == 0, forced.err
    ours = verdicts(lake, "forced")
    assert {key: ours[key]["reward"] for key in expected} == {key: row["reward"] for key, row in expected.items()}
    assert {row["unsafe"] for row in ours.values()} == {True}


def test_an_imported_run_has_no_verifier_of_its_own(gym: Run, tmp_path: Path) -> None:
    imported(gym)
    told = gym("eval", "reverify", "--run-id", "r1")
    assert told.code == 2
    assert "name a verifier with --verifier" in told.err


def chosen(keys: set[Key]) -> str:
    """Return the condition of these rollouts."""
    return " OR ".join(f"(task_id = '{task}' AND rollout_index = {repeat})" for task, repeat in sorted(keys))


def verified(expected: dict[str, Any]) -> set[Key]:
    return {(key[0], key[1]) for key in expected["verified_keys"]}


def rewards(rows: dict[Key, dict[str, Any]], keys: set[Key]) -> dict[Key, float]:
    return {key: row["reward"] for key, row in rows.items() if key in keys}


def test_a_selection_judges_the_peers_rows_and_a_resume_what_is_left(gym: Run, lake: Lake) -> None:
    """Its `limit` is a condition here; the keys that its resume passes over are those that have a verdict here."""
    case = imported(gym)
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--verification-id"]
    limit = case.expected("reverify_limit")
    few = gym(*words, "few", "--where", chosen(verified(limit)), "--json")
    assert few.code == 0, few.err
    ours = verdicts(lake, "few")
    assert ours.keys() == verified(limit)
    scored = {key: row["reward"] for key, row in ours.items() if row["state"] == "scored"}
    assert scored == rewards(by_key(limit["output_rows"]), ours.keys())
    assert {key for key, row in ours.items() if row["state"] == "judge_failed"} == by_key(limit["failure_rows"]).keys()

    assert not case.expected("reverify_exists")["ok"]
    again = gym(*words, "few")
    assert (again.code, "--resume" in again.err) == (2, True)

    resume = case.expected("reverify_resume")
    passed_over = verified(case.expected("reverify")) - verified(resume)
    assert passed_over
    gym(*words, "more", "--where", chosen(passed_over))
    before = verdicts(lake, "more")
    assert before.keys() == passed_over
    rest = gym(*words, "more", "--resume", "--json")
    assert rest.code == 0, rest.err
    ours = verdicts(lake, "more")
    assert {key: ours[key] for key in passed_over} == before
    fresh = {key: row["reward"] for key, row in ours.items() if key not in passed_over and row["state"] == "scored"}
    assert fresh == rewards(by_key(resume["output_rows"]), verified(resume))


def test_every_step_of_the_corpus_is_accounted_for() -> None:
    here = {"reverify", "reverify_unknown_mode", "reverify_forced", "reverify_exists", "reverify_limit"}
    assert {one.values[1] for one in steps("reverify")} == here | {"reverify_resume"} | ELSEWHERE
