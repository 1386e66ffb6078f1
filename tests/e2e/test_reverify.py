"""`eval reverify`: verdicts are versions beside the rollout, made without asking a model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import REVERIFICATIONS, ROLLOUTS, VERIFICATIONS
from tests.e2e.conftest import Run, Told
from tests.e2e.test_flow import QUIZ, arguments, quiz
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text

EVERYTHING = "tests.spark.verifiers:Everything"
IN_SESSION = "tests.spark.verifiers:InSession"


def half_fails(body: dict[str, object], n: int) -> FakeReply:
    """Answer "wrong" to even questions, and refuse odd ones for good."""
    number = int(last_user_text(body).split("+")[0].removeprefix("Q: "))
    return FakeReply("wrong") if number % 2 == 0 else FakeReply(status=400)


def stored_run(gym: Run, tmp_path: Path, server: FakeOpenAI) -> Told:
    """Run ten tasks of which five fail and none is right."""
    return gym(*arguments(server, "r1", quiz(tmp_path / "quiz.jsonl", 10), "--no-preflight"))


def states(lake: Lake, verification_id: str | None = None) -> Counter[tuple[str, float | None]]:
    rows = lake.read(VERIFICATIONS).collect()
    return Counter((row["state"], row["reward"]) for row in rows if verification_id in (None, row["verification_id"]))


def test_p41_a_second_verification_counts_what_it_could_not_judge_and_leaves_the_first(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Ten rollouts, five failed, all old rewards 0; the new verifier gives 1: five scored, five not, strict 0.5."""
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
        sent, old = server.requests, states(lake)
        told = gym("eval", "reverify", "--run-id", "r1", "--verifier", EVERYTHING, "--json")
        assert told.code == 0, told.err
        done = json.loads(told.out)
        assert (done["judged"], done["change"]["verdicts"]) == (10, {"not_scored": 5, "scored": 5})
        assert done["change"]["flips"]["fail_to_pass"] == {"rollouts": 5, "tasks": 5}
        assert done["change"]["delta"] == 1.0
        assert states(lake, done["compared_with"]) == old
        profile = ["eval", "profile", "--run-id", "r1", "--json"]
        new = json.loads(gym(*profile, "--verification-id", done["verification_id"]).out)
        first = json.loads(gym(*profile).out)
        strict = [
            metric for metric in new["metrics"] if (metric["name"], metric["denominator"]) == ("mean_reward", "planned")
        ]
        assert strict[0]["value"] == 0.5
        assert first["coverage"]["mean_of_complete"] == 0.0

        # Only two tasks, with another parameter: two rows, and every earlier verdict stays.
        ids = sorted(row["task_id"] for row in lake.read(ROLLOUTS).where("state = 'completed'").collect())[:2]
        before = states(lake)
        few = ["eval", "reverify", "--run-id", "r1", "--verifier", EVERYTHING, "--set", "verifier.params.reward=0.25"]
        two = gym(*few, "--tasks", ",".join(ids), "--json")
        assert json.loads(two.out)["judged"] == 2
        assert states(lake) - before == Counter({("scored", 0.25): 2})
        again = gym(*few)
        assert again.code == 2
        assert "--resume" in again.err
        rest = gym(*few, "--resume")
        assert "8 rollouts judged" in rest.out
        assert states(lake) - before == Counter({("scored", 0.25): 5, ("not_scored", None): 5})
        assert server.requests == sent, "no model was asked"


def test_p42_a_verifier_that_needs_the_session_is_refused_unless_forced_and_then_marked(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
    before = states(lake)
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", IN_SESSION]
    refused = gym(*words)
    assert refused.code == 2
    assert "live session" in refused.err
    assert states(lake) == before
    forced = gym(*words, "--force", "--verification-id", "forced")
    assert forced.code == 0, forced.err
    assert "Unsafe" in forced.out
    rows = lake.read(VERIFICATIONS, verification_id="forced").collect()
    assert [row["unsafe"] for row in rows] == [True] * 10
    assert [row["unsafe"] for row in lake.read(REVERIFICATIONS).collect()] == [True]
    assert "Unsafe" in gym("eval", "profile", "--run-id", "r1", "--verification-id", "forced").out
    assert "Unsafe" not in gym("eval", "profile", "--run-id", "r1").out


#: Flags, and what is told.
MISTAKES: Final = [
    (["--where", "latency > 3"], "--where 'latency > 3' cannot be used"),
    (["--where", "output_text LIKE ("], "--where 'output_text LIKE (' cannot be used"),
    (["--tasks", "nobody"], "no task 'nobody'"),
    (["--tasks", "@none.txt"], "--tasks cannot read 'none.txt'"),
    (["--set", "sampling.temperature=1"], "--set takes verifier.params.NAME=VALUE here, not 'sampling'"),
    (["--set", "verifier.params.nme=1"], "unknown key 'nme'"),
    (["--verification-id", "x", "--judge-failed-only"], "no verification 'x' to go on with"),
    (["--verifier", "code_tests"], "--sandbox auto"),
]


def test_a_mistake_is_one_sentence_and_judges_nothing(gym: Run, lake: Lake, tmp_path: Path) -> None:
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
    before = states(lake)
    for words, told in MISTAKES:
        verifier = [] if "--verifier" in words else ["--verifier", EVERYTHING]
        said = gym("eval", "reverify", "--run-id", "r1", *verifier, *words)
        assert (said.code, said.err.count("gym-spark:")) == (2, 1), said.err
        assert told in said.err
    unknown = gym("eval", "profile", "--run-id", "r1", "--verification-id", "x")
    assert (unknown.code, "no verification 'x'" in unknown.err) == (2, True)
    assert states(lake) == before


def test_a_condition_chooses_rollouts_and_shares_of_the_shards_add_up(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Only the completed ones by --where; then two jobs, half the shards each, judge the rest."""
    source = quiz(tmp_path / "quiz.jsonl", 10)
    gym(
        "eval",
        "prepare",
        "--benchmark",
        "quiz",
        "--search-dir",
        "tests/data/benchmarks",
        "--source",
        source,
        "--num-shards",
        2,
    )
    with FakeOpenAI(half_fails) as server:
        words = arguments(server, "r1", source, "--no-preflight")
        words.remove("--source")
        words.remove(source)
        gym(*words)
    verifier = ["eval", "reverify", "--run-id", "r1", "--verifier", EVERYTHING, "--verification-id", "v2"]
    some = gym(*verifier, "--where", "state = 'completed'", "--json")
    assert json.loads(some.out)["judged"] == 5
    judged = [
        json.loads(gym(*verifier, "--resume", "--shards", share, "--json").out)["judged"] for share in ("1/2", "2/2")
    ]
    assert sum(judged) == 5
    assert states(lake, "v2") == Counter({("scored", 1.0): 5, ("not_scored", None): 5})
