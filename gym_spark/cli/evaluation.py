"""`gym-spark eval`: the stages. Each command parses, makes one call of `gym_spark.flow`, and gives an exit code.

`flow` brings pyspark with it, so commands import it when they run: `--help` and mistakes in the flags stay fast.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from rich.console import Console

from gym_spark.cli import options
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.prompts import read_prompt_config
from gym_spark.resolve import Evaluation, resolve_run
from gym_spark.rollout.share import Share, parse_share

if TYPE_CHECKING:
    from gym_spark.results.run_profile import RunProfile


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
    from gym_spark.prepare.publish import publish

    drafted = flow.draft(found, sources=sources, prompt=prompt, num_shards=num_shards, drop_duplicates=drop_duplicates)
    stored = publish(flow.open_lake(lake, say=_say), drafted)
    again = f", {stored.duplicates} duplicates" if stored.duplicates else ""
    click.echo(f"{stored.benchmark}: {stored.tasks} tasks, shards: {stored.shards}{again}, version {stored.version}.")
    return 0


@evaluation.command()
@options.run_spec
@options.source
@options.lake
@options.resume
@options.shards
@options.no_preflight
@options.strict
@options.dry_run
@options.as_json
@options.samples
def run(
    lake: str,
    sources: tuple[Path, ...],
    resume: bool,
    shards: str,
    no_preflight: bool,
    strict: bool,
    dry_run: bool,
    as_json: bool,
    samples: int,
    **fields: Any,
) -> int:
    """Evaluate a model on a benchmark, from end to end."""
    evaluation, share = _resolved(fields), parse_share(shards)
    if dry_run:
        resolved = evaluation.spec.model_dump(mode="json")
        click.echo(json.dumps(resolved) if as_json else yaml.safe_dump(resolved, sort_keys=False).rstrip())
        return 0
    profile = _run(evaluation, lake, share, resume=resume, preflight=not no_preflight, sources=sources)
    return _show(profile, lake, as_json=as_json, strict=strict, samples=samples)


@evaluation.command()
@options.run_spec
@options.lake
@options.resume
@options.shards
@options.no_preflight
def collect(lake: str, resume: bool, shards: str, no_preflight: bool, **fields: Any) -> int:
    """Only collect the rollouts of a run."""
    evaluation, share = _resolved(fields), parse_share(shards)
    profile = _run(evaluation, lake, share, resume=resume, preflight=not no_preflight, judge=False)
    covered = profile.coverage
    click.echo(
        f"{profile.run_id}: {covered.completed} of {covered.planned} planned rollouts completed, "
        f"{covered.failed} failed, {covered.missing} missing."
    )
    return _code(profile, strict=False)


@evaluation.command()
@options.run_id
@options.lake
def verify(run_id: str, lake: str) -> int:
    """Judge the stored rollouts that have no verdict."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say)
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
    """Show a run's mean reward, pass@k and coverage."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say)
    return _show(flow.profile(place, get_run(place, run_id)), lake, as_json=as_json, strict=strict, samples=samples)


@evaluation.command()
@options.run_id
@options.lake
@options.as_json
def status(run_id: str, lake: str, as_json: bool) -> int:
    """Show where a run stands, also while another process works on it."""
    from gym_spark import flow
    from gym_spark.cli.standing import standing_lines
    from gym_spark.standing import run_standing
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say)
    standing = run_standing(place, get_run(place, run_id))
    click.echo(standing.to_json() if as_json else "\n".join(standing_lines(standing)))
    return 0


@evaluation.command()
@options.run_id
@options.lake
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def export(run_id: str, lake: str, output: Path, force: bool) -> int:
    """Write a run's rollouts and verdicts as JSON Lines."""
    if output.exists() and not force:
        raise ConfigError(f"The file '{output}' exists; choose another --output, or replace it with --force.")
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say)
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


def _run(evaluation: Evaluation, lake: str, share: Share, **how: Any) -> RunProfile:
    """Run an evaluation with live progress; `how` are keywords of `flow.run`."""
    from gym_spark import flow
    from gym_spark.cli.render import ProgressLine

    return flow.run(evaluation.spec, evaluation.benchmark, lake, share=share, show=ProgressLine(), say=_say, **how)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _show(profile: RunProfile, lake: str, *, as_json: bool, strict: bool, samples: int) -> int:
    from gym_spark import flow
    from gym_spark.cli.render import profile_table, sample_rollouts
    from gym_spark.tables.runs import get_run

    picked = []
    if samples:
        place = flow.open_lake(lake, say=_say)
        picked = flow.samples(place, get_run(place, profile.run_id), count=samples)
    if as_json:
        click.echo(profile.to_json(samples=picked))
    else:
        profile_table(profile, Console(soft_wrap=True))
        sample_rollouts(picked)
    return _code(profile, strict=strict)


def _code(profile: RunProfile, *, strict: bool) -> int:
    """Return 1 where the result falls short: nothing came, the run was stopped, or --strict asks for all of it."""
    covered = profile.coverage
    short = covered.completed == 0 or profile.stopped is not None
    return 1 if short or (strict and covered.scored < covered.planned) else 0
