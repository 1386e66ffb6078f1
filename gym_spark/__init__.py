"""Repeatable LLM and agent evaluations as a batch data-processing system on Apache Spark.

    import gym_spark as gs

    evaluation = gs.resolve_run({"benchmark": "arithmetic", "limit": 6})
    profile = gs.run_evaluation(evaluation.spec, evaluation.benchmark, "./lake")

The data flow, each arrow a stage, each noun a Delta table of the lake:

    benchmark -prepare-> tasks -collect-> rollouts -verify-> verifications -profile-> task_profiles, metrics
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gym_spark.cli.render import ProgressLine
    from gym_spark.flow import open_lake
    from gym_spark.flow import prepare as prepare_benchmark
    from gym_spark.flow import run as run_evaluation
    from gym_spark.flow import verify as verify_run
    from gym_spark.prepare.catalog import find_benchmark, list_benchmarks
    from gym_spark.reporting import export_rows, samples
    from gym_spark.reporting import profile as profile_run
    from gym_spark.resolve import resolve_run
    from gym_spark.tables.runs import get_run

__all__ = [
    "ProgressLine",
    "export_rows",
    "find_benchmark",
    "get_run",
    "list_benchmarks",
    "open_lake",
    "prepare_benchmark",
    "profile_run",
    "resolve_run",
    "run_evaluation",
    "samples",
    "verify_run",
]

#: Where each verb lives. They are imported when they are first used, because most of them bring pyspark with them, and
#: the command line must answer without. A verb that is a subpackage's name too (`prepare`, `verify`) would be replaced
#: by that package as soon as anything imports it: hence the names with an object.
_HOMES: Final = {
    "ProgressLine": "gym_spark.cli.render:ProgressLine",
    "export_rows": "gym_spark.reporting:export_rows",
    "find_benchmark": "gym_spark.prepare.catalog:find_benchmark",
    "get_run": "gym_spark.tables.runs:get_run",
    "list_benchmarks": "gym_spark.prepare.catalog:list_benchmarks",
    "open_lake": "gym_spark.flow:open_lake",
    "prepare_benchmark": "gym_spark.flow:prepare",
    "profile_run": "gym_spark.reporting:profile",
    "resolve_run": "gym_spark.resolve:resolve_run",
    "run_evaluation": "gym_spark.flow:run",
    "samples": "gym_spark.reporting:samples",
    "verify_run": "gym_spark.flow:verify",
}


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    """Name the verbs too, for completion in notebooks."""
    return sorted({*globals(), *_HOMES})
