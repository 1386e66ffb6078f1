"""`gym-spark eval`: the stages that do something. Each command parses, makes one call, and gives an exit code.

`flow` brings pyspark with it, so commands import it when they run: `--help` and mistakes in the flags stay fast.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from gym_spark.cli import options
from gym_spark.cli.showing import exit_code, say, show
from gym_spark.config import EndpointSpec, JsonObject, PartSpec, RunSpec, validate
from gym_spark.errors import ConfigError
from gym_spark.layers import merge, parse_overrides
from gym_spark.prepare.catalog import find_benchmark, search_path
from gym_spark.prepare.prompts import read_prompt_config
from gym_spark.resolve import Evaluation, resolve_run
from gym_spark.rollout.share import Share, parse_share
from gym_spark.verify.base import load_verifier

if TYPE_CHECKING:
    from gym_spark.results.run_profile import RunProfile


@click.command()
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
    stored = publish(flow.open_lake(lake, say=say), drafted)
    again = f", {stored.duplicates} duplicates" if stored.duplicates else ""
    click.echo(f"{stored.benchmark}: {stored.tasks} tasks, shards: {stored.shards}{again}, version {stored.version}.")
    return 0


@click.command()
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
        from gym_spark.connection import check_settings

        check_settings(evaluation.spec)
        resolved = evaluation.spec.model_dump(mode="json")
        click.echo(json.dumps(resolved) if as_json else yaml.safe_dump(resolved, sort_keys=False).rstrip())
        return 0
    profile = _run(evaluation, lake, share, resume=resume, preflight=not no_preflight, sources=sources)
    return show(profile, lake, as_json=as_json, strict=strict, samples=samples)


@click.command()
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
    return exit_code(profile, strict=False)


@click.command()
@options.run_id
@options.lake
def verify(run_id: str, lake: str) -> int:
    """Judge the stored rollouts that have no verdict."""
    from gym_spark import flow
    from gym_spark.connection import connected_judge
    from gym_spark.tables.runs import get_run

    place = flow.open_lake(lake, say=say)
    record = get_run(place, run_id)
    with connected_judge(record.spec.judge, record.spec.verifier, preflight=True, say=say) as judge:
        flow.verify(place, record, judge)
    click.echo(f"{run_id}: every stored rollout is judged by {record.verification_id}.")
    return 0


@click.command()
@options.run_id
@options.lake
@click.option("--verifier", metavar="NAME", help="Verifier, by name or module:Class; the run's own unless given.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set verifier.params.NAME, or judge.NAME (judge={} is the small local model); repeatable.",
)
@options.verification_id
@click.option("--tasks", metavar="IDS", help="Judge only these tasks: ids by commas, or @FILE with one on each line.")
@click.option(
    "--where", metavar="SQL", help="Judge only rollouts for which this holds, over columns of rollouts and metadata."
)
@click.option("--judge-failed-only", is_flag=True, help="Judge again what the judge failed on, and nothing else.")
@click.option(
    "--retry",
    metavar="VERDICTS",
    help="Judge again what has such a verdict (judge_failed, verify_timeout, verifier_error, invalid_judge_response; "
    "by commas); with --resume also what has none.",
)
@click.option("--resume", is_flag=True, help="Complete a verification that exists.")
@click.option("--force", is_flag=True, help="Judge although the verifier needs a live session; marked as unsafe.")
@options.shards
@options.judging
@options.no_preflight
@options.as_json
def reverify(
    run_id: str,
    lake: str,
    verifier: str | None,
    overrides: tuple[str, ...],
    verification_id: str | None,
    tasks: str | None,
    where: str | None,
    judge_failed_only: bool,
    retry: str | None,
    resume: bool,
    force: bool,
    shards: str,
    no_preflight: bool,
    as_json: bool,
    **fields: Any,
) -> int:
    """Judge stored rollouts once more, with another verifier or other parameters; asks no model for an answer."""
    params, judge_fields = _verifier_params(overrides)
    given = options.spec_fields(fields)
    if "judge" in given:
        judge_fields = merge(judge_fields or {}, given["judge"])
    share, ids = parse_share(shards), _task_ids(tasks)
    if verifier is not None:
        load_verifier(verifier, params)  # a mistake is told before Spark starts
    from gym_spark import flow
    from gym_spark.cli.standing import change_lines
    from gym_spark.reverify import own_verifier, reverify
    from gym_spark.selection import Selection, parse_retry
    from gym_spark.tables.runs import get_run

    if judge_failed_only and (retry is not None or resume):
        raise ConfigError("--judge-failed-only judges nothing else; leave --retry and --resume out.")
    again = ("judge_failed",) if judge_failed_only else parse_retry(retry)

    place = flow.open_lake(lake, say=say)
    record = get_run(place, run_id)
    judge = record.spec.judge
    if judge_fields is not None:
        known = {} if judge is None else judge.model_dump(mode="json", exclude_unset=True)
        judge = validate(EndpointSpec, merge(known, judge_fields), "the judge")
    chosen = own_verifier(record) if verifier is None else PartSpec(name=verifier)
    if judge_fields is not None and not load_verifier(chosen.name, merge(chosen.params, params)).needs_judge:
        raise ConfigError(f"The verifier '{chosen.name}' asks no model; leave the judge's settings out.")
    done = reverify(
        place,
        record,
        chosen.model_copy(update={"params": merge(chosen.params, params)}),
        verification_id=verification_id,
        selection=Selection(ids, where, again),
        resume=resume,
        force=force,
        share=share,
        sandbox=given.get("sandbox", "off"),
        judge=judge,
        preflight=not no_preflight,
        say=say,
    )
    click.echo(done.to_json() if as_json else "\n".join(change_lines(done)))
    # As after a run: it falls short where nothing came of it.
    return 1 if done.judged and "scored" not in done.change.verdicts else 0


def _verifier_params(overrides: tuple[str, ...]) -> tuple[JsonObject, JsonObject | None]:
    """Return parameters of the verifier, and fields of the judge's endpoint; None where nothing names a judge."""
    given = parse_overrides(overrides)
    verifier, judge = given.pop("verifier", {}), given.pop("judge", None)
    parts = {"verifier": verifier, "judge": judge or {}}
    parts["verifier.params"] = verifier.get("params", {}) if isinstance(verifier, dict) else {}
    odd = [*given, *(f"verifier.{key}" for key in verifier if key != "params")] if isinstance(verifier, dict) else []
    odd += [name for name, value in parts.items() if not isinstance(value, dict)]
    if odd:
        hint = "" if "." in odd[0] or odd[0] in parts else f" (is it verifier.params.{odd[0]}?)"
        raise ConfigError(f"--set takes verifier.params.NAME=VALUE or judge.NAME=VALUE here, not '{odd[0]}'{hint}.")
    return parts["verifier.params"], judge


def _task_ids(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    if text.startswith("@"):
        try:
            ids = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--tasks cannot read '{text[1:]}' ({error}).") from error
    else:
        ids = text.split(",")
    found = tuple(filter(None, map(str.strip, ids)))
    if not found:
        raise ConfigError("--tasks names no task; give ids by commas, or @FILE with one on each line.")
    return found


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

    spec = get_run(flow.open_lake(lake, settings, say=say), run_id).spec
    if spec.imported is not None:
        raise ConfigError(f"The run '{run_id}' was imported; it cannot be resumed here.")
    if forgotten := spec.spark.keys() - (settings or {}).keys():
        say(f"Spark has started without the run's own settings ({', '.join(sorted(forgotten))}); --set gives them.")
    return spec


def _run(evaluation: Evaluation, lake: str, share: Share, **how: Any) -> RunProfile:
    """Run an evaluation with live progress; `how` are keywords of `flow.run`."""
    from gym_spark import flow
    from gym_spark.cli.render import ProgressLine

    return flow.run(evaluation.spec, evaluation.benchmark, lake, share=share, show=ProgressLine(), say=say, **how)
