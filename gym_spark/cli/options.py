"""Every flag, defined once: it has the same name and meaning in each command that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gym_spark.config import JsonObject
from gym_spark.layers import given, merge
from gym_spark.tables.location import location_of

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_File = click.Path(path_type=Path)


class Limit(click.ParamType[int | float]):
    """A count of tasks (20), or a share of them (0.1 or 10%)."""

    name = "N|SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """Read the value."""
        text = str(value)
        try:
            if text.endswith("%"):
                return float(text[:-1]) / 100
            return float(text) if "." in text else int(text)
        except ValueError:
            self.fail(f"'{text}' is neither a count of tasks nor a share like 0.1 or 10%.", param, ctx)


def _checked_lake(ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for place in (value,) if isinstance(value, str) else value:
        location_of(place)
    return value


def _lake(text: str, **how: Any) -> Callable[[Decorated], Decorated]:
    text = f"{text}: a folder, a URI, or catalog.schema. [env: GYM_SPARK_LAKE]"
    return click.option("--lake", callback=_checked_lake, envvar="GYM_SPARK_LAKE", show_default=True, help=text, **how)


lake = _lake("Where all tables live", default="./lake")
lakes = _lake("Where the runs live, repeatable", multiple=True, default=("./lake",))
benchmark = click.option("--benchmark", metavar="NAME", help="Benchmark, as `gym-spark list benchmarks` names it.")
search_dir = click.option(
    "--search-dir", "search_dirs", multiple=True, type=_File, help="Folder with benchmark folders; repeatable."
)
metrics_of = click.option(
    "--benchmark", "metrics_of", metavar="NAME", help="Whose own metrics are computed, if not those of the run's."
)
source = click.option(
    "--source", "sources", multiple=True, type=_File, help="Local file in place of the benchmark's address; repeatable."
)
run_id = click.option("--run-id", metavar="ID", required=True, help="Name of the run.")
verification_id = click.option(
    "--verification-id",
    metavar="ID",
    help="Name of the verification; the run's own, or made from the verifier.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print strict JSON in place of the table.")
samples = click.option("--samples", type=click.IntRange(min=0), default=0, help="Rollouts to print in full.")
shards = click.option(
    "--shards",
    default="1/1",
    metavar="I/N",
    help="Take share I of N parallel jobs of one run; --concurrency is the limit of all of them together.",
)
resume = click.option("--resume", is_flag=True, help="Complete a run that exists; stored rollouts are not done again.")
strict = click.option("--strict", is_flag=True, help="Exit 1 unless every planned rollout is scored.")
no_preflight = click.option(
    "--no-preflight", is_flag=True, help="Skip the one tiny request that checks key and model before the run."
)
dry_run = click.option(
    "--dry-run",
    is_flag=True,
    help="Print the resolved configuration and stop; refuses what the run would, asks nobody.",
)
prompt_config = click.option("--prompt-config", type=_File, help="YAML file whose prompt replaces the benchmark's own.")

#: Flags that set one field of `RunSpec`: (flag, field, type, help).
_SPEC_FLAGS: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("--run-id", "run_id", str, "Name of the run; made from benchmark and time unless given."),
    ("--model", "endpoint.model", str, "Model name that the endpoint serves."),
    ("--model-api-key-env", "endpoint.api_key_env", str, "Environment variable that holds the API key."),
    ("--api", "endpoint.api", click.Choice(["chat", "responses"]), "API of the endpoint; chat unless given."),
    ("--concurrency", "endpoint.concurrency", int, "Rollouts in flight over the whole run."),
    ("--timeout", "endpoint.timeout_s", float, "Seconds that one request may take."),
    ("--num-repeats", "num_repeats", int, "Rollouts per task."),
    ("--limit", "limit", Limit(), "Tasks to use: a count, or a share; picked by a seeded hash, not the first."),
    ("--limit-seed", "limit_seed", int, "Seed of that pick."),
    ("--temperature", "sampling.temperature", float, "Sampling temperature."),
    ("--top-p", "sampling.top_p", float, "Nucleus sampling."),
    ("--max-output-tokens", "sampling.max_output_tokens", int, "Bound on the tokens of one answer."),
    ("--seed", "sampling.seed", int, "Base seed; each rollout derives its own."),
    ("--harness", "harness.name", str, "Harness (`list agents` shows them), or module:Class."),
    ("--judge-model", "judge.model", str, "Model that judges, for verifiers that ask one."),
    ("--judge-api-key-env", "judge.api_key_env", str, "Environment variable that holds the judge's API key."),
    ("--judge-concurrency", "judge.concurrency", int, "Requests to the judge in flight over the whole run."),
    ("--verifier", "verifier.name", str, "Verifier (`list verifiers` shows them), or module:Class."),
    (
        "--sandbox",
        "sandbox",
        str,
        "Run code that the model wrote, in this sandbox: auto, bubblewrap, landlock or module:Class; off unless given.",
    ),
)


_judge_url = click.option("--judge-url", "spec__judge__urls", multiple=True, help="Address of the judge's endpoint.")


def run_spec(command: Decorated) -> Decorated:
    """Add every flag that describes a run; the command takes them as keywords and gives them to :func:`spec_fields`."""
    for flag, field, kind, text in reversed(_SPEC_FLAGS):
        command = click.option(flag, _keyword(field), type=kind, help=text)(command)
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any field; wins over all."),
        click.option("--config", multiple=True, type=_File, help="YAML file with fields of the run; repeatable."),
        click.option(
            "--model-url", "spec__endpoint__urls", multiple=True, help="Address of the endpoint; repeat for replicas."
        ),
        _judge_url,
        search_dir,
        benchmark,
    ):
        command = option(command)
    return command


def judging(command: Decorated) -> Decorated:
    """Add the flags of `RunSpec` that say who judges and where, for stored rollouts; as :func:`run_spec` does."""
    for flag, field, kind, text in reversed(_SPEC_FLAGS):
        if field.partition(".")[0] in ("judge", "sandbox"):
            command = click.option(flag, _keyword(field), type=kind, help=text)(command)
    return _judge_url(command)


def spec_fields(keywords: Mapping[str, Any]) -> JsonObject:
    """Return the `RunSpec` fields that were given among a command's keywords."""
    fields: JsonObject = {}
    for keyword, value in keywords.items():
        if keyword.startswith("spec__"):
            for part in reversed(keyword.removeprefix("spec__").split("__")):
                value = {part: value}
            fields = merge(fields, value)
    return given(fields)


def _keyword(field: str) -> str:
    return "spec__" + field.replace(".", "__")
