"""`gym-spark eval`: the stages. Each command parses, makes one call of `gym_spark.flow`, and gives an exit code.

`flow` brings pyspark with it, so commands import it when they run: `--help` and mistakes in the flags stay fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from gym_spark.cli import options
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.prompts import read_prompt_config
from gym_spark.resolve import Evaluation, resolve_run


@click.group("eval")
def evaluation() -> None:
    """Prepare benchmarks, run evaluations, profile and export them."""


@evaluation.command()
@options.benchmark
@options.search_dir
@options.source
@options.lake
@options.prompt_config
@click.option("--num-shards", type=click.IntRange(min=1), help="Shards, in place of one per thousand tasks.")
@click.option("--drop-duplicates", is_flag=True, help="Leave out rows that equal an earlier one.")
def prepare(
    benchmark: str | None,
    search_dirs: tuple[Path, ...],
    sources: tuple[Path, ...],
    lake: str,
    prompt_config: Path | None,
    num_shards: int | None,
    drop_duplicates: bool,
) -> int:
    """Store a benchmark's tasks in the lake, as one version."""
    if benchmark is None:
        raise ConfigError("Name the benchmark to prepare with --benchmark; `gym-spark list benchmarks` shows them.")
    found = find_benchmark(benchmark, search_path(search_dirs))
    prompt = read_prompt_config(prompt_config) if prompt_config is not None else None
    from gym_spark import flow

    stored = flow.prepare(
        found, lake, sources=sources, prompt=prompt, num_shards=num_shards, drop_duplicates=drop_duplicates
    )
    again = f", {stored.duplicates} duplicates" if stored.duplicates else ""
    click.echo(f"{stored.benchmark}: {stored.tasks} tasks in {stored.shards} shards{again}, version {stored.version}.")
    return 0


@evaluation.command()
@options.run_spec
@options.source
@options.lake
@options.resume
@options.no_preflight
@options.strict
@options.dry_run
@options.as_json
@options.samples
def run(
    lake: str,
    sources: tuple[Path, ...],
    resume: bool,
    no_preflight: bool,
    strict: bool,
    dry_run: bool,
    as_json: bool,
    samples: int,
    **fields: Any,
) -> int:
    """Evaluate a model on a benchmark: collect rollouts, verify and profile them."""
    evaluation = _resolved(fields)
    if dry_run:
        click.echo(yaml.safe_dump(evaluation.spec.model_dump(mode="json"), sort_keys=False).rstrip())
        return 0
    from gym_spark import flow
    from gym_spark.cli.render import ProgressLine

    profile = flow.run(
        evaluation.spec,
        evaluation.benchmark,
        lake,
        sources=sources,
        resume=resume,
        preflight=not no_preflight,
        show=ProgressLine(),
        say=_say,
    )
    return _show(profile, lake, as_json=as_json, strict=strict, samples=samples)


@evaluation.command()
@options.run_spec
@options.lake
@options.resume
@options.no_preflight
def collect(lake: str, resume: bool, no_preflight: bool, **fields: Any) -> int:
    """Only collect the rollouts of a run; `eval verify` and `eval profile` follow."""
    evaluation = _resolved(fields)
    from gym_spark import flow
    from gym_spark.cli.render import ProgressLine

    with flow.connected(evaluation.spec, resume=resume, preflight=not no_preflight, say=_say) as (spec, connect):
        place = flow.open_lake(lake, spec.spark)
        record = flow.plan_run(place, spec, resume=resume)
        flow.start_run(place, record)
        with flow.recorded(place, record):
            progress = flow.collect(place, record, connect, show=ProgressLine())
    click.echo(f"{record.spec.run_id}: {progress.done} rollouts collected, {sum(progress.failures.values())} failed.")
    return 0


@evaluation.command()
@options.run_id
@options.lake
def verify(run_id: str, lake: str) -> int:
    """Judge the stored rollouts of a run that its verifier has not judged yet."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake)
    record = get_run(place, run_id)
    flow.verify(place, record)
    click.echo(f"{run_id}: every stored rollout is judged by {record.verification_id}.")
    return 0


@evaluation.command()
@options.run_id
@options.lake
@options.as_json
@options.strict
@options.samples
def profile(run_id: str, lake: str, as_json: bool, strict: bool, samples: int) -> int:
    """Show a run's mean reward, pass@k and coverage, and store them in the lake."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake)
    return _show(flow.profile(place, get_run(place, run_id)), lake, as_json=as_json, strict=strict, samples=samples)


@evaluation.command()
@options.run_id
@options.lake
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
def export(run_id: str, lake: str, output: Path) -> int:
    """Write a run's rollouts and verdicts as JSON Lines."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake)
    written = flow.export_rows(place, get_run(place, run_id), output)
    click.echo(f"{written} rows in {output}.")
    return 0


def _resolved(fields: dict[str, Any]) -> Evaluation:
    return resolve_run(
        {"benchmark": fields["benchmark"], **options.spec_fields(fields)},
        config=fields["config"],
        overrides=fields["overrides"],
        search_dirs=fields["search_dirs"],
    )


def _say(text: str) -> None:
    click.echo(text, err=True)


def _show(profile: Any, lake: str, *, as_json: bool, strict: bool, samples: int) -> int:
    from gym_spark import flow
    from gym_spark.cli.render import profile_table, sample_rollouts
    from gym_spark.tables.runs import get_run

    if as_json:
        click.echo(profile.to_json())
    else:
        profile_table(profile, Console())
    if samples:
        place = flow.open_lake(lake)
        sample_rollouts(flow.samples(place, get_run(place, profile.run_id), count=samples))
    nothing = profile.coverage.completed == 0
    return 1 if nothing or (strict and profile.coverage.scored < profile.coverage.planned) else 0
