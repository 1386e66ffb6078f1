"""Layers of configuration become one checked specification, and every mistake is one sentence that names its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_spark.config import RunSpec, canonical_json, differences, parse_overrides, read_yaml
from gym_spark.errors import ConfigError
from gym_spark.resolve import resolve_run


def refusal(**given: object) -> str:
    """Return what resolving says."""
    with pytest.raises(ConfigError) as caught:
        resolve_run(**given)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_later_layers_win_and_the_rest_stays(tmp_path: Path) -> None:
    """Benchmark defaults < config file < flags < --set; parts that nobody names keep the benchmark's values."""
    file = tmp_path / "run.yaml"
    file.write_text("benchmark: arithmetic\nnum_repeats: 2\nsampling: {temperature: 0.1, top_p: 0.9}\n")
    spec = resolve_run(
        {"sampling": {"temperature": 0.2}, "run_id": "r", "limit": None},
        config=[file],
        overrides=["sampling.top_p=0.8", "endpoint.concurrency=7"],
    ).spec
    assert spec.num_repeats == 2
    assert (spec.sampling.temperature, spec.sampling.top_p, spec.sampling.max_output_tokens) == (0.2, 0.8, 32)
    assert (spec.endpoint.concurrency, spec.verifier.name, spec.limit) == (7, "numeric", None)


def test_choosing_another_verifier_drops_the_parameters_of_the_benchmark_s_own() -> None:
    """Parameters belong to the part they were written for."""
    spec = resolve_run({"benchmark": "gsm8k", "verifier": {"name": "exact_match"}}).spec
    assert spec.verifier.params == {}


def test_p55_an_unknown_key_is_refused_at_its_place_with_the_nearest_name(tmp_path: Path) -> None:
    """In a file, nested, and in an override."""
    file = tmp_path / "run.yaml"
    file.write_text("benchmark: arithmetic\nverifer: {name: numeric}\n")
    assert refusal(config=[file]) == f"{file}: unknown key 'verifer'; did you mean 'verifier'?"
    nested = refusal(flags={"benchmark": "arithmetic"}, overrides=["sampling.temprature=1"])
    assert nested == "--set: unknown key 'sampling.temprature'; did you mean 'temperature'?"


def test_p55_wrong_types_and_missing_keys_are_all_named_at_once(tmp_path: Path) -> None:
    """A list given as a word, a number out of range, a required key left out: one sentence, three places."""
    file = tmp_path / "run.yaml"
    file.write_text("benchmark: arithmetic\nsampling: {stop: foo}\nharness: {params: {}}\n")
    message = refusal(config=[file], flags={"num_repeats": 0})
    assert f"{file}: 'sampling.stop' is \"foo\": input should be a list" in message
    assert "the command line: 'num_repeats' is 0: input should be greater than or equal to 1" in message
    file.write_text("benchmark: arithmetic\nverifier: {nme: numeric}\n")
    assert "required key 'verifier.name' is missing" not in refusal(config=[file])  # the benchmark gives it
    assert "unknown key 'verifier.nme'; did you mean 'name'?" in refusal(config=[file])


@pytest.mark.parametrize("limit", [0, -1, 1.5, 0.0])
def test_a_limit_is_a_count_or_a_share(limit: float) -> None:
    """Anything else says what it may be."""
    assert "a count of tasks from 1, or a share between 0 and 1" in refusal(
        flags={"benchmark": "arithmetic", "limit": limit}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "line 2 is not valid YAML"),
        ("- a\n", "must hold a mapping"),
        ("a: \x00\n", "is not valid YAML"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """With the line, where there is one."""
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_yaml(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_or_odd_override_is_named(tmp_path: Path) -> None:
    """And a run without benchmark says where to look."""
    assert "nope.yaml" in refusal(config=[tmp_path / "nope.yaml"])
    assert "--set takes KEY=VALUE, not 'temperature'" in refusal(overrides=["temperature"])
    assert "--benchmark" in refusal(flags={})
    assert "did you mean 'gsm8k'?" in refusal(flags={"benchmark": "gsm8"})


def test_overrides_are_yaml_values() -> None:
    """Numbers, booleans, lists and words."""
    assert parse_overrides(["a.b=1", "a.c=[x, y]", "d=true", "e=word"]) == {
        "a": {"b": 1, "c": ["x", "y"]},
        "d": True,
        "e": "word",
    }


def spec_with(**changes: object) -> RunSpec:
    """Return a run that differs from the plain one."""
    plain: dict[str, object] = {"benchmark": "b", "run_id": "r", "verifier": {"name": "numeric"}}
    return RunSpec.model_validate(plain | changes)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": {"temperature": 0.7}},
        {"endpoint": {"model": "other"}},
        {"endpoint": {"api": "responses"}},
        {"verifier": {"name": "numeric", "params": {"tolerance": 0.1}}},
        {"harness": {"name": "tool_loop"}},
        {"dataset_version": "abc"},
    ],
)
def test_p26_what_can_change_a_score_is_in_the_identity(change: dict[str, object]) -> None:
    """And the differing key can be named."""
    assert spec_with(**change).identity() != spec_with().identity()
    assert len(differences(spec_with().identity_parts(), spec_with(**change).identity_parts())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": {"urls": ["http://elsewhere/v1"], "api_key_env": "KEY", "concurrency": 3, "timeout_s": 1}},
        {"num_repeats": 9},
        {"limit": 3},
        {"spark": {"spark.master": "local[1]"}},
        {"run_id": "another"},
    ],
)
def test_p27_what_cannot_is_outside_it(change: dict[str, object]) -> None:
    """Address, key, concurrency, time limits, size of the run, cluster, name."""
    assert spec_with(**change).identity() == spec_with().identity()


def test_a_spec_survives_its_own_json() -> None:
    """As the `runs` table stores it: a share stays a share, a count a count."""
    for limit in (0.5, 7, None):
        spec = spec_with(limit=limit, sampling={"extra": {"top_k": 5}})
        assert RunSpec.model_validate(json.loads(spec.model_dump_json())) == spec


def test_canonical_json_has_one_spelling() -> None:
    """Key order does not matter; NaN has no spelling."""
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))
