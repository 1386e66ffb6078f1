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
from gym_spark.layers import parse_overrides
from gym_spark.prepare.catalog import Benchmark, find_benchmark, search_path
from gym_spark.prepare.prompts import read_prompt_config
from gym_spark.resolve import Evaluation, resolve_run
from gym_spark.rollout.share import Share, parse_share

if TYPE_CHECKING:
    from gym_spark.config import RunSpec
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
    evaluation, share = _resolved(fields, lake, resume=resume), parse_share(shards)
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
    evaluation, share = _resolved(fields, lake, resume=resume), parse_share(shards)
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
@options.search_dir
@options.as_json
@options.strict
@options.samples
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write NeMo Gym's files beside X.jsonl: X_reward_profiling.jsonl, X_agent_metrics.json and "
    "X_repeat_level_metrics.json.",
)
@click.option(
    "--by", "fields", multiple=True, metavar="FIELD", help="Group scores by a field of the tasks; repeatable."
)
@click.option("--bootstrap", type=click.IntRange(min=100), metavar="N", help="Intervals by N resamples of tasks.")
@click.option("--bootstrap-seed", type=int, default=0, show_default=True, help="Seed of the resamples.")
@click.option("--allow-partial-rollouts", is_flag=True, help="Write them also where rollouts are missing.")
def profile(
    run_id: str,
    lake: str,
    as_json: bool,
    strict: bool,
    samples: int,
    search_dirs: tuple[Path, ...],
    fields: tuple[str, ...],
    output: Path | None,
    bootstrap: int | None,
    bootstrap_seed: int,
    allow_partial_rollouts: bool,
) -> int:
    """Show a run's mean reward, pass@k and coverage."""
    from gym_spark import flow, reporting
    from gym_spark.interchange.gym.profiling import ProfileFiles
    from gym_spark.results.run_profile import Bootstrap
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say)
    record = get_run(place, run_id)
    benchmark = _known_benchmark(record.spec.benchmark, search_dirs)
    files = None if output is None else ProfileFiles(output)
    resampled = None if bootstrap is None else Bootstrap(bootstrap, bootstrap_seed)
    shown = reporting.profile(
        place,
        record,
        benchmark,
        by=fields,
        bootstrap=resampled,
        files=files,
        allow_partial=allow_partial_rollouts,
    )
    if files is not None:
        _say(f"Written: {files.groups}, {files.agents}, {files.repeats}.")
    return _show(shown, lake, as_json=as_json, strict=strict, samples=samples)


def _known_benchmark(name: str, search_dirs: tuple[Path, ...]) -> Benchmark | None:
    """Return the run's benchmark where its folder is here: only its own metrics need it."""
    folders = search_path(search_dirs)
    return find_benchmark(name, folders) if any((folder / name).is_dir() for folder in folders) else None


@evaluation.command()
@options.lakes
@click.option("--run-id", "run_ids", multiple=True, metavar="ID", help="Run of one or more of the lakes; repeatable.")
@click.option("--rollouts", metavar="PATTERNS", help="In place of runs: files of result rows, patterns, by commas.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="X.jsonl: the merged rows; the numbers become X_aggregate_metrics.json beside it.",
)
@click.option(
    "--count-failure-classes-as-zero",
    "failure_classes",
    metavar="CLASSES",
    default="",
    help="Failures that count with reward 0, by commas; they stand in X_failures.jsonl beside each file.",
)
@click.option(
    "--count-missing-rollouts-as-zero", is_flag=True, help="Planned rollouts that left no row count with reward 0 too."
)
@click.option("--no-merge", is_flag=True, help="Write the numbers only.")
def aggregate(
    lake: tuple[str, ...],
    run_ids: tuple[str, ...],
    rollouts: str | None,
    output: Path,
    failure_classes: str,
    count_missing_rollouts_as_zero: bool,
    no_merge: bool,
) -> int:
    """Make one result of several runs, or of the result files of several shards."""
    if bool(run_ids) == (rollouts is not None):
        raise ConfigError("Name what to aggregate with --run-id ID (repeatable) or with --rollouts FILES.")
    from gym_spark import flow, reporting
    from gym_spark.interchange.gym.aggregating import Shards, shard_files, write_aggregate
    from gym_spark.interchange.gym.jsonl import beside
    from gym_spark.session import get_session

    if rollouts is None:
        places = [flow.open_lake(root, say=_say, to_write=False) for root in lake]
        overlap = reporting.write_aggregate_of(reporting.runs_named(places, run_ids), output)
        for line in [*overlap.notes(), f"Written: {beside(output, 'aggregate_metrics.json')}."]:
            click.echo(line)
        return 0 if overlap.planned > overlap.gaps else 1

    classes = [name.strip() for name in failure_classes.split(",") if name.strip()]
    shards = Shards(shard_files(rollouts), classes, count_missing_rollouts_as_zero)
    done = write_aggregate(get_session(say=_say), shards, output, merge=not no_merge)
    written = [beside(output, "aggregate_metrics.json"), *([] if no_merge else [output])]
    for line in [*done.notes(), f"Written: {', '.join(map(str, written))}."]:
        click.echo(line)
    return 0 if done.rows else 1


@evaluation.command("import")
@options.run_id
@options.lake
@click.option("--format", "form", type=click.Choice(["gym"]), default="gym", show_default=True, help="Whose files.")
@click.option(
    "--rollouts",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="File of result rows (JSON Lines); repeatable.",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="File of input rows; without it X_materialized_inputs.jsonl beside the first X.jsonl, or what results tell.",
)
def import_run(run_id: str, lake: str, form: str, rollouts: tuple[Path, ...], inputs: Path | None) -> int:
    """Store a run that NeMo Gym made, to profile and compare it like any other."""
    from gym_spark import flow
    from gym_spark.interchange.gym.importing import GymFiles, import_gym_run

    done = import_gym_run(flow.open_lake(lake, say=_say), GymFiles(rollouts, inputs), run_id)
    masked = f", {done.masked} of them masked" if done.masked else ""
    click.echo(f"{run_id}: {done.rollouts} of {done.inputs} planned rollouts{masked}; {done.failures} failed attempts.")
    if done.left:
        click.echo(f"NeMo Gym would still make {done.left} of them.")
    for path, length in done.torn.items():
        _say(f"'{path}' ends in the middle of a line: its last {length} bytes were left out.")
    return 0


@evaluation.command()
@click.option("--run-id", metavar="ID", help="Name of the run; without it, all runs of the lake.")
@options.lake
@options.as_json
def status(run_id: str | None, lake: str, as_json: bool) -> int:
    """Show where a run stands, also while another process works on it; or which runs there are."""
    from gym_spark import flow
    from gym_spark.cli.standing import run_lines, standing_lines
    from gym_spark.standing import run_standing
    from gym_spark.tables.runs import get_run, list_runs

    place = flow.open_lake(lake, say=_say, to_write=False)
    if run_id is None:
        runs = list_runs(place)
        click.echo(json.dumps(runs) if as_json else "\n".join(run_lines(runs)))
        return 0
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
    from gym_spark import flow, reporting
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=_say, to_write=False)
    written = reporting.export_rows(place, get_run(place, run_id), output)
    click.echo(f"{written} rows in {output}.")
    return 0


def _resolved(fields: dict[str, Any], lake: str, *, resume: bool) -> Evaluation:
    flags = options.spec_fields(fields)
    stored = None
    if resume and "run_id" in flags and fields["benchmark"] is None and not fields["config"]:
        stored = _stored_spec(flags["run_id"], lake, parse_overrides(fields["overrides"]).get("spark"))
    return resolve_run(
        {"benchmark": fields["benchmark"], **flags},
        stored=stored,
        config=fields["config"],
        overrides=fields["overrides"],
        search_dirs=fields["search_dirs"],
    )


def _stored_spec(run_id: str, lake: str, settings: dict[str, str] | None) -> RunSpec:
    """Return what the run was made with, for a `--resume` that names the run and nothing else."""
    from gym_spark import flow
    from gym_spark.tables.runs import get_run

    spec = get_run(flow.open_lake(lake, settings, say=_say), run_id).spec
    if spec.imported is not None:
        raise ConfigError(f"The run '{run_id}' was imported; it cannot be resumed here.")
    if forgotten := spec.spark.keys() - (settings or {}).keys():
        _say(f"Spark has started without the run's own settings ({', '.join(sorted(forgotten))}); --set gives them.")
    return spec


def _run(evaluation: Evaluation, lake: str, share: Share, **how: Any) -> RunProfile:
    """Run an evaluation with live progress; `how` are keywords of `flow.run`."""
    from gym_spark import flow
    from gym_spark.cli.render import ProgressLine

    return flow.run(evaluation.spec, evaluation.benchmark, lake, share=share, show=ProgressLine(), say=_say, **how)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _show(profile: RunProfile, lake: str, *, as_json: bool, strict: bool, samples: int) -> int:
    from gym_spark import flow, reporting
    from gym_spark.cli.render import profile_table, sample_rollouts
    from gym_spark.tables.runs import get_run

    picked = []
    if samples:
        place = flow.open_lake(lake, say=_say, to_write=False)
        picked = reporting.samples(place, get_run(place, profile.run_id), count=samples)
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
