"""Rows become keyed, fingerprinted and sharded tasks."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_spark.config import digest
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.limits import limit_count
from gym_spark.prepare.prompts import FewShotSpec, PromptSpec
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import PreparedTasks, build_tasks
from gym_spark.tables.schemas import TASKS

SAMPLES = Path(__file__).parents[1] / "data" / "benchmarks"
A = {"question": "a?", "answer": "A"}
B = {"question": "b?", "answer": "B"}
C = {"question": "c?", "answer": "C"}


def prepare(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> PreparedTasks:
    file = tmp_path / "quiz.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    benchmark = find_benchmark("quiz", [SAMPLES])
    return build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]), **options)


def scripted(tmp_path: Path, body: str, *, head: str = "", verifier: str = "exact_match") -> PreparedTasks:
    """Prepare a benchmark whose rows() has the given body."""
    folder = tmp_path / "quiz"
    folder.mkdir()
    settings = (SAMPLES / "quiz" / "benchmark.yaml").read_text().replace("exact_match", verifier)
    (folder / "benchmark.yaml").write_text(settings)
    script = f"from gym_spark.prepare.script import Row\n{head}\ndef rows(source):\n    {body}\n"
    (folder / "prepare.py").write_text(script)
    file = tmp_path / "rows.jsonl"
    file.write_text("{}")
    benchmark = find_benchmark("quiz", [tmp_path])
    return build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]))


def column(prepared: PreparedTasks, name: str) -> list[Any]:
    return prepared.table.column(name).to_pylist()


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{n}?", "answer": str(n)} for n in range(count)]


def test_a_task_holds_prompt_gold_and_metadata_in_the_tables_schema(tmp_path):
    prepared = prepare(tmp_path, [{**A, "topic": "letters", "unused": 1}])
    assert prepared.table.schema.equals(TASKS.schema)
    (task,) = prepared.table.to_pylist()
    assert json.loads(task["responses_create_params"]) == {
        "input": [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Q: a?"}]
    }
    assert json.loads(task["verifier_inputs"]) == {"expected_answer": "A"}
    assert json.loads(task["metadata"]) == {"topic": "letters"}
    assert task["task_id"] == digest({**A, "topic": "letters", "unused": 1})
    assert (task["benchmark"], task["version"], task["split"]) == ("quiz", prepared.version, "test")
    assert prepared.manifest["fields"] == {
        "prompt": ["question"],
        "verifier_inputs": ["expected_answer"],
        "metadata": ["topic"],
        "dropped": ["answer", "unused"],
    }


def test_manifest_says_what_the_version_was_made_from_and_holds_no_path(tmp_path):
    prepared = prepare(tmp_path, [A, {**B, "patch": "gold was b"}], prompt=PromptSpec(user="{question}"))
    manifest = prepared.manifest
    assert manifest["rows"] == manifest["source"]["files"][0]["rows"] == 2
    assert manifest["source"]["files"][0]["name"] == "quiz.jsonl"
    assert manifest["source"]["url"] is None
    assert (manifest["prompt"], manifest["prompt_from"]) == ({"user": "{question}"}, "prompt_config")
    assert manifest["patches"] == [{"task_id": column(prepared, "task_id")[1], "patch": "gold was b"}]
    assert str(tmp_path) not in json.dumps(manifest)


def test_p01_a_changed_gold_gives_another_version_and_changes_one_fingerprint(tmp_path):
    rows = [{**row, "id": str(n)} for n, row in enumerate(numbered(5))]
    before = prepare(tmp_path, rows)
    rows[2] = {**rows[2], "answer": "42"}
    after = prepare(tmp_path, rows)
    assert before.version != after.version
    pairs = zip(column(before, "fingerprint"), column(after, "fingerprint"), strict=True)
    assert [old == new for old, new in pairs] == [True, True, False, True, True]
    assert before.manifest["source"] != after.manifest["source"]


def test_p01_a_changed_prompt_gives_another_version(tmp_path):
    assert prepare(tmp_path, [A]).version != prepare(tmp_path, [A], prompt=PromptSpec(user="{question}")).version


def test_version_does_not_depend_on_row_order_shards_or_metadata(tmp_path):
    rows = numbered(9)
    version = prepare(tmp_path, rows).version
    assert prepare(tmp_path, rows[::-1]).version == version
    assert prepare(tmp_path, rows, num_shards=4).version == version
    named = [{**row, "id": row["answer"]} for row in rows]
    topical = [{**row, "topic": "x"} for row in named]
    assert prepare(tmp_path, named).version == prepare(tmp_path, topical).version != version


def test_p02_byte_equal_rows_stay_tasks_of_their_own(tmp_path):
    prepared = prepare(tmp_path, [A, B, A, A])
    assert column(prepared, "task_id") == [digest(A), digest(B), f"{digest(A)}-2", f"{digest(A)}-3"]
    assert (prepared.duplicates, prepared.manifest["duplicates_dropped"]) == (2, False)


def test_p02_duplicates_are_dropped_when_asked_and_still_counted(tmp_path):
    prepared = prepare(tmp_path, [A, A, B], drop_duplicates=True)
    assert column(prepared, "task_id") == [digest(A), digest(B)]
    assert column(prepared, "task_index") == [0, 2]
    assert prepared.duplicates == 1


def test_p02_given_ids_keep_their_own_question(tmp_path):
    prepared = prepare(tmp_path, [{**A, "id": "1"}, {**B, "id": "0"}])
    tasks = {row["task_id"]: row for row in prepared.table.to_pylist()}
    assert json.loads(tasks["1"]["verifier_inputs"])["expected_answer"] == "A"
    assert "Q: b?" in tasks["0"]["responses_create_params"]
    assert [tasks[key]["task_index"] for key in ("1", "0")] == [0, 1]


@pytest.mark.parametrize(("task_id", "said"), [("", "the task id is empty"), (7, "'task_id' is 7; it must be text")])
def test_given_ids_must_be_unique_text(tmp_path, task_id, said):
    with pytest.raises(ConfigError, match=r"unique .*'x' \(2 times\)"):
        prepare(tmp_path, [{**A, "id": "x"}, {**B, "id": "x"}, {**C, "id": "y"}])
    with pytest.raises(ConfigError, match=f"Benchmark 'quiz', row 2: {said}"):
        prepare(tmp_path, [A, {**B, "id": task_id}])


@pytest.mark.parametrize(("tasks", "shards"), [(1, 1), (1000, 1), (1001, 2)])
def test_shards_follow_the_size(tmp_path, tasks, shards):
    prepared = prepare(tmp_path, numbered(tasks))
    assert prepared.shards == shards
    assert set(column(prepared, "shard")) == set(range(shards))


def test_shards_can_be_set_and_spread_evenly_whatever_the_order(tmp_path):
    rows = numbered(400)
    prepared = prepare(tmp_path, rows, num_shards=4)
    shard_of = dict(zip(column(prepared, "task_id"), column(prepared, "shard"), strict=True))
    assert all(70 < list(shard_of.values()).count(shard) < 130 for shard in range(4))
    again = prepare(tmp_path, rows[::-1], num_shards=4)
    assert dict(zip(column(again, "task_id"), column(again, "shard"), strict=True)) == shard_of
    with pytest.raises(ConfigError, match="number of shards is 0"):
        prepare(tmp_path, rows, num_shards=0)


@pytest.mark.parametrize(("limit", "tasks", "count"), [(0.5, 3, 2), (0.5, 7, 4), (0.07, 100, 7), (20, 7, 7), (3, 7, 3)])
def test_p03_a_share_is_worked_out_for_each_benchmark(limit, tasks, count):
    assert limit_count(limit, tasks) == count


def test_p04_a_script_that_fails_at_row_5_raises_and_leaves_the_cache_in_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [*numbered(4), {**A, "broken": True}]
    body = "".join(json.dumps(row) + "\n" for row in rows).encode()
    benchmark = find_benchmark("quiz", [SAMPLES])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    source = resolve_source(benchmark.spec.source, transport=transport)
    with pytest.raises(ConfigError) as caught:
        build_tasks(benchmark, source)
    assert str(caught.value) == "Benchmark 'quiz' failed at row 5 (LookupError: no such thing); nothing was stored."
    assert source.files[0].path.read_bytes() == body


def test_p04_no_prompt_holds_its_own_answer(tmp_path):
    prompt = PromptSpec(user="{question}", few_shot=FewShotSpec(count=2))
    requests = [
        json.loads(text) for text in column(prepare(tmp_path, [A, B, C], prompt=prompt), "responses_create_params")
    ]
    shown = [{turn["content"] for turn in request["input"] if turn["role"] == "assistant"} for request in requests]
    assert shown == [{"B", "C"}, {"A", "C"}, {"A", "B"}]


def test_p55_all_rows_with_a_baked_prompt_are_listed_when_a_prompt_file_is_set(tmp_path):
    rows = numbered(6)
    for row in (2, 5):
        rows[row - 1]["request"] = {"input": [{"role": "user", "content": "own"}]}
    with pytest.raises(ConfigError, match=r"prompt of their own: 2, 5;"):
        prepare(tmp_path, rows, prompt=PromptSpec(user="{question}"))
    requests = column(prepare(tmp_path, rows), "responses_create_params")
    assert ['"own"' in request for request in requests] == [False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"temperature": 0}, "its request has no 'input'"),
        ({"input": []}, "its request has no 'input'"),
        ({"input": ["hello"]}, r"its request's 'input' is \['hello'\]"),
        ({"input": 7}, "its request's 'input' is 7"),
        ("hello", "'responses_create_params' is 'hello'; it must be a dict"),
    ],
)
def test_a_baked_request_needs_an_input_that_can_be_sent(tmp_path, request_, said):
    with pytest.raises(ConfigError, match=f"Benchmark 'quiz', row 2: {said}"):
        prepare(tmp_path, [A, {**B, "request": request_}])
    prepare(tmp_path, [{**A, "request": {"input": "b?"}}])


def test_a_field_that_the_rows_lack_names_benchmark_and_row(tmp_path):
    with pytest.raises(ConfigError, match="Benchmark 'quiz', row 1: the prompt uses the field 'text'; known: question"):
        prepare(tmp_path, [A], prompt=PromptSpec(user="{text}"))


def test_rows_that_the_verifier_could_not_judge_are_refused_before_anything_is_paid_for(tmp_path):
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path, [A, {**B, "answer": None, "topic": "x"}])
    assert "Benchmark 'quiz', row 2: the verifier 'exact_match' needs 'expected_answer'" in str(caught.value)


def test_a_benchmark_whose_verifier_is_installed_elsewhere_can_be_prepared(tmp_path):
    scripted(
        tmp_path, "yield Row(raw={'a': 1}, verifier_inputs={}, fields={'question': 'a?'})", verifier="no_module:Judge"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("raw='a', verifier_inputs={}", "'raw' is 'a'; it must be a dict"),
        ("raw={}, verifier_inputs=['a']", r"'verifier_inputs' is \['a'\]; it must be a dict"),
        ("raw={}, verifier_inputs=None", "'verifier_inputs' is None; it must be a dict"),
        ("raw={}, verifier_inputs={1: 2}", "'verifier_inputs' is {1: 2}; it must be a dict with text keys"),
        ("raw={}, verifier_inputs={}, fields='q'", "'fields' is 'q'; it must be a dict"),
        ("raw={}, verifier_inputs={}, metadata=3", "'metadata' is 3; it must be a dict"),
        ("raw={}, verifier_inputs={}, shot_answer=4", "'shot_answer' is 4; it must be text"),
        ("raw={}, verifier_inputs={}, patch=['a']", r"'patch' is \['a'\]; it must be text"),
        ("raw={}, verifier_inputs={}, task_id='\\ud800'", r"'task_id' is '\\ud800'; it must be text"),
        ("raw={}, verifier_inputs={'expected_answer': 'a'}, fields={'question': {1}}", "its fields is not plain JSON"),
    ],
)
def test_every_field_of_a_row_is_checked(tmp_path, arguments, said):
    with pytest.raises(ConfigError, match=f"Benchmark 'quiz', row 1: {said}"):
        scripted(tmp_path, f"yield Row({arguments})")


def test_a_row_that_is_none_is_a_mistake_and_not_the_end(tmp_path):
    with pytest.raises(ConfigError, match="yielded a NoneType for row 1"):
        scripted(tmp_path, "yield None")


def test_what_a_script_prints_goes_to_standard_error(tmp_path, capsys):
    row = "Row(raw={'a': 1}, verifier_inputs={'expected_answer': 'a'}, fields={'question': 'a?'})"
    scripted(tmp_path, f"print('reading')\n    yield {row}\n    print('read')", head="print('loading')")
    assert capsys.readouterr() == ("", "loading\nreading\nread\n")


def test_no_rows_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="'quiz' has no rows"):
        prepare(tmp_path, [])


def test_numbers_that_json_cannot_spell_name_their_row(tmp_path):
    file = tmp_path / "quiz.jsonl"
    file.write_text('{"question": "a?", "answer": "A"}\n{"question": "b?", "answer": "B", "topic": 1e999}\n')
    benchmark = find_benchmark("quiz", [SAMPLES])
    with pytest.raises(ConfigError, match="Benchmark 'quiz', row 2: its source row is not plain JSON"):
        build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]))


@pytest.mark.parametrize(
    ("script", "extra", "message"),
    [
        ("def rows(source)\n", "", r"prepare\.py' cannot be loaded \(SyntaxError"),
        ("import no_such_module\n", "", r"cannot be loaded \(ModuleNotFoundError"),
        ("import no_such_module\n", "requires: [no-such-package]\n", "run: pip install no-such-package"),
        ("def row(source): ...\n", "", r"does not define rows\(source\)"),
        ("def rows(source):\n    yield {}\n", "", "yielded a dict for row 1"),
        ("def rows(source, more): ...\n", "", r"failed at row 1 \(TypeError"),
    ],
)
def test_a_faulty_script_is_one_sentence(tmp_path, script, extra, message):
    folder = tmp_path / "quiz"
    folder.mkdir()
    (folder / "benchmark.yaml").write_text((SAMPLES / "quiz" / "benchmark.yaml").read_text() + extra)
    (folder / "prepare.py").write_text(script)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(A))
    benchmark = find_benchmark("quiz", search_path([tmp_path]))
    with pytest.raises(ConfigError, match=message) as caught:
        build_tasks(benchmark, resolve_source(benchmark.spec.source, [file]))
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["benchmark.yaml", "prepare.py"]
