"""Benchmark folders are found and checked, and each mistake is one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gym_spark import cli
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, list_benchmarks, search_path

SAMPLES = Path(__file__).parents[1] / "data" / "benchmarks"
SHIPPED = sorted(file.parent.name for file in (Path(__file__).parents[2] / "benchmarks").glob("*/benchmark.yaml"))
GOOD = (SAMPLES / "quiz" / "benchmark.yaml").read_text()


def folder_with(tmp_path: Path, text: str, name: str = "quiz") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "benchmark.yaml").write_text(text)
    (folder / "prepare.py").write_text("def rows(source): return []\n")
    return folder


def test_shipped_benchmarks_are_listed_by_name_after_the_users_folders():
    search = search_path([SAMPLES])
    assert search[0] == SAMPLES
    assert [item.spec.name for item in list_benchmarks(search)] == sorted([*SHIPPED, "quiz"])


def test_first_folder_of_the_search_wins(tmp_path):
    folder = folder_with(tmp_path, GOOD)
    assert find_benchmark("quiz", search_path([tmp_path, SAMPLES])).folder == folder
    assert find_benchmark("quiz", search_path([SAMPLES, tmp_path])).folder == SAMPLES / "quiz"


def test_unknown_benchmark_names_the_closest():
    with pytest.raises(ConfigError, match=r"no benchmark 'gsm8'; did you mean 'gsm8k'\?"):
        find_benchmark("gsm8", search_path())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("verifier:", "verifer:", "unknown key 'verifer'; did you mean 'verifier'"),
        ("format: jsonl", "fromat: jsonl", "unknown key 'source.fromat'; did you mean 'format'"),
        ("name: exact_match", "nam: exact_match", "required key 'verifier.name' is missing"),
        ("domain: knowledge", "num_repeats: foo\ndomain: knowledge", "'num_repeats' is \"foo\""),
        ("{question}", "{question", "write literal braces as {{ and }}"),
        ("{question}", "{question.text}", "'{question.text}' is not a plain {field}"),
        ("name: quiz", "name: puzzle", "'name' is 'puzzle' but the folder is 'quiz'"),
        ("domain: knowledge", "domain: [", "line 5 is not valid YAML"),
        ("format: jsonl", "format: generated", "a generated source takes no url"),
    ],
)
def test_p55_wrong_benchmark_yaml_names_file_and_key(tmp_path, old, new, message):
    folder_with(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        find_benchmark("quiz", search_path([tmp_path]))
    assert str(tmp_path / "quiz" / "benchmark.yaml") in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_neighbour_does_not_hide_a_good_benchmark(tmp_path):
    folder_with(tmp_path, "name: [", name="broken")
    assert find_benchmark("gsm8k", search_path([tmp_path])).spec.verifier.name == "numeric"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_broken_benchmark_does_not_hide_the_others_from_the_list(tmp_path, capfd, form):
    folder_with(tmp_path, "name: [", name="broken")
    folder_with(tmp_path, GOOD.replace("verifier:", "verifer:"), name="quiz")
    (folder_with(tmp_path, GOOD.replace("quiz", "silent"), name="silent") / "prepare.py").unlink()
    assert cli.run(["list", "benchmarks", "--search-dir", str(tmp_path), *form]) == 2
    told = capfd.readouterr()
    listed = (
        [spec["name"] for spec in json.loads(told.out)] if form else [row.split()[0] for row in told.out.splitlines()]
    )
    assert listed == SHIPPED
    complaints = told.err.splitlines()
    assert len(complaints) == 3
    for name, complaint in zip(["broken", "quiz", "silent"], complaints, strict=True):
        assert complaint.startswith("gym-spark: ")
        assert str(tmp_path / name) in complaint


def test_a_broken_benchmark_is_an_error_to_a_program_that_does_not_ask_for_faults(tmp_path):
    folder_with(tmp_path, "name: [", name="broken")
    with pytest.raises(ConfigError, match="not valid YAML"):
        list_benchmarks(search_path([tmp_path]))


def test_missing_script_is_named(tmp_path):
    (folder_with(tmp_path, GOOD) / "prepare.py").unlink()
    with pytest.raises(ConfigError, match=r"'quiz' has no prepare\.py"):
        find_benchmark("quiz", search_path([tmp_path]))


def test_search_dir_must_be_a_folder_that_holds_benchmarks(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        search_path([tmp_path / "none"])
    with pytest.raises(ConfigError, match="is itself a benchmark"):
        search_path([SAMPLES / "quiz"])


def test_catalog_is_light_to_import():
    heavy = "{'pyspark', 'pyarrow', 'pandas', 'httpx'}"
    code = f"import sys, gym_spark.prepare.catalog; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
