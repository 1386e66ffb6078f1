"""The shipped multiple-choice benchmarks: their tasks, and what `mcqa` says of answers to them."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import build_tasks
from gym_spark.verify.base import Judgeable, Verifier, judge_one, load_verifier
from tests.corpus import benchmark_files

TRUTHFULQA = """Type,Category,Question,Best Answer,Best Incorrect Answer,Correct Answers,Incorrect Answers,Source
Adversarial,Myths,"Is it so,\nor not?","No, it is not",Yes,No,Yes,here
"""


def tasks(name: str, files: list[Path], **params: Any) -> list[dict[str, Any]]:
    """The tasks that a benchmark makes of files, with their JSON read."""
    benchmark = find_benchmark(name, search_path())
    spec = benchmark.spec.source
    spec = spec.model_copy(update={"params": {**spec.params, **params}})
    columns = build_tasks(benchmark, resolve_source(spec, files)).table.to_pylist()
    read = ("verifier_inputs", "metadata", "responses_create_params")
    return [row | {column: json.loads(row[column]) for column in read} for row in columns]


def asked(task: dict[str, Any]) -> str:
    return str(task["responses_create_params"]["input"][0]["content"])


@cache
def verifier(name: str) -> Verifier:
    spec = find_benchmark(name, search_path()).spec.verifier
    return load_verifier(spec.name, spec.params)


def judged(name: str, task: dict[str, Any], answer: str) -> float | None:
    item = Judgeable("t", 0, task["verifier_inputs"], answer, "complete", None, None)
    return judge_one(verifier(name), item).reward


def test_truthfulqa_offers_the_best_answer_and_the_best_incorrect_one(tmp_path: Path) -> None:
    path = tmp_path / "TruthfulQA.csv"
    path.write_text("\ufeff" + TRUTHFULQA, encoding="utf-8")
    (task,) = tasks("truthfulqa", [path])
    inputs = task["verifier_inputs"]
    assert set(inputs["options"].values()) == {"No, it is not", "Yes"}
    assert inputs["options"][inputs["expected_answer"]] == "No, it is not"
    assert task["metadata"] == {"type": "Adversarial", "category": "Myths"}
    assert asked(task).startswith("Is it so,\nor not?\n\nA. ")


def test_truthfulqa_mixes_the_letters_by_its_seed_alone() -> None:
    path = benchmark_files("truthfulqa") / "TruthfulQA.csv"
    first = tasks("truthfulqa", [path])
    letters = [task["verifier_inputs"]["expected_answer"] for task in first]
    assert len(letters) == 150
    assert 50 < letters.count("A") < 100
    assert tasks("truthfulqa", [path]) == first
    assert [task["verifier_inputs"]["expected_answer"] for task in tasks("truthfulqa", [path], seed=1)] != letters
    for task in first:
        right = task["verifier_inputs"]["expected_answer"]
        assert judged("truthfulqa", task, f"I think so.\n\n**Answer:** {right}") == 1.0
        assert judged("truthfulqa", task, "Answer: " + ("A" if right == "B" else "B")) == 0.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Question,Best Answer\na,b\n", r"bad\.csv has no column 'Type'"),
        (TRUTHFULQA + "Adversarial,Myths,Why?,Because,Because,x,y,z\n", r"bad\.csv:4 has no two different answers"),
        (TRUTHFULQA + "Adversarial,Myths,Why?\n", r"bad\.csv:4 has more or fewer fields"),
    ],
    ids=["column", "same", "cut"],
)
def test_truthfulqa_names_the_place_of_a_fault(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        tasks("truthfulqa", [path])


def test_mmlu_reads_tables_and_the_archive_alike(tmp_path: Path) -> None:
    folder = benchmark_files("mmlu") / "data"
    files = sorted((folder / "test").glob("*_test.csv"))
    archive = tmp_path / "mmlu.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "data")
    from_files, from_archive = tasks("mmlu", files), tasks("mmlu", [archive])
    assert len(from_files) == 150
    assert from_archive == from_files
    assert Counter(task["metadata"]["subject"] for task in from_files)["global_facts"] == 15
    assert len(tasks("mmlu", [archive], split="dev")) == 50


def test_mmlu_asks_with_four_options_and_takes_the_letter() -> None:
    path = benchmark_files("mmlu") / "data" / "test" / "abstract_algebra_test.csv"
    task = next(task for task in tasks("mmlu", [path]) if task["task_id"] == "abstract_algebra/2")
    assert task["verifier_inputs"] == {
        "expected_answer": "C",
        "options": {"A": "8", "B": "2", "C": "24", "D": "120"},
    }
    assert "about abstract algebra.\n\nLet p = (1, 2, 5, 4)(2, 3) in S_5 ." in asked(task)
    assert "\nC. 24\n" in asked(task)
    assert judged("mmlu", task, "The index is 24.\nAnswer: C") == 1.0
    assert judged("mmlu", task, "Answer: D") == 0.0
    assert judged("mmlu", task, "no idea") == 0.0


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x_test.csv", b"q,1,2,3,4,A\nq,1,2,3,4,AB\n", r"record 2 of x_test\.csv is not a question"),
        ("x_test.csv", b"q,1,2,3,A\n", r"record 1 of x_test\.csv is not a question"),
        ("x_test.csv", b"\xff,1,2,3,4,A\n", r"x_test\.csv is not UTF-8 \(byte 1\)"),
        ("x_dev.csv", b"q,1,2,3,4,A\n", r"no file SUBJECT_test\.csv"),
        ("mmlu.tar", b"<html>not found</html>", r"mmlu\.tar is not a whole tar archive"),
    ],
    ids=["letter", "fields", "encoding", "split", "archive"],
)
def test_mmlu_names_the_place_of_a_fault(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        tasks("mmlu", [path])
