"""NeMo Gym's reverifications in the conformance corpus, through `eval import` and `eval reverify`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import VERIFICATIONS
from tests.corpus import Case, differences, steps
from tests.e2e.conftest import Run
from tests.e2e.test_judging_remote import resources_server

TOY: Final = "tests.spark.verifiers:Toy"
Key = tuple[int, int]

#: What the peer's failure classes are as verdicts of the toy verifier.
KINDS: Final = {"judge_failed": "judge_failed", "timeout_exceeded": "verify_timeout"}


def the_case() -> Case:
    (case,) = [one.values[0] for one in steps("reverify") if one.values[1] == "reverify"]
    return case


def imported(gym: Run, rollouts: Path | None = None) -> Case:
    case = the_case()
    told = gym("eval", "import", "--rollouts", rollouts or case.folder / "rollouts.jsonl", "--run-id", "r1")
    assert told.code == 0, told.err
    assert "The judge failed on 12 more, whose answers are stored" in told.out
    return case


def by_key(rows: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in rows}


def verdicts(lake: Lake, verification_id: str) -> dict[Key, Any]:
    """The verdict that stands on each rollout; failed attempts apart."""
    rows = lake.read(VERIFICATIONS, verification_id=verification_id).where("state != 'not_scored'").collect()
    return {
        (int(row["task_id"]), row["rollout_index"]): row for row in sorted(rows, key=lambda row: row["verified_at"])
    }


def scored(ours: dict[Key, Any]) -> dict[Key, tuple[float, str | None]]:
    return {key: (row["reward"], row["extracted_answer"]) for key, row in ours.items() if row["state"] == "scored"}


def answers(rows: dict[Key, dict[str, Any]]) -> dict[Key, tuple[float, str | None]]:
    return {key: (row["reward"], row.get("extracted_answer")) for key, row in rows.items()}


def of_state(ours: dict[Key, Any], *states: str) -> dict[Key, str]:
    return {key: row["state"] for key, row in ours.items() if row["state"] in states}


def failed(expected: dict[str, Any]) -> dict[Key, str]:
    """The verdicts that stand for the peer's rows of failures."""
    return {key: KINDS[row["_ng_failure_class"]] for key, row in by_key(expected["failure_rows"]).items()}


def agent_metrics(gym: Run, target: Path, *words: str) -> dict[str, Any]:
    """What NeMo Gym's file says of the run's one agent."""
    told = gym("eval", "profile", "--run-id", "r1", "--output", target, "--allow-partial-rollouts", *words)
    assert told.code == 0, told.err
    (entry,) = json.loads((target.parent / f"{target.stem}_agent_metrics.json").read_text())
    return {name: value for name, value in entry.items() if name != "agent_ref"}


def key_metrics(gym: Run, tmp_path: Path, expected: dict[str, Any], *words: str) -> list[str]:
    """How the means differ from those that the peer has of its whole output."""
    theirs = expected["aggregate_metrics"][0]["key_metrics"]
    ours = agent_metrics(gym, tmp_path / "key.jsonl", *words)
    return differences({name: value for name, value in ours.items() if re.fullmatch("mean/[^/]*", name)}, theirs)


def test_a_reverification_equals_the_peers(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Each scored row has the peer's reward and answer; what it routes to its failures file is unscored by kind.

    It judges its rows of results. With us the answers of rollouts whose judge failed are there too, and are judged once
    there is no selection: as the peer judges them where it is told to (`reverify_judge_failed`).
    """
    case = imported(gym)
    expected, others = case.expected("reverify"), case.expected("reverify_judge_failed")
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--verification-id", "again"]
    told = gym(*words, "--where", chosen(verified(expected)), "--json")
    assert told.code == 0, told.err
    ours = verdicts(lake, "again")
    assert ours.keys() == verified(expected)
    assert scored(ours) == answers(by_key(expected["output_rows"]))
    assert of_state(ours, *KINDS.values()) == failed(expected)
    # The peer stores nothing of a reply that is not to be stored; with us every rollout has a verdict that says so.
    unstored = verified(expected) - scored(ours).keys() - failed(expected).keys()
    assert of_state(ours, "verifier_error").keys() == unstored
    again = ["--verification-id", "again"]
    numbers = dict(expected["aggregate_metrics"][0]["agent_metrics"])
    del numbers["num_repeats"]  # a field of aggregates only
    assert differences(agent_metrics(gym, tmp_path / "X.jsonl", *again), numbers) == []
    shown = json.loads(gym("eval", "profile", "--run-id", "r1", *again, "--json").out)
    assert shown["coverage"]["scored"] == len(scored(ours))

    assert gym(*words, "--resume").code == 0
    more = {key: row for key, row in verdicts(lake, "again").items() if key not in ours}
    assert more.keys() == verified(others)
    theirs = answers(by_key(others["output_rows"]))
    assert scored(more) == {key: theirs[key] for key in scored(more)}
    assert of_state(more, *KINDS.values()) == failed(others)


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


def test_a_selection_judges_the_peers_rows_and_a_resume_what_is_left(gym: Run, lake: Lake) -> None:
    """Its `limit` is a condition here; the keys that its resume passes over are those that have a verdict here."""
    case = imported(gym)
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--verification-id"]
    limit = case.expected("reverify_limit")
    few = gym(*words, "few", "--where", chosen(verified(limit)), "--json")
    assert few.code == 0, few.err
    ours = verdicts(lake, "few")
    assert ours.keys() == verified(limit)
    assert scored(ours) == answers(by_key(limit["output_rows"]))
    assert of_state(ours, *KINDS.values()) == failed(limit)

    assert not case.expected("reverify_exists")["ok"]
    again = gym(*words, "few")
    assert (again.code, "--resume" in again.err) == (2, True)

    resume = case.expected("reverify_resume")
    passed_over = verified(case.expected("reverify")) - verified(resume)
    assert passed_over
    gym(*words, "more", "--where", chosen(passed_over))
    before = verdicts(lake, "more")
    assert before.keys() == passed_over
    rest = gym(*words, "more", "--resume", "--where", chosen(verified(case.expected("reverify"))), "--json")
    assert rest.code == 0, rest.err
    ours = verdicts(lake, "more")
    assert ours.keys() - passed_over == verified(resume)
    assert {key: ours[key] for key in passed_over} == before
    fresh = {key: row for key, row in ours.items() if key not in passed_over}
    assert scored(fresh) == answers({key: row for key, row in by_key(resume["output_rows"]).items() if key in fresh})


def test_another_name_judges_everything_anew_and_what_was_there_stays(gym: Run, lake: Lake) -> None:
    """The peer's `overwrite`: its old output is gone. With us the name is refused, another stands beside it."""
    case = imported(gym)
    expected = case.expected("reverify_overwrite")
    there = by_key(case_rows(case, case.steps()["reverify_overwrite"]["existing_output"])).keys()
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--verification-id"]
    assert gym(*words, "old", "--where", chosen(set(there))).code == 0
    old = verdicts(lake, "old")
    refused = gym(*words, "old")
    assert (refused.code, "another --verification-id to judge everything anew" in refused.err) == (2, True)
    told = gym(*words, "new", "--where", chosen(verified(expected)), "--json")
    assert json.loads(told.out)["judged"] == len(verified(expected))
    new = verdicts(lake, "new")
    assert scored(new) == answers(by_key(expected["output_rows"]))
    assert of_state(new, *KINDS.values()) == failed(expected)
    assert verdicts(lake, "old") == old
    assert old.keys() == there


def case_rows(case: Case, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (case.folder / name).read_text().splitlines()]


def test_what_timed_out_is_passed_over_unless_it_is_asked_for(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """The peer's `retry_terminal_timeouts`: rollouts that failed for good are judged too (the others it judges anyway).

    Of those three, which have no output yet, a verdict `verify_timeout` stands here.
    """
    case = imported(gym)
    plain, retried = case.expected("reverify_resume"), case.expected("reverify_resume_retry")
    output = set(by_key(case_rows(case, retried["options"]["existing_output"])))
    final = verified(retried) - verified(plain)
    failures = case_rows(case, retried["options"]["existing_failures"])
    assert final == {key for key, row in by_terminal(failures).items() if key not in output}
    done = tmp_path / "done"
    slow = ["--verifier", "tests.spark.verifiers:ToyOnSlowMachine", "--set", f"verifier.params.done={done}"]
    words = ["eval", "reverify", "--run-id", "r1", *slow, "--verification-id", "slow", "--json"]
    gym(*words, "--where", chosen(final))
    assert of_state(verdicts(lake, "slow"), "verify_timeout").keys() == final
    done.touch()
    gym(*words, "--resume", "--where", chosen(output))
    before = verdicts(lake, "slow")
    # Only what the peer goes over is looked at: its answers whose judge failed are none of it.
    within = ["--where", chosen(output | verified(retried))]
    assert json.loads(gym(*words, "--resume", "--where", chosen(final)).out)["judged"] == 0
    told = gym(*words, "--resume", "--retry", "verify_timeout", *within)
    assert json.loads(told.out)["judged"] == len(verified(retried))
    ours = verdicts(lake, "slow")
    assert {key: ours[key] for key in output} == {key: before[key] for key in output}
    judged = {key: row for key, row in ours.items() if key not in output}
    assert judged.keys() == verified(retried)
    theirs = by_key([row for row in retried["output_rows"] if "note" not in row])
    assert scored(judged) == answers(theirs)
    fresh = retried | {"failure_rows": [row for row in retried["failure_rows"] if "reward" in row]}
    assert of_state(judged, *KINDS.values()) == failed(fresh)


def by_terminal(rows: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return by_key([row for row in rows if row.get("_ng_failure_terminal")])


def completed(lake: Lake, expected: dict[str, Any]) -> None:
    """The imported verification has the verdicts of the peer's whole output, old rewards and new ones."""
    ours = verdicts(lake, "imported")
    assert scored(ours) == answers(by_key(expected["output_rows"]))
    assert of_state(ours, *KINDS.values()) == failed(expected)
    fresh = {key for key, row in ours.items() if row["verifier"] == TOY}
    assert fresh == verified(expected)
    # A reply that is not to be stored.
    assert of_state(ours, "verifier_error").keys() == fresh - scored(ours).keys() - failed(expected).keys()


def test_answers_whose_judge_failed_complete_the_imported_verification(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """`judge_failed_only`: the old rewards, and verdicts on the rows of failures that only their judge failed on."""
    case = imported(gym)
    expected = case.expected("reverify_judge_failed")
    unjudged = of_state(verdicts(lake, "imported"), "judge_failed").keys()
    assert unjudged == verified(expected)
    words = ["eval", "reverify", "--run-id", "r1", "--judge-failed-only"]
    assert "name a verifier with --verifier" in gym(*words).err
    # Beside it first, as a verification of its own, by two jobs: the second one finds it there.
    own = [*words, "--verifier", TOY, "--verification-id", "own", "--json", "--shards"]
    shares = [json.loads(gym(*own, share).out)["judged"] for share in ("1/2", "2/2")]
    assert (sum(shares), min(shares) > 0) == (len(unjudged), True)
    told = gym(*words, "--verifier", TOY, "--json")
    assert told.code == 0, told.err
    done = json.loads(told.out)
    assert (done["verification_id"], done["judged"]) == ("imported", len(unjudged))
    assert done["change"]["flips"]["unscored_to_scored"]["rollouts"] == len(expected["output_rows"]) - 53
    completed(lake, expected)
    assert scored(verdicts(lake, "own")) == {
        key: verdict for key, verdict in scored(verdicts(lake, "imported")).items() if key in unjudged
    }
    assert key_metrics(gym, tmp_path, expected) == []
    # One of them failed again, and is asked about again; another verifier's verdicts do not belong there.
    assert json.loads(gym(*words, "--verifier", TOY, "--json").out)["judged"] == 1
    other = gym(*words, "--verifier", "exact_match", "--verification-id", "imported")
    assert (other.code, "was made by another verifier" in other.err) == (2, True)
    (noted, _) = json.loads(gym("eval", "status", "--run-id", "r1", "--json").out)["verifications"]
    assert {noted["verifier"]} == {TOY}


def test_imported_rewards_of_an_invalid_judge_are_judged_again_where_that_is_asked_for(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """`judge_failed_only` with `retry_invalid_judge_responses`: two rows of results are judged as well."""
    case = imported(gym)
    expected = case.expected("reverify_judge_failed_invalid")
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", TOY]
    told = gym(*words, "--retry", "judge_failed,invalid_judge_response", "--json")
    assert told.code == 0, told.err
    completed(lake, expected)
    assert key_metrics(gym, tmp_path, expected) == []


def test_an_output_that_is_there_is_gone_on_with(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """`append`: the peer adds rows of results to a file that has some, then verdicts; such a file is imported here."""
    case = the_case()
    expected = case.expected("reverify_append")
    there = case_rows(case, expected["options"]["existing_output"])
    more = [row for key, row in by_key(case_rows(case, "rollouts.jsonl")).items() if key not in by_key(there)]
    rollouts = tmp_path / "X.jsonl"
    rollouts.write_text("".join(json.dumps(row) + "\n" for row in [*there, *more]))
    for side in ("failures", "materialized_inputs"):
        (tmp_path / f"X_{side}.jsonl").write_bytes((case.folder / f"rollouts_{side}.jsonl").read_bytes())
    imported(gym, rollouts)
    told = gym("eval", "reverify", "--run-id", "r1", "--verifier", TOY, "--judge-failed-only", "--json")
    assert told.code == 0, told.err
    completed(lake, expected)
    assert {verdict[0] for key, verdict in scored(verdicts(lake, "imported")).items() if key in by_key(there)} == {0.5}
    assert key_metrics(gym, tmp_path, expected) == []


def toy_reply(body: dict[str, Any], _: int) -> tuple[int, dict[str, Any]]:
    """What the case's server replies to a row (the corpus' README)."""
    toy = body.get("toy") or {}
    texts = [part["text"] for message in body["response"]["output"] for part in message.get("content", [])]
    _, found, after = texts[-1].rpartition("ANSWER: ")
    answer = after.strip() if found else None
    reply = {"reward": float(answer == body["expected_answer"]), "extracted_answer": answer}
    if "failure_class" in toy:
        reply["_ng_failure_class"] = toy["failure_class"]
    if toy.get("no_persist"):
        reply["_ng_no_persist"] = True
    if "invalid_judge" in toy:
        reply["invalid_judge_response"] = True
    return 200, {name: value for name, value in body.items() if name != "toy"} | reply


def test_an_invalid_reply_of_a_servers_judge_is_never_a_reward(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """`retry_invalid_judge_responses` is our rule without a flag: such a verdict says nothing about the answer.

    Without the flag the peer scores the three rows (8, 0), (10, 1) and (20, 2), with it they are failures of the class
    judge_invalid. From a server (`remote`) a reply that is no measurement is `judge_failed`, with its kind as detail.
    """
    case = imported(gym)
    expected = case.expected("reverify_invalid_judge")
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", "remote", "--verification-id", "theirs"]
    with resources_server(toy_reply) as server:
        url = ["--set", f"verifier.params.url={server.url}"]
        told = gym(*words, *url, "--where", chosen(verified(expected)), "--json")
    assert told.code == 0, told.err
    ours = verdicts(lake, "theirs")
    assert scored(ours) == answers(by_key(expected["output_rows"]))
    kinds = {key: json.loads(row["detail"])["kind"] for key, row in ours.items() if row["state"] == "judge_failed"}
    failures = {key: row["_ng_failure_class"] for key, row in by_key(expected["failure_rows"]).items()}
    assert kinds == failures | {key: "no_persist" for key in ours.keys() - scored(ours).keys() - failures.keys()}
    invalid = {key for key, kind in kinds.items() if kind == "judge_invalid"}
    assert invalid == {(8, 0), (10, 1), (20, 2)}
    assert invalid <= by_key(case.expected("reverify")["output_rows"]).keys()
    assert key_metrics(gym, tmp_path, expected, "--verification-id", "theirs") == []


def test_every_step_of_the_corpus_is_accounted_for() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert {one.values[1] for one in steps("reverify")} == set(re.findall(r'\.expected\("(\w+)"\)', text))
