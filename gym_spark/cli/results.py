"""`gym-spark eval`: what is stored, as numbers and files. pyspark is imported when a command runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from gym_spark.cli import options
from gym_spark.cli.showing import say, show
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import Benchmark, find_benchmark, search_path


@click.command()
@options.run_id
@options.lake
@options.search_dir
@options.metrics_of
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
@options.verification_id
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
    metrics_of: str | None,
    fields: tuple[str, ...],
    output: Path | None,
    verification_id: str | None,
    bootstrap: int | None,
    bootstrap_seed: int,
    allow_partial_rollouts: bool,
) -> int:
    """Show a run's mean reward, pass@k and coverage."""
    from gym_spark import flow, reporting
    from gym_spark.interchange.gym.profiling import ProfileFiles
    from gym_spark.results.run_profile import Bootstrap
    from gym_spark.reverify import verification_of
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=say)
    record, unsafe = verification_of(place, get_run(place, run_id), verification_id)
    benchmark = _benchmark(metrics_of, record.spec.benchmark, search_dirs)
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
    shown = replace(shown, unsafe=unsafe)
    if files is not None:
        say(f"Written: {files.groups}, {files.agents}, {files.repeats}.")
    return show(shown, lake, as_json=as_json, strict=strict, samples=samples)


def _benchmark(named: str | None, name: str, search_dirs: tuple[Path, ...]) -> Benchmark | None:
    """Return the named benchmark, or else the run's where its folder is here: only its own metrics need it."""
    folders = search_path(search_dirs)
    if named is not None:
        return find_benchmark(named, folders)
    return find_benchmark(name, folders) if any((folder / name).is_dir() for folder in folders) else None


@click.command()
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
@options.search_dir
@options.metrics_of
@click.option("--by", "field", metavar="FIELD", help="Of runs: also pass@k and majority@k by a field of the tasks.")
def aggregate(
    lake: tuple[str, ...],
    run_ids: tuple[str, ...],
    rollouts: str | None,
    output: Path,
    failure_classes: str,
    count_missing_rollouts_as_zero: bool,
    no_merge: bool,
    search_dirs: tuple[Path, ...],
    metrics_of: str | None,
    field: str | None,
) -> int:
    """Make one result of several runs, or of the result files of several shards."""
    if bool(run_ids) == (rollouts is not None):
        raise ConfigError("Name what to aggregate with --run-id ID (repeatable) or with --rollouts FILES.")
    if rollouts is not None and (metrics_of is not None or field is not None):
        raise ConfigError("--benchmark and --by are about runs: import the files with eval import, then use --run-id.")
    from gym_spark import flow, reporting
    from gym_spark.interchange.gym.aggregating import Shards, shard_files, write_aggregate
    from gym_spark.interchange.gym.jsonl import beside
    from gym_spark.session import get_session

    if rollouts is None:
        places = [flow.open_lake(root, say=say, to_write=False) for root in lake]
        runs = reporting.runs_named(places, run_ids)
        benchmark = _benchmark(metrics_of, runs[0][1].spec.benchmark, search_dirs)
        overlap = reporting.write_aggregate_of(runs, output, benchmark, by=field)
        for line in [*overlap.notes(), f"Written: {beside(output, 'aggregate_metrics.json')}."]:
            click.echo(line)
        return 0 if overlap.planned > overlap.gaps else 1

    classes = [name.strip() for name in failure_classes.split(",") if name.strip()]
    shards = Shards(shard_files(rollouts), classes, count_missing_rollouts_as_zero)
    done = write_aggregate(get_session(say=say), shards, output, merge=not no_merge)
    written = [beside(output, "aggregate_metrics.json"), *([] if no_merge else [output])]
    for line in [*done.notes(), f"Written: {', '.join(map(str, written))}."]:
        click.echo(line)
    return 0 if done.rows else 1


@click.command("import")
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

    done = import_gym_run(flow.open_lake(lake, say=say), GymFiles(rollouts, inputs), run_id)
    masked = f", {done.masked} of them masked" if done.masked else ""
    click.echo(f"{run_id}: {done.rollouts} of {done.inputs} planned rollouts{masked}; {done.failures} failed attempts.")
    if done.unjudged:
        click.echo(
            f"The judge failed on {done.unjudged} more, whose answers are stored: eval reverify --judge-failed-only "
            "--verifier NAME judges them."
        )
    if done.left:
        click.echo(f"{done.left} planned rollouts have no result: NeMo Gym's resume_from_cache would do them.")
    for path, length in done.torn.items():
        say(f"'{path}' ends in the middle of a line: its last {length} bytes were left out.")
    return 0


@click.command()
@click.option("--run-id", metavar="ID", help="Name of the run; without it, all runs of the lake.")
@options.lake
@options.as_json
def status(run_id: str | None, lake: str, as_json: bool) -> int:
    """Show where a run stands, also while another process works on it; or which runs there are."""
    from gym_spark import flow
    from gym_spark.cli.standing import run_lines, standing_lines
    from gym_spark.standing import run_standing
    from gym_spark.tables.runs import get_run, list_runs

    place = flow.open_lake(lake, say=say, to_write=False)
    if run_id is None:
        runs = list_runs(place)
        click.echo(json.dumps(runs) if as_json else "\n".join(run_lines(runs)))
        return 0
    standing = run_standing(place, get_run(place, run_id))
    click.echo(standing.to_json() if as_json else "\n".join(standing_lines(standing)))
    return 0


@click.command()
@options.run_id
@options.lake
@options.verification_id
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def export(run_id: str, lake: str, verification_id: str | None, output: Path, force: bool) -> int:
    """Write a run's rollouts and verdicts as JSON Lines."""
    if output.exists() and not force:
        raise ConfigError(f"The file '{output}' exists; choose another --output, or replace it with --force.")
    from gym_spark import flow, reporting
    from gym_spark.reverify import verification_of
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=say, to_write=False)
    record, _ = verification_of(place, get_run(place, run_id), verification_id)
    written = reporting.export_rows(place, record, output)
    click.echo(f"{written} rows in {output}.")
    return 0
