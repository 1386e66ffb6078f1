"""`eval reverify`: verdicts are versions beside the rollout, made without asking a model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from gym_spark.config import PartSpec
from gym_spark.errors import ConfigError
from gym_spark.reverify import reverify
from gym_spark.tables.lake import Lake
from gym_spark.tables.reverifications import noted_of
from gym_spark.tables.runs import get_run
from gym_spark.tables.schemas import REVERIFICATIONS, ROLLOUTS, VERIFICATIONS
from tests.e2e.conftest import Run, Told
from tests.e2e.test_flow import arguments, quiz
from tests.e2e.test_kills import kill, wait_until
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text
from tests.processes import start
from tests.reliability.process_tree import wait_for_end_of
from tests.reliability.stored import live_files

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
        answered = lake.read(ROLLOUTS).where("state = 'completed'").collect()
        example = [min(row["task_id"] for row in answered), 0]
        assert done["change"]["flips"]["fail_to_pass"] == {"rollouts": 5, "tasks": 5, "example": example}
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
        assert "on 10 of 10 planned rollouts: 5 not_scored, 5 scored" in rest.out
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
    gym("eval", "export", "--run-id", "r1", "--verification-id", "forced", "--output", tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["verification"]["unsafe"] for line in lines] == [True] * 10
    status = gym("eval", "status", "--run-id", "r1")
    assert f"Verified again: forced (by {IN_SESSION}() at " in status.out
    assert ", unsafe): 5 not_scored, 5 scored." in status.out
    (noted,) = json.loads(gym("eval", "status", "--run-id", "r1", "--json").out)["verifications"]
    assert (noted["verification_id"], noted["verifier"], noted["unsafe"]) == ("forced", IN_SESSION, True)
    assert "Unsafe" not in gym("eval", "profile", "--run-id", "r1").out


#: Flags, and what is told.
MISTAKES: Final = [
    (["--where", "latency > 3"], "--where 'latency > 3' cannot be used"),
    (["--where", "output_text LIKE ("], "--where 'output_text LIKE (' cannot be used"),
    (["--where", "attempt + 1"], "--where 'attempt + 1' cannot be used"),
    (["--where", "count(*) > 1"], "--where 'count(*) > 1' cannot be used"),
    (["--where", ""], "--where '' cannot be used"),
    # The columns are right, and a row is not.
    (["--where", "cast(output_text AS int) > 3"], "--where 'cast(output_text AS int) > 3' cannot be used"),
    (["--tasks", "nobody"], "no task 'nobody'"),
    (["--tasks", "@none.txt"], "--tasks cannot read 'none.txt'"),
    (["--set", "sampling.temperature=1"], "--set takes verifier.params.NAME=VALUE or judge.NAME=VALUE here, not 'samp"),
    (["--set", "tolerance=1"], "not 'tolerance' (is it verifier.params.tolerance?)"),
    (["--set", "verifier.params=3"], "not 'verifier.params'"),
    (["--set", "verifier=3"], "not 'verifier'"),
    (["--verification-id", "a/b"], "--verification-id takes up to 128 letters"),
    (["--verification-id", "x" * 300], "--verification-id takes up to 128 letters"),
    (["--verifier", "instruction_following"], "needs 'instruction_id_list', which no task of the run 'r1' has"),
    (["--judge-model", "big"], "asks no model; leave the judge's settings out"),
    (["--verifier", "llm_judge"], "take the small local model with --set judge={}"),
    (["--set", "verifier.params.nme=1"], "unknown key 'nme'"),
    (["--verification-id", "x", "--judge-failed-only"], "no verification 'x' to go on with"),
    (["--judge-failed-only", "--resume"], "--judge-failed-only judges nothing else"),
    (["--retry", "judge_faild"], "not 'judge_faild'; did you mean 'judge_failed'?"),
    (["--retry", ","], "--retry takes verdicts by commas, not ','"),
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


def test_a_condition_chooses_rollouts_and_shares_add_up(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Only the completed ones by --where; then three jobs, none of which needs to know whether it is the first."""
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
    words = ["eval", "reverify", "--run-id", "r1", "--verifier", EVERYTHING]
    some = gym(*words, "--verification-id", "v2", "--where", "state = 'completed'", "--json")
    assert json.loads(some.out)["judged"] == 5
    for name, flags, rest in (("v2", ["--resume"], 5), ("v3", [], 10), ("v4", ["--resume"], 10)):
        told = [
            gym(*words, "--verification-id", name, *flags, "--shards", share, "--json")
            for share in ("1/3", "2/3", "3/3")
        ]
        assert [one.code for one in told] == [0, 0, 0], told
        judged = [json.loads(one.out)["judged"] for one in told]
        assert (sum(judged), max(judged) < 10) == (rest, True)
        assert states(lake, name) == Counter({("scored", 1.0): 5, ("not_scored", None): 5})
    assert "no verification 'v4' yet: it begins now" in told[0].err


def test_what_a_judge_failed_on_is_judged_again_and_shown_beside_what_it_was(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """Of the run's own verification, which is then compared with itself as it was; the good verdicts stay."""
    judge = tmp_path / "judge"
    source = quiz(tmp_path / "quiz.jsonl", 4)
    with FakeOpenAI(lambda body, n: "1") as server:
        own = ["--verifier", "tests.spark.verifiers:Away", "--set", f"verifier.params.judge={judge}"]
        gym(*arguments(server, "r1", source, "--no-preflight", *own))
        sent = server.requests
        judge.touch()
        words = ["eval", "reverify", "--run-id", "r1", "--judge-failed-only"]
        one = [row["task_id"] for row in lake.read(ROLLOUTS).collect()][:1]
        first = json.loads(gym(*words, "--tasks", *one, "--json").out)
        assert (first["judged"], first["change"]["verdicts"]) == (1, {"judge_failed": 3, "scored": 1})
        rest = gym(*words)
        assert (
            "Beside what it was before: 3 rollouts of 3 tasks from not scored to scored (such as repeat 0 of task "
            in rest.out
        )
        assert "0 rollouts judged" in gym(*words).out
        # Whoever shows a rollout shows the verdict that stands, once.
        gym("eval", "export", "--run-id", "r1", "--output", tmp_path / "rows.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        assert [line["verification"]["state"] for line in lines] == ["scored"] * 4
        shown = json.loads(gym("eval", "profile", "--run-id", "r1", "--samples", 9, "--json").out)
        assert [sample["verdict"] for sample in shown["samples"]] == ["scored"] * 4
        assert server.requests == sent, "no model was asked"
    assert states(lake) == Counter({("judge_failed", None): 4, ("scored", 1.0): 4})
    assert json.loads(gym("eval", "profile", "--run-id", "r1", "--json").out)["coverage"]["scored"] == 4


def verdicts_stored(lake: Path, name: str) -> int:
    """Count the verdicts that are committed, whoever writes them."""
    return sum(
        pq.ParquetFile(file).metadata.num_rows for file in live_files(lake / "verifications") if name in str(file)
    )


def test_a_killed_reverification_keeps_its_finished_parts_and_is_completed(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """A slow verifier, the driver killed after the first commit: --resume judges what is left, each rollout once."""
    with FakeOpenAI(lambda body, n: "1") as server:
        gym(*arguments(server, "r1", quiz(tmp_path / "quiz.jsonl", 900), "--no-preflight", "--concurrency", 64))
        sent = server.requests
        words = ["eval", "reverify", "--run-id", "r1", "--verifier", "tests.spark.verifiers:Slow"]
        words += ["--verification-id", "slow"]
        command = [sys.executable, "-m", "gym_spark.cli", *words, "--lake", str(tmp_path / "lake")]
        process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: verdicts_stored(tmp_path / "lake", "slow") > 0, process)
        finally:
            kill(process.pid)
            process.communicate()
        wait_for_end_of(process.pid)
        stored = verdicts_stored(tmp_path / "lake", "slow")
        assert 0 < stored < 900
        done = gym(*words, "--resume", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["judged"] == 900 - stored
        assert server.requests == sent, "no model was asked"
    rows = lake.read(VERIFICATIONS, verification_id="slow").groupBy("task_id", "rollout_index").count().collect()
    assert Counter(row["count"] for row in rows) == Counter({1: 900})


def test_a_name_belongs_to_the_verifier_that_was_first(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Two jobs at once, one name, other parameters: one of them judges, and the other one is refused."""
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
    record = get_run(lake, "r1")

    def judge(case: bool) -> str:
        part = PartSpec(name="exact_match", params={"ignore_case": case})
        try:
            return reverify(lake, record, part, verification_id="race", say=lambda text: None).verification_id
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(judge, [True, False]))
    assert told[1] == "race"
    assert "was made by another verifier" in told[0]
    digests = {row["verifier_digest"] for row in lake.read(VERIFICATIONS, verification_id="race").collect()}
    assert len(digests) == 1
    (noted,) = (one for one in noted_of(lake, "r1").values() if one.verification_id == "race")
    assert [noted.params] == [
        json.loads(row["verifier"])["params"]
        for row in lake.read(REVERIFICATIONS, verification_id="race").collect()
        if row["verifier_digest"] in digests
    ]


def test_what_breaks_on_a_worker_is_one_sentence(gym: Run, lake: Lake, tmp_path: Path) -> None:
    with FakeOpenAI(half_fails) as server:
        stored_run(gym, tmp_path, server)
    told = gym("eval", "reverify", "--run-id", "r1", "--verifier", "tests.spark.verifiers:NeverStarts")
    assert (told.code, told.err.count("gym-spark:"), "Traceback" in told.err) == (1, 1, False), told.err
    assert "no licence" in told.err
    assert lake.read(VERIFICATIONS, verifier="tests.spark.verifiers:NeverStarts").count() == 0
