"""HumanEval and MBPP from their prepare scripts to verdicts: references pass, empty bodies fail, in the sandbox."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gym_spark.interchange.gym.checks import check_keys
from gym_spark.interchange.gym.jsonl import read_lines
from gym_spark.interchange.gym.rows import result_row, row_key
from gym_spark.interchange.gym.stored import TaskIds, rollout_row, task_rows
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import PreparedTasks, build_tasks
from gym_spark.tables.schemas import VERIFICATIONS
from gym_spark.verify.sandbox.base import Sandbox
from gym_spark.verify.worker import judge_batches
from tests.unit.test_sandbox import BACKENDS, backend_or_skip
from tests.unit.test_verify_worker import SCHEMA, row

DATA = Path(__file__).parents[1] / "data"
HUMANEVAL = DATA / "humaneval" / "HumanEval.jsonl.gz"
MBPP = DATA / "mbpp" / "mbpp.jsonl"

#: With helpers or imports before the function, of several definitions, and with the longest run.
PICKED = (0, 10, 32, 38, 39, 50, 53, 83, 115, 129, 160, 163)


def prepared(name: str, file: Path) -> PreparedTasks:
    benchmark = find_benchmark(name, search_path())
    return build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]))


def humaneval(picked: tuple[int, ...] | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = prepared("humaneval", HUMANEVAL).table.to_pylist()
    return [task for number, task in enumerate(rows) if picked is None or number in picked]


def rewards(
    backend: str, tasks: list[dict[str, Any]], answer: Callable[[dict[str, Any], dict[str, Any]], str]
) -> Counter[tuple[str, float | None]]:
    """Judge one answer to each task, made from its verifier inputs and metadata; count what came out."""
    rollouts = [
        row(number, verifier_inputs=task["verifier_inputs"], output_text=answer(
            json.loads(task["verifier_inputs"]), json.loads(task["metadata"])))
        for number, task in enumerate(tasks)
    ]  # fmt: skip
    batches = judge_batches(
        iter([pa.RecordBatch.from_pylist(rollouts, schema=SCHEMA)]),
        run_id="r",
        verification_id="v",
        verifier_name="code_tests",
        params={},
        limit_s=10.0,
        sandbox=backend,
    )
    verdicts = pa.Table.from_batches(list(batches), schema=VERIFICATIONS.schema).to_pylist()
    assert len(verdicts) == len(tasks)
    return Counter((verdict["state"], verdict["reward"]) for verdict in verdicts)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    sandbox: Sandbox = backend_or_skip(request.param)
    return sandbox.name


@pytest.mark.parametrize(
    "picked", [pytest.param(PICKED, id="12 of 164"), pytest.param(None, id="all 164", marks=pytest.mark.long)]
)
def test_humaneval_references_pass_as_body_and_as_fenced_function_and_empty_bodies_fail(
    backend: str, picked: tuple[int, ...] | None
) -> None:
    tasks = humaneval(picked)
    count = len(tasks)
    assert count == (164 if picked is None else 12)
    assert rewards(backend, tasks, lambda _, extra: extra["canonical_solution"]) == {("scored", 1.0): count}
    assert rewards(backend, tasks, lambda *_: "    return None\n") == {("scored", 0.0): count}
    whole = rewards(
        backend,
        tasks,
        lambda inputs, extra: f"Here:\n```python\n{inputs['prompt']}{extra['canonical_solution']}```\nIt is right.",
    )
    assert whole == {("scored", 1.0): count}


def test_mbpp_references_pass_and_empty_functions_fail(backend: str) -> None:
    tasks = prepared("mbpp", MBPP).table.to_pylist()
    assert rewards(backend, tasks, lambda _, extra: f"```python\n{extra['code']}\n```") == {("scored", 1.0): 11}

    def empty(inputs: dict[str, Any], extra: dict[str, Any]) -> str:
        name = re.findall(r"\w+(?=\()", inputs["tests"][0].replace("set(", ""))[0]
        return f"def {name}(*_):\n    return None"

    assert rewards(backend, tasks, empty) == {("scored", 0.0): 11}


def test_the_rows_that_docs_sandbox_makes_of_the_reference_solutions_are_imported_whole_and_pass(
    tmp_path: Path, backend: str
) -> None:
    """The documented script is run as it stands; its rows go through the import's own readers to the verifier."""
    told = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    script = next(block for block in re.findall(r"```python\n(.*?)^```$", told, re.S | re.M) if "gold.jsonl" in block)
    shutil.copy(HUMANEVAL, tmp_path)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    results = list(read_lines(tmp_path / "gold.jsonl", blank="refuse"))
    inputs = [row for _, row in read_lines(tmp_path / "gold_inputs.jsonl", blank="refuse")]
    keys = [result_row(line, where).key for where, line in results]
    assert len(keys) == 164
    check_keys([row_key(line, "input") for line in inputs], keys, allow_partial=False)
    ids = TaskIds.of(task for task, _ in keys)
    tasks = {task["task_id"]: task for task in task_rows("b", "v", [(ids.row(row_key(i, "input")), i) for i in inputs])}
    rollouts = [
        rollout_row("r", ids.row(key) | {"attempt": 1}, line, datetime.now(UTC))
        for key, (_, line) in zip(keys, results, strict=True)
    ]
    assert {one["answer_state"] for one in rollouts} == {"complete"}
    texts = iter(rollouts[number]["output_text"] for number in PICKED)
    picked = [tasks[rollouts[number]["task_id"]] for number in PICKED]
    assert rewards(backend, picked, lambda *_: str(next(texts))) == {("scored", 1.0): len(PICKED)}


def test_humaneval_shows_the_header_and_neither_the_tests_nor_the_solution() -> None:
    tasks = humaneval(None)
    assert [task["task_id"] for task in tasks] == [f"HumanEval/{number}" for number in range(164)]
    for task in tasks:
        (message,) = json.loads(task["responses_create_params"])["input"]
        inputs, extra = json.loads(task["verifier_inputs"]), json.loads(task["metadata"])
        assert inputs["prompt"] in message["content"]
        assert message["content"].count("```") == 2
        assert inputs["tests"].strip() not in message["content"]
        assert extra["canonical_solution"] not in message["content"]
    spec = find_benchmark("humaneval", search_path()).spec.source
    assert resolve_source(spec, [HUMANEVAL]).files[0].sha256 == spec.sha256, "the sample is the upstream file"


def test_mbpp_takes_the_test_split_and_shows_the_asserts() -> None:
    tasks = prepared("mbpp", MBPP).table.to_pylist()
    assert [task["task_id"] for task in tasks] == [
        f"MBPP/{number}" for number in (12, 17, 23, 24, 25, 27, 36, 38, 42, 50, 367)
    ]
    for task in tasks:
        (message,) = json.loads(task["responses_create_params"])["input"]
        for statement in json.loads(task["verifier_inputs"])["tests"]:
            assert statement in message["content"]
    assert "root.left = Node(2)" in json.loads(tasks[-1]["responses_create_params"])["input"][0]["content"]
