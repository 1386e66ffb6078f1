"""What holds for the project as a whole: import directions, sizes, names, and what starts without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gym_spark.cli.evaluation import evaluation
from gym_spark.resolve import resolve_run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gym_spark"
MODULES = sorted(PACKAGE.rglob("*.py"))
JOBS = sorted((ROOT / "jobs").glob("*.py"))

#: CPU seconds in which a command that needs no Spark must answer (issue 3), interpreter included.
QUICK_CPU_S = 0.5

#: Runs ``ARGUMENTS`` and tells, on the last line of stderr, the CPU seconds and which of the slow packages it imported.
MEASURED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    code = end.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, *({"pyspark", "pandas"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def measured(*arguments: str | Path) -> tuple[str, float, list[str]]:
    """Run a Python script in a process of its own; return its output, CPU seconds, and slow imports."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds, *slow = done.stderr.splitlines()[-1].split()
    return done.stdout, float(seconds), slow


def project() -> Any:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_import_contracts_hold() -> None:
    """One direction, and no pyspark on workers: the contracts stand in pyproject.toml."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_has_its_place_in_the_layers() -> None:
    """A package or module that the layers do not name could import anything."""
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name.strip() for layer in layers for name in layer.replace("|", ":").split(":")}
    there = {f"gym_spark.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    there |= {f"gym_spark.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    assert there == placed


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_is_too_long_to_read(module: Path) -> None:
    """400 lines at most (STYLE.md)."""
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 400


def test_no_script_shadows_a_module_of_the_standard_library() -> None:
    """Python puts a script's folder first on its path: a jobs/profile.py would break cProfile, and pyspark with it."""
    scripts = [path.stem for folder in ("jobs", "notebooks") for path in (ROOT / folder).glob("*.py")]
    assert scripts
    assert not set(scripts) & sys.stdlib_module_names


@pytest.mark.parametrize("arguments", ["--help", "eval --help", "eval run --help", "list benchmarks"])
def test_commands_that_need_no_spark_answer_at_once(arguments: str) -> None:
    """Under half a second of CPU, and without importing pyspark or pandas."""
    script = Path(sys.executable).parent / "gym-spark"
    out, seconds, slow = measured(script, *arguments.split())
    assert out.strip()
    assert slow == []
    assert seconds < QUICK_CPU_S


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_every_job_is_a_command_of_the_cli(job: Path) -> None:
    """A job takes the flags of its `eval` command, which its docstring shows."""
    out, _, slow = measured(job, "--help")
    assert "--lake" in out
    assert slow == []
    assert f"spark-submit --properties-file conf/spark/local.conf jobs/{job.name}" in job.read_text(encoding="utf-8")


def test_every_eval_command_has_a_job() -> None:
    """Whatever runs on a laptop can be submitted to a cluster."""
    commands = {job.read_text(encoding="utf-8").split('main(["eval", "')[1].split('"')[0] for job in JOBS}
    assert commands == set(evaluation.commands) - {"status"}, "a look from outside is no job"


def test_importing_the_package_brings_no_spark_and_every_verb_is_there() -> None:
    """The verbs come when they are first used, and none of them is hidden by a subpackage of the same name."""
    program = (
        "import sys, gym_spark as gs; assert 'pyspark' not in sys.modules\n"
        "import gym_spark.flow\n"
        "assert all(callable(getattr(gs, name)) for name in gs.__all__), gs.__all__\n"
        "assert set(gs.__all__) <= set(dir(gs))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "file", sorted((ROOT / "conf").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_shipped_configuration_is_accepted(file: Path) -> None:
    """Alone with a benchmark where it names none, and with nothing left out on the way."""
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    evaluation = resolve_run({"benchmark": written.get("benchmark", "gsm8k")}, config=[file])
    resolved = evaluation.spec.model_dump(mode="json")
    for section, values in written.items():
        kept = {key: resolved[section][key] for key in values} if isinstance(values, dict) else resolved[section]
        assert kept == values


def test_the_shipped_configurations_add_up_to_one_run() -> None:
    """Cluster, endpoint and run files have no key in common: each can be exchanged without the others."""
    files = [ROOT / "conf" / name for name in ("spark/cluster.yaml", "endpoints/vllm.yaml", "runs/gsm8k.yaml")]
    spec = resolve_run(config=files).spec
    assert (spec.benchmark, len(spec.endpoint.urls), spec.spark["spark.speculation"]) == ("gsm8k", 2, "false")
    keys = [set(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files]
    assert sum(map(len, keys)) == len(set.union(*keys))


def test_the_constraints_name_no_place_of_the_machine_that_made_them() -> None:
    """`pip freeze` writes folders and addresses for what was not installed from an index."""
    lines = (ROOT / "conf" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if pin.count("==") != 1 or set(pin) & set("/@ ")] == []


def test_the_makefile_lists_its_targets() -> None:
    """`make` alone shows what there is, and sets nothing up."""
    done = subprocess.run(
        ["make", "-C", str(ROOT)],
        env=os.environ | {"MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"demo", "test", "lint", "format", "clean"} <= {
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make")
    }
