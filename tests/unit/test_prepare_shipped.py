"""The shipped benchmarks yield the tasks that their READMEs promise."""

import json
from pathlib import Path

import pytest

from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import build_tasks

SAMPLE = Path(__file__).parents[1] / "data" / "gsm8k_sample.jsonl"


def golds(table):
    return [json.loads(text)["expected_answer"] for text in table.column("verifier_inputs").to_pylist()]


def arithmetic(**params):
    benchmark = find_benchmark("arithmetic", search_path())
    spec = benchmark.spec.source
    return build_tasks(benchmark, resolve_source(spec.model_copy(update={"params": {**spec.params, **params}})))


def test_arithmetic_has_distinct_questions_with_right_answers():
    table = arithmetic(sums=200, products=100).table
    extra = [json.loads(text) for text in table.column("metadata").to_pylist()]
    requests = table.column("responses_create_params").to_pylist()
    assert len(set(requests)) == len(requests) == 300
    for gold, meta, request in zip(golds(table), extra, requests, strict=True):
        assert int(gold) == eval(meta["expression"])  # our own expression of two digits
        assert f" {meta['expression']}" in request


def test_arithmetic_is_the_same_every_time_and_follows_its_seed():
    first = arithmetic()
    assert first.table.equals(arithmetic().table)
    assert arithmetic(seed=43).version != first.version
    kinds = [json.loads(text)["kind"] for text in first.table.column("metadata").to_pylist()]
    assert kinds == ["sums"] * 12 + ["products"] * 12


def test_arithmetic_refuses_more_problems_than_there_are():
    with pytest.raises(ConfigError, match="products is 101; there are 0 to 100"):
        arithmetic(products=101)


def test_arithmetic_has_the_defaults_of_the_demo():
    spec = find_benchmark("arithmetic", search_path()).spec
    assert (spec.num_repeats, spec.sampling.temperature, spec.sampling.max_output_tokens) == (4, 0.8, 32)
    assert spec.verifier.name == "numeric"


def test_gsm8k_golds_lose_commas_and_keep_sign_and_the_worked_solution():
    benchmark = find_benchmark("gsm8k", search_path())
    prepared = build_tasks(benchmark, resolve_source(benchmark.spec.source, [SAMPLE]))
    assert golds(prepared.table) == ["32", "2125", "-7", "1430000", "1.5"]
    raw = [json.loads(line)["answer"] for line in SAMPLE.read_text().splitlines()]
    assert [json.loads(text)["answer"] for text in prepared.table.column("metadata").to_pylist()] == raw
    # The sample is not the upstream file, so the manifest must not claim its revision.
    assert prepared.manifest["source"]["revision"] is None
    assert prepared.manifest["fields"]["dropped"] == []


def test_gsm8k_does_not_show_the_gold_to_the_model():
    benchmark = find_benchmark("gsm8k", search_path())
    table = build_tasks(benchmark, resolve_source(benchmark.spec.source, [SAMPLE])).table
    (first, *_) = [json.loads(text)["input"] for text in table.column("responses_create_params").to_pylist()]
    assert [turn["role"] for turn in first] == ["user"]
    assert "32" not in first[0]["content"]


def test_gsm8k_names_the_line_without_a_final_answer(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(SAMPLE.read_text() + '{"question": "?", "answer": "about 3"}\n')
    benchmark = find_benchmark("gsm8k", search_path())
    with pytest.raises(ConfigError, match=r"answer at test\.jsonl:6 does not end in '#### N'"):
        build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]))


def test_ifeval_has_one_task_for_each_prompt_with_its_instructions(tmp_path):
    line = {
        "key": 1000,
        "prompt": "Write {a} poem, without commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    path = tmp_path / "input_data.jsonl"
    path.write_text(json.dumps(line) + "\n")
    benchmark = find_benchmark("ifeval", search_path())
    table = build_tasks(benchmark, resolve_source(benchmark.spec.source, [path])).table
    assert table.column("task_id").to_pylist() == ["1000"]
    assert json.loads(table.column("verifier_inputs")[0].as_py()) == {
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    asked = json.loads(table.column("responses_create_params")[0].as_py())["input"]
    assert "Write {a} poem, without commas." in json.dumps(asked)
