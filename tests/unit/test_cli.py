"""Mistakes on the command line: one plain line, exit code 2, nothing written, no traceback, no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_spark import cli
from gym_spark.verify.base import told_verifier, verifier_descriptions

PREPARE = ["eval", "prepare", "--benchmark", "gsm8k"]
RUN = ["eval", "run", "--benchmark", "arithmetic"]
REMOTE = ["--model", "m", "--model-url", "http://127.0.0.1:9/v1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evl"], "did you mean 'eval'?"),
        (["eval", "profil"], "'profile'"),
        (["eval", "profile"], "--run-id"),
        (["eval", "prepare"], "--benchmark"),
        (["eval", "prepare", "--benchmark", "gsm8"], "did you mean 'gsm8k'?"),
        ([*PREPARE, "--source", "nope.jsonl"], "'nope.jsonl'"),
        ([*PREPARE, "--source", "bad.jsonl"], "bad.jsonl:2"),
        ([*PREPARE, "--source", "good.jsonl", "--num-shards", "0"], "--num-shards"),
        ([*PREPARE, "--source", "good.jsonl", "--prompt-config", "prompt.yaml"], "'sytem'"),
        ([*RUN, "--num-repeats", "0"], "'num_repeats' is 0"),
        ([*RUN, "--limit", "many"], "'many' is neither a count"),
        ([*RUN, "--run-id", "a b"], "'run_id'"),
        ([*RUN, "--config", "run.yaml"], "did you mean 'verifier'?"),
        ([*RUN, "--set", "samplng.temperature=1"], "did you mean 'sampling'?"),
        ([*RUN, "--nm-repeats", "3"], "--num-repeats"),
        ([*RUN, *REMOTE, "--verifier", "numric"], "did you mean 'numeric'?"),
        ([*RUN, *REMOTE, "--harness", "single_trun"], "did you mean 'single_turn'?"),
        ([*RUN, *REMOTE, "--set", "verifier.params.tolrance=1"], "did you mean 'tolerance'?"),
        ([*RUN, *REMOTE, "--model-api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        ([*RUN, "--model-url", "http://127.0.0.1:9/v1"], "--model"),
        ([*RUN, "--model-url", "127.0.0.1:9"], "is not an http"),
        (["list", "benchmarks", "gsm8"], "did you mean 'gsm8k'?"),
        ([*RUN, *REMOTE, "--verifier", "code_tests"], "add --sandbox auto"),
        ([*RUN, *REMOTE, "--verifier", "code_tests", "--sandbox", "off"], "add --sandbox auto"),
        ([*RUN, *REMOTE, "--verifier", "code_tests", "--sandbox", "no.such:Box"], "'no.such:Box' cannot be imported"),
        ([*RUN, "--sandbox", "bwrap"], "'sandbox' is \"bwrap\""),
        (["list", "verifiers", "nmeric"], "did you mean 'numeric'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the thing and the remedy; the folder is as it was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n{bad\n')
    (tmp_path / "good.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n')
    (tmp_path / "run.yaml").write_text("verifer: {name: numeric}\n")
    (tmp_path / "prompt.yaml").write_text("sytem: hello\n")
    before = sorted(tmp_path.iterdir())
    assert cli.run(words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.strip().splitlines()) == 1
    assert told.err.startswith("gym-spark: ")
    assert said in told.err
    assert sorted(tmp_path.iterdir()) == before


def test_dry_run_prints_the_resolved_configuration_and_does_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be stored with the run, and no lake."""
    monkeypatch.chdir(tmp_path)
    assert cli.run([*RUN, "--run-id", "r", "--temperature", "0.3", "--dry-run"]) == 0
    assert "temperature: 0.3" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--verifier", "llm_judge"], "The verifier 'llm_judge' asks a model; name its endpoint with --judge-url"),
        (["--verifier", "code_tests"], "add --sandbox auto"),
        (["--verifier", "llm_judge", "--judge-url", "http://127.0.0.1:9/v1"], "--judge-model"),
        (["--model-url", "http://127.0.0.1:9/v1"], "--model"),
        (["--set", "verifier.params.tolerance=-1"], "'tolerance' is -1"),
    ],
)
def test_dry_run_refuses_what_the_run_would(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same sentence; the run itself starts no Spark for it either."""
    monkeypatch.chdir(tmp_path)
    refusals = []
    for more in (["--dry-run"], []):
        assert cli.run([*RUN, "--run-id", "r", *words, *more]) == 2
        refusals.append(capfd.readouterr())
    assert refusals[0] == refusals[1]
    assert said in refusals[0].err
    assert refusals[0].out == ""
    assert list(tmp_path.iterdir()) == []


def test_dry_run_takes_a_judge_and_fetches_no_model(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GYM_SPARK_MODEL_FILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.run([*RUN, "--run-id", "r", "--verifier", "llm_judge", "--set", "judge={}", "--dry-run", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["judge"]["model"] is None
    assert list(tmp_path.iterdir()) == []


def test_list_shows_what_there_is(capfd: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON, all or one."""
    assert cli.run(["list", "benchmarks"]) == 0
    assert {"arithmetic", "gsm8k"} <= {line.split()[0] for line in capfd.readouterr().out.splitlines()}
    assert cli.run(["list", "benchmarks", "gsm8k", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verifier"]["name"] == "numeric"
    assert cli.run(["list", "verifiers", "--json"]) == 0
    assert {"exact_match", "math", "numeric"} <= set(json.loads(capfd.readouterr().out))
    assert cli.run(["list", "agents"]) == 0
    assert "single_turn" in capfd.readouterr().out


def test_list_tells_what_one_verifier_or_harness_does_and_takes(capfd: pytest.CaptureFixture[str]) -> None:
    """Its docstring, and its parameters with type and default."""
    assert cli.run(["list", "verifiers", "llm_judge"]) == 0
    told = capfd.readouterr().out
    assert "    swap: Ask once more with the two answers changed about" in told
    assert "    task: Literal['equivalence', 'rubric', 'pairwise'] = \"equivalence\"\n" in told
    assert '    sampling: gym_spark.config.SamplingSpec = {"temperature": 0.0}\n' in told
    assert cli.run(["list", "verifiers", "remote", "--json"]) == 0
    remote = json.loads(capfd.readouterr().out)
    assert remote["name"] == "remote"
    assert remote["documentation"].startswith("POST each rollout")
    assert remote["parameters"]["url"] == {"type": "str"}
    assert remote["parameters"]["timeout_s"] == {"type": "float", "default": 600.0}
    assert cli.run(["list", "agents", "single_turn"]) == 0
    assert capfd.readouterr().out.endswith("It takes no parameters.\n")
    assert cli.run(["list", "verifiers", "gym_spark.verify.numeric:Numeric"]) == 0
    assert "tolerance: float = 0.0" in capfd.readouterr().out


@pytest.mark.parametrize("name", sorted(verifier_descriptions()))
def test_every_verifier_tells_each_of_its_parameters(name: str) -> None:
    told = told_verifier(name)
    assert told["documentation"]
    assert [key for key in told["parameters"] if f"    {key}:" not in told["documentation"]] == []
