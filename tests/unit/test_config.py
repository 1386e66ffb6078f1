"""Layers of configuration become one checked specification, and every mistake is one sentence that names its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from gym_spark.config import EndpointSpec, RunSpec, canonical_json, differences
from gym_spark.errors import ConfigError
from gym_spark.layers import parse_overrides, read_yaml
from gym_spark.resolve import resolve_run
from gym_spark.verify.base import load_verifier


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
    spent = refusal(flags={"benchmark": "arithmetic"}, overrides=["budget=5"])
    assert spent == "--set: unknown key 'budget'; did you mean 'endpoint.budget'?"
    flat = refusal(flags={"benchmark": "arithmetic"}, overrides=["endpoint.budget=5"])
    assert flat == "--set: 'endpoint.budget' is 5: must have keys of its own: budget.money, budget.tokens"
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
    said = "a count of tasks from 1, or a share above 0 and up to 1.0 (100%)"
    assert said in refusal(flags={"benchmark": "arithmetic", "limit": limit})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "line 2 is not valid YAML"),
        ("- a\n", "must hold a mapping"),
        ("a: \x00\n", "is not valid YAML"),
        ("a: x\n1: y\n", "line 2 is not valid YAML: the key '1' is not read as text"),
        ("a: {b: [{on: y}]}\n", "line 1 .* the key 'on'"),
        ("a: 2024-13-45\n", "month"),
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


def test_an_override_takes_a_files_text_as_it_is(tmp_path: Path) -> None:
    """A prompt has colons and braces; a file that is not there is named."""
    file = tmp_path / "judge.txt"
    file.write_text("Right: {generated_answer}?\n", encoding="utf-8")
    assert parse_overrides([f"a.b=@{file}"]) == {"a": {"b": "Right: {generated_answer}?\n"}}
    assert "nowhere.txt" in refusal(overrides=["a.b=@nowhere.txt"])


def test_text_with_colons_names_the_remedy() -> None:
    """A template given inline is read as YAML, which may refuse it or see keys in it."""
    said = refusal(overrides=["verifier.params.template={question} is: b"])
    assert "--set verifier.params.template line 1 is not valid YAML" in said
    assert """(--set 'verifier.params.template="..."')""" in said
    assert "(--set verifier.params.template=@FILE)" in said
    assert parse_overrides(['a="{question} is: b"']) == {"a": "{question} is: b"}
    with pytest.raises(ConfigError, match=r"'template' is .*; text that YAML would read as keys .* goes in quotes"):
        load_verifier("llm_judge", parse_overrides(["template=Q: {generated_answer}"]))


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
        {"sandbox": "auto"},
        {"spark": {"spark.master": "local[1]"}},
        {"run_id": "another"},
    ],
)
def test_p27_what_cannot_is_outside_it(change: dict[str, object]) -> None:
    """Address, key, concurrency, time limits, size of the run, cluster, name."""
    assert spec_with(**change).identity() == spec_with().identity()


@pytest.mark.parametrize(
    ("written", "read"),
    [("off", "off"), ("'off'", "off"), ("auto", "auto"), ("bubblewrap", "bubblewrap"), ("my.part:Box", "my.part:Box")],
)
def test_the_sandbox_is_off_unless_it_is_named(written: str, read: str) -> None:
    """A bare `off` is False to YAML."""
    assert spec_with().sandbox == "off"
    assert resolve_run({"benchmark": "gsm8k"}, overrides=[f"sandbox={written}"]).spec.sandbox == read
    for wrong in ("on", "yes", "none", "'a b'", "1", "''"):
        assert "'sandbox' is" in refusal(flags={"benchmark": "gsm8k"}, overrides=[f"sandbox={wrong}"])


def test_a_spec_survives_its_own_json() -> None:
    """As the `runs` table stores it: a share stays a share, a count a count."""
    for limit in (0.5, 1.0, 7, 1, None):
        spec = spec_with(limit=limit, sampling={"extra": {"top_k": 5}})
        again = RunSpec.model_validate(json.loads(spec.model_dump_json()))
        assert again == spec
        assert type(again.limit) is type(limit)


def test_canonical_json_has_one_spelling() -> None:
    """Key order does not matter; NaN has no spelling."""
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://user:hunter2@host:8000/v1", "http://host:8000 holds a user"),
        ("https://hunter2@host/v1", "https://host holds a user"),
        ("http://host/v1?api_key=hunter2", "http://host holds"),
        ("http://host/v1#hunter2", "http://host holds"),
        ("http://host/v1?api_key=a@hunter2", "an address (it is not shown)"),
        ("http://user:a/hunter2@host/v1", "an address (it is not shown)"),
        ("http://user:12?hunter2@host/v1", "an address (it is not shown)"),
        ("user:hunter2@host:8000", "an address (it is not shown)"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_never_shown(address: str, told: str, tmp_path: Path) -> None:
    """As a flag, in an override, in a file, and by pydantic itself."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"benchmark": "arithmetic", "endpoint": {"urls": [address]}}))
    urls = json.dumps([address])
    for message in (
        refusal(flags={"benchmark": "arithmetic", "endpoint": {"urls": (address,)}}),
        refusal(flags={"benchmark": "arithmetic"}, overrides=[f"endpoint.urls={urls}"]),
        refusal(config=[file]),
    ):
        assert told in message
        assert "hunter2" not in message
    with pytest.raises(ValidationError) as caught:
        EndpointSpec(urls=(address,))
    assert "hunter2" not in str(caught.value)
    for wrong in ({"endpoint": address}, {"endpoint": {"urls": address}}):
        assert "hunter2" not in refusal(flags={"benchmark": "arithmetic", **wrong})


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "http://a:port/v1", "http://a:999999/v1", "http:///v1", "http://a b"]
)
def test_an_address_that_is_none_is_named(address: str) -> None:
    """It holds nothing that could be secret."""
    assert f"'{address}' is not a" in refusal(flags={"benchmark": "arithmetic", "endpoint": {"urls": (address,)}})


def test_usual_addresses_are_taken() -> None:
    """With and without port and path; a slash at the end goes."""
    urls = ("http://localhost:8000/v1/", "https://api.example.com/v1", "http://[::1]:80/v1", "http://a")
    assert EndpointSpec(urls=urls).urls == ("http://localhost:8000/v1", *urls[1:])


@pytest.mark.parametrize("key", ["sk-hunter2", "hf_hunter2ABCDEFGHIJKLM", "3hunter2", "a hunter2"])
def test_a_key_in_place_of_its_variable_is_refused_and_never_shown(key: str) -> None:
    """Nor is a broken YAML value, which may be one."""
    message = refusal(flags={"benchmark": "arithmetic", "endpoint": {"api_key_env": key}})
    assert "must be the name of the environment variable" in message
    assert "hunter2" not in message
    assert "hunter2" not in refusal(flags={"benchmark": "arithmetic"}, overrides=[f"endpoint.api_key_env=%{key}"])
    assert EndpointSpec(api_key_env="OPENAI_API_KEY_2").api_key_env == "OPENAI_API_KEY_2"


@pytest.mark.parametrize(
    "override",
    [
        "endpoint.timeout_s=.inf",
        "sampling.temperature=.inf",
        "sampling.top_p=.nan",
        "limit=.inf",
        "endpoint.retries={timeout: {window_s: .inf}}",
        "sampling.extra={min_p: .nan}",
        "verifier.params={tolerance: [.inf]}",
        "sampling.extra={when: 2026-01-01}",
    ],
)
def test_what_json_cannot_hold_is_refused(override: str) -> None:
    """The stored run could not be read back."""
    message = refusal(flags={"benchmark": "arithmetic"}, overrides=[override])
    assert "finite number" in message or "no JSON form" in message


@pytest.mark.parametrize("key", ["limit", "num_repeats", "limit_seed", "sampling.temperature", "endpoint.timeout_s"])
def test_on_and_yes_are_no_numbers(key: str) -> None:
    """YAML reads them as booleans, which Python takes for 1."""
    assert f"'{key}' is true: must be a number" in refusal(flags={"benchmark": "arithmetic"}, overrides=[f"{key}=on"])


def test_other_spellings_of_numbers_are() -> None:
    """YAML 1.1 reads 1e-3 as a word."""
    spec = resolve_run(
        {"benchmark": "arithmetic"}, overrides=["sampling.temperature=1e-3", "endpoint.timeout_s=5"]
    ).spec
    assert (spec.sampling.temperature, spec.endpoint.timeout_s) == (0.001, 5.0)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_numbers_that_spark_cannot_hold_are_refused(value: int) -> None:
    """A seed is hashed as an int64, a repeat counted as an int32."""
    assert "'limit_seed' is" in refusal(flags={"benchmark": "arithmetic", "limit_seed": value})
    assert "'num_repeats' is" in refusal(flags={"benchmark": "arithmetic", "num_repeats": 2**31})


def test_spark_settings_may_be_nested_and_are_stored_with_dots(tmp_path: Path) -> None:
    """Their names have dots, which --set would split on; later layers win in either spelling."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "spark: {spark: {speculation: false, sql: {shuffle: {partitions: 4}}}, spark.task.maxFailures: '8'}\n"
    )
    overrides = ["spark.spark.sql.shuffle.partitions=2", "spark.spark.ui.enabled=true"]
    spec = resolve_run({"benchmark": "arithmetic"}, config=[file], overrides=overrides).spec
    assert spec.spark == {
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "true",
    }
    assert "'spark.jars' must be" in refusal(flags={"benchmark": "arithmetic"}, overrides=["spark.spark.jars=[a]"])
