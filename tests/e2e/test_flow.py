"""The whole flow through the command line, real Spark, Delta and sockets; the model is a fake that counts."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest

from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, RUNS, TASKS, VERIFICATIONS
from tests.e2e.conftest import Run
from tests.fake_openai import FakeOpenAI, FakeReply, last_user_text

QUIZ = Path(__file__).parent.parent / "data" / "benchmarks"


def quiz(path: Path, rows: int) -> Path:
    """Write a source of the quiz benchmark: "n + 0" with its answer."""
    path.write_text("".join(json.dumps({"question": f"{n} + 0", "answer": str(n)}) + "\n" for n in range(rows)))
    return path


def right_now_and_then(body: dict[str, Any], n: int) -> str:
    """Answer every third request rightly."""
    digits = "".join(character for character in last_user_text(body).split("+")[0] if character.isdigit())
    return digits if n % 3 == 0 else "I do not know"


def arguments(server: FakeOpenAI, run_id: str, source: Path, *more: str | int) -> list[str | int | Path]:
    """Return the words of an `eval run` of the quiz against the fake server."""
    words: list[str | int | Path] = ["eval", "run", "--benchmark", "quiz", "--search-dir", QUIZ, "--source", source]
    return [*words, "--model", "fake", "--model-url", server.url, "--run-id", run_id, *more]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_run_sends_each_planned_request_once_and_its_numbers_match_a_hand_computation(
    gym: Run, lake: Lake, tmp_path: Path, api: str
) -> None:
    """Requests are tasks x repeats and one preflight; reading, resuming and profiling again add none."""
    source = quiz(tmp_path / "quiz.jsonl", 7)
    with FakeOpenAI(right_now_and_then) as server:
        told = gym(*arguments(server, "r1", source, "--num-repeats", 3, "--api", api, "--json"))
        assert told.code == 0, told.err
        assert server.requests == 7 * 3 + 1
        shown = json.loads(told.out)

        rollouts = lake.read(ROLLOUTS)
        assert rollouts.count() == 21
        rollouts.show(2)
        assert gym("eval", "profile", "--run-id", "r1").code == 0
        assert json.loads(gym("eval", "profile", "--run-id", "r1", "--json").out) == shown
        again = gym(*arguments(server, "r1", source, "--num-repeats", 3, "--api", api, "--json", "--resume"))
        twice = gym(*arguments(server, "r1", source, "--num-repeats", 3, "--api", api))
        assert (twice.code, twice.err.count("--resume")) == (2, 1)
        assert again.code == 0, again.err
        assert "no request was sent" in again.err
        assert json.loads(again.out) == shown
        assert server.requests == 7 * 3 + 2  # the refused run's preflight
    assert gym("eval", "export", "--run-id", "r1", "--output", tmp_path / "rows.jsonl").code == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    check_by_hand(shown, rows, repeats=3)
    assert {row["rollout_index"] for row in rows} == {0, 1, 2}
    assert all(json.loads(row["response"])["object"] == "response" for row in rows)
    assert {row["status"] for row in lake.read(RUNS).collect()} == {"running", "finished"}


def check_by_hand(shown: dict[str, Any], rows: list[dict[str, Any]], *, repeats: int) -> None:
    """Compute mean, standard error and pass@k from exported rows, by another way than the product."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["task_id"], []).append(row["verification"]["reward"])
    metrics = {(metric["name"], metric["denominator"]): metric for metric in shown["metrics"]}
    means = [fmean(task) for task in rewards.values()]
    for denominator in ("planned", "scored"):
        mean = metrics["mean_reward", denominator]
        assert mean["value"] == pytest.approx(fmean(means), rel=1e-12)
        assert mean["se"] == pytest.approx((variance(means) / len(means)) ** 0.5, rel=1e-9)
        for k in range(1, repeats + 1):
            chance = [
                sum(any(picked) for picked in combinations(task, k)) / comb(len(task), k) for task in rewards.values()
            ]
            assert metrics[f"pass@{k}", denominator]["value"] == pytest.approx(fmean(chance), rel=1e-12)
    assert shown["coverage"]["scored"] == len(rows)


def test_p28_repeats_are_different_samples(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """One task, four repeats that are answered 1, 2, 3, 4 with gold 3: four texts, one pass, pass@2 = 0.5."""
    (tmp_path / "q.jsonl").write_text('{"question": "q", "answer": "3"}\n')
    with FakeOpenAI(lambda body, n: str(n + 1)) as server:
        told = gym(*arguments(server, "r1", tmp_path / "q.jsonl", "--num-repeats", 4, "--no-preflight", "--json"))
        again = gym("eval", "profile", "--run-id", "r1", "--json")
    assert {row["output_text"] for row in lake.read(ROLLOUTS).collect()} == {"1", "2", "3", "4"}
    for text in (told.out, again.out):
        metrics = {(m["name"], m["denominator"]): m for m in json.loads(text)["metrics"]}
        assert metrics["pass@2", "planned"]["value"] == pytest.approx(0.5)
        assert metrics["pass@2", "planned"]["ci_low"] is None  # one task: no interval, and not a zero one
        assert "two tasks" in metrics["pass@2", "planned"]["reason"]


def test_p27_a_larger_run_pays_only_for_what_is_new(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Five tasks once, then eight tasks twice, on another port with another key and concurrency: eleven requests."""
    source = quiz(tmp_path / "quiz.jsonl", 8)
    with FakeOpenAI(right_now_and_then) as first:
        assert gym(*arguments(first, "r1", source, "--limit", 5, "--no-preflight")).code == 0
        assert first.requests == 5
    with FakeOpenAI(right_now_and_then) as second:
        grown = arguments(second, "r1", source, "--num-repeats", 2, "--concurrency", 3, "--resume", "--no-preflight")
        told = gym(*grown)
        assert told.code == 0, told.err
        assert second.requests == 11
        assert second.peak <= 3
        alone = gym("eval", "run", "--run-id", "r1", "--resume", "--search-dir", QUIZ)
        assert alone.code == 0, "the stored run tells the rest"
        assert "no request was sent" in alone.err
        shrunk = gym(*arguments(second, "r1", source, "--limit", 5, "--resume"))
        assert shrunk.code == 2
        assert "8 tasks" in shrunk.err
        assert second.requests == 11
    counts = Counter(row["task_id"] for row in lake.read(ROLLOUTS).collect())
    assert sorted(counts.values()) == [2] * 8


def test_p26_resume_with_other_settings_stops_and_names_them(gym: Run, tmp_path: Path) -> None:
    """A resumed run that would score otherwise sends nothing."""
    source = quiz(tmp_path / "quiz.jsonl", 2)
    changes = {
        "sampling.temperature: 0.0 -> 0.7": ["--temperature", "0.7"],
        'model: "fake" -> "other"': ["--model", "other"],
        'verifier.name: "exact_match" -> "numeric"': ["--verifier", "numeric"],
        'api: "chat" -> "responses"': ["--api", "responses"],
    }
    with FakeOpenAI(right_now_and_then) as server:
        assert gym(*arguments(server, "r1", source, "--no-preflight", "--temperature", "0")).code == 0
        sent = server.requests
        for named, change in changes.items():
            told = gym(*arguments(server, "r1", source, "--temperature", "0", "--resume", *change))
            assert told.code == 2
            assert named in told.err
            assert told.err.count("gym-spark: ") == 1
            assert "Traceback" not in told.err
        assert server.requests == sent


def test_p01_a_changed_gold_is_another_version_and_stops_a_resume(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Two fingerprints stand beside each other in the lake; the run that began on one does not go on with the other."""
    source = quiz(tmp_path / "quiz.jsonl", 5)
    with FakeOpenAI(right_now_and_then) as server:
        assert gym(*arguments(server, "r1", source, "--no-preflight")).code == 0
        source.write_text(source.read_text().replace('"answer": "3"', '"answer": "33"'))
        sent = server.requests
        told = gym(*arguments(server, "r1", source, "--resume"))
        assert told.code == 2
        assert "dataset_version" in told.err
        assert server.requests == sent
        assert lake.read(TASKS).count() == 5, "a refused run leaves the lake as it was"
        assert gym(*arguments(server, "r2", source, "--no-preflight")).code == 0
    versions = {row["version"] for row in lake.read(TASKS).collect()}
    assert len(versions) == 2
    used = {row["run_id"]: row["dataset_version"] for row in lake.read(RUNS).collect()}
    assert set(used.values()) == versions


def test_failed_rollouts_are_rows_that_lower_the_strict_mean_and_not_the_scored_one(
    gym: Run, lake: Lake, tmp_path: Path
) -> None:
    """A task whose every request is refused is in the plan's denominator; --strict says so by its exit code."""
    source = quiz(tmp_path / "quiz.jsonl", 4)

    def answer(body: dict[str, Any], n: int) -> FakeReply | str:
        number = last_user_text(body).removeprefix("Q: ").split(" ")[0]
        return FakeReply(status=400, error={"message": "no"}) if number == "2" else number

    with FakeOpenAI(answer) as server:
        told = gym(*arguments(server, "r1", source, "--num-repeats", 2, "--json", "--strict", "--samples", 2))
    assert told.code == 1
    shown = json.loads(told.out)
    assert len(shown["samples"]) == 2
    values = {(m["name"], m["denominator"]): m["value"] for m in shown["metrics"]}
    assert values["mean_reward", "planned"] == 0.75
    assert values["mean_reward", "scored"] == 1.0
    assert shown["coverage"]["failures"] == {"bad_request": 2}
    assert shown["coverage"]["tasks_without_score"] == 1
    assert shown["coverage"]["verdicts"] == {"scored": 6, "not_scored": 2}
    assert lake.read(VERIFICATIONS).where("reward is null").count() == 2


def test_p08_a_dead_endpoint_ends_soon_with_a_row_for_each_rollout(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """The preflight ends the run at once; without it, a warning, four unreachable rows, exit code 1."""
    words = ["eval", "run", "--benchmark", "quiz", "--search-dir", QUIZ, "--source", quiz(tmp_path / "q.jsonl", 4)]
    words += ["--model", "m", "--model-url", "http://127.0.0.1:9/v1", "--run-id", "r1"]
    checked = gym(*words)
    assert checked.code == 2
    assert "the endpoint is down or its address is wrong" in checked.err
    assert len(checked.err.strip().splitlines()) == 1
    assert not (tmp_path / "lake").exists()
    told = gym(*words, "--no-preflight", "--set", "endpoint.retries.unreachable.window_s=5")
    assert told.code == 1
    assert "Warning: a request failed, unreachable" in told.err
    rows = lake.read(ROLLOUTS).collect()
    assert [row["failure_kind"] for row in rows] == ["unreachable"] * 4
    assert all(row["requests"] <= 3 for row in rows)
    assert "n/a" in told.out


def test_p14_a_wrong_model_costs_one_request_and_writes_nothing(gym: Run, tmp_path: Path) -> None:
    """404 from the server: exit 2, one line, no lake. 503 says nothing about the set-up, so the run goes on."""
    source = quiz(tmp_path / "quiz.jsonl", 3)
    with FakeOpenAI(models={"other"}) as server:
        told = gym(*arguments(server, "r1", source))
        assert (told.code, server.requests) == (2, 1)
        assert "'fake'" in told.err
        assert len(told.err.strip().splitlines()) == 1
    assert not (tmp_path / "lake").exists()
    with FakeOpenAI(lambda body, n: FakeReply(status=503) if n == 0 else "1") as server:
        told = gym(*arguments(server, "r1", source))
        assert told.code == 0
        assert "Warning: the endpoint check was not conclusive" in told.err


def test_a_wrong_key_is_named_without_its_value(gym: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """401: exit 2, and the key itself appears nowhere; an unset variable is named before any request."""
    source = quiz(tmp_path / "quiz.jsonl", 3)
    with FakeOpenAI(api_key="right") as server:
        monkeypatch.setenv("QUIZ_KEY", "wrong-secret-value")
        told = gym(*arguments(server, "r1", source, "--model-api-key-env", "QUIZ_KEY"))
        assert (told.code, server.requests) == (2, 1)
        assert "wrong-secret-value" not in told.out + told.err
        told = gym(*arguments(server, "r1", source, "--model-api-key-env", "NO_SUCH_KEY"))
        assert (told.code, server.requests) == (2, 1)
        assert "NO_SUCH_KEY" in told.err
    assert not (tmp_path / "lake").exists()


def test_p07_unset_fields_stay_out_of_the_body_after_a_round_trip_through_delta(gym: Run, tmp_path: Path) -> None:
    """Nulls and empty tools in a stored request reach the server as absent fields."""
    request = {"input": "1 + 0", "top_logprobs": None, "tools": [], "max_output_tokens": None}
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "1 + 0", "answer": "1", "request": request}) + "\n")
    with FakeOpenAI(lambda body, n: "1") as server:
        told = gym(*arguments(server, "r1", tmp_path / "q.jsonl", "--no-preflight"))
        assert told.code == 0, told.err
        assert set(server.bodies[0]) == {"model", "messages"}


def test_p46_concurrency_is_run_wide(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Four task slots, eight shards of about 20 rows: eight in flight over all Spark tasks, and not eight in each."""
    source = quiz(tmp_path / "quiz.jsonl", 160)
    prepare = ("eval", "prepare", "--benchmark", "quiz", "--search-dir", QUIZ, "--source", source, "--num-shards", 8)
    assert gym(*prepare).code == 0
    with FakeOpenAI(lambda body, n: FakeReply("1", delay_s=0.1)) as server:
        words = arguments(server, "r1", source, "--concurrency", 8, "--no-preflight")
        words = [word for word in words if word not in ("--source", source)]
        assert gym(*words).code == 0
        assert 6 <= server.peak <= 8
        assert server.requests == 160
    assert lake.read(ROLLOUTS, run_id="r1").select("shard").distinct().count() == 8


def test_a_key_that_expires_stops_the_run_and_a_resume_makes_up_for_it(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """401 after ten answers: dispatch stops, exit 1; with the key renewed --resume completes every rollout."""
    source = quiz(tmp_path / "quiz.jsonl", 60)
    with FakeOpenAI(lambda body, n: "1" if n < 10 else FakeReply(status=401)) as server:
        told = gym(*arguments(server, "r1", source, "--concurrency", 4, "--no-preflight"))
        assert told.code == 1
        assert "Stopped early: unauthorized" in told.out
        assert server.requests <= 10 + 2 * 4
    with FakeOpenAI(lambda body, n: "1") as server:
        told = gym(*arguments(server, "r1", source, "--resume"))
        assert told.code == 0, told.err
    assert lake.read(ROLLOUTS).where("state = 'completed'").count() == 60


def test_p52_a_hopeless_run_stops_early_and_one_bad_row_does_not(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """All rows failing: stopped long before the end. One row over the context window: a failed row among good ones."""
    too_long = FakeReply(status=400, error={"message": "too long", "code": "context_length_exceeded"})
    source = quiz(tmp_path / "quiz.jsonl", 400)
    with FakeOpenAI(lambda body, n: FakeReply(status=400, error={"message": "no"}, delay_s=0.05)) as server:
        told = gym(*arguments(server, "bad", source, "--concurrency", 4, "--no-preflight"))
        assert told.code == 1
        assert "rollouts failed (" in told.out
        assert server.requests < 300
    with FakeOpenAI(lambda body, n: too_long if last_user_text(body) == "Q: 13 + 0" else "1") as server:
        assert gym(*arguments(server, "one", quiz(tmp_path / "small.jsonl", 20), "--no-preflight")).code == 0
        assert server.requests == 20
    kinds = Counter(row["failure_kind"] for row in lake.read(ROLLOUTS, run_id="one").collect())
    assert kinds == {None: 19, "context_length_exceeded": 1}


def test_p58_a_budget_stops_dispatch_and_keeps_what_is_done(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Prices 1 and 4 per million, 1,000 tokens in and 500 out a row, budget 0.010, one in flight: three rows, 0.009."""
    source = quiz(tmp_path / "quiz.jsonl", 6)
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    priced = ["--set", "endpoint.prices={input: 1, output: 4}", "--concurrency", 1, "--no-preflight"]
    with FakeOpenAI(lambda body, n: FakeReply("1", usage=usage)) as server:
        told = gym(*arguments(server, "r1", source, *priced, "--set", "endpoint.budget.money=0.010"))
        assert told.code == 1
        assert server.requests == 3
        assert "Estimate:" in told.err
        assert {row["status"] for row in lake.read(RUNS).collect()} == {"running", "budget_exhausted"}
        more = gym(*arguments(server, "r1", source, *priced, "--set", "endpoint.budget.money=0.1", "--resume"))
        assert more.code == 0
        assert server.requests == 6
        unpriced = gym(*arguments(server, "r2", source, "--set", "endpoint.budget.money=0.010"))
        assert unpriced.code == 2
        assert "unenforceable" in unpriced.err


def test_parallel_jobs_share_a_run_out_and_a_forgotten_share_is_named(gym: Run, lake: Lake, tmp_path: Path) -> None:
    """Three shards, two of three jobs: the coverage line names the shard that misses; the third job completes it."""
    source = quiz(tmp_path / "quiz.jsonl", 30)
    assert gym("eval", "prepare", "--benchmark", "quiz", "--search-dir", QUIZ, "--source", source, "--num-shards", 3)
    with FakeOpenAI(lambda body, n: "1") as server:
        words = ["eval", "run", "--benchmark", "quiz", "--search-dir", QUIZ, "--model", "fake", "--run-id", "r1"]
        words += ["--model-url", server.url, "--no-preflight"]
        too_many = gym(*words, "--shards", "1/4")
        assert too_many.code == 2
        assert "--num-shards 4" in too_many.err
        assert gym(*words, "--shards", "1/3").code == 0
        second = gym(*words, "--shards", "3/3")
        missing = 30 - server.requests
        assert missing > 0
        assert f"shard 2 misses {missing}" in second.out
        third = gym(*words, "--shards", "2/3")
        assert "misses" not in third.out
        assert server.requests == 30
    assert lake.read(ROLLOUTS).select("task_id").distinct().count() == 30
