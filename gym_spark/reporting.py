"""What a stored run comes to: its numbers, as tables and as files, a few of its rollouts, all of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import JsonObject, differences
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.aggregating import OwnNumbers, write_entries
from gym_spark.interchange.gym.profiling import (
    ProfileFiles,
    task_sample,
    with_own,
    write_profile,
)
from gym_spark.interchange.row_files import check_targets, export_partitions, exported_rows, write_lines
from gym_spark.planning import plan_of, tasks_of
from gym_spark.prepare.catalog import Benchmark
from gym_spark.results.bootstrap import bootstrap_intervals, with_intervals
from gym_spark.results.costs import cost_numbers
from gym_spark.results.curves import subsets_by
from gym_spark.results.custom import (
    ROLLOUT_COLUMNS,
    CustomMetrics,
    by_task,
    custom_metrics,
    find_hook,
    headline_names,
    metric_rows,
)
from gym_spark.results.group_entries import Groups
from gym_spark.results.group_scores import group_scores
from gym_spark.results.outcomes import kept, outcomes, sources
from gym_spark.results.passes import counts_of, measured_rows, passed, profiles_of
from gym_spark.results.run_profile import Bootstrap, RunProfile, custom_rows, profile_numbers
from gym_spark.results.samples import Sample, sample_of, sampled
from gym_spark.results.union import Overlap, union_of
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord, find_run, get_run
from gym_spark.tables.schemas import METRICS, ROLLOUTS, TASK_PROFILES, VERIFICATIONS


def profile(
    lake: Lake,
    record: RunRecord,
    benchmark: Benchmark | None = None,
    *,
    by: Sequence[str] = (),
    bootstrap: Bootstrap | None = None,
    files: ProfileFiles | None = None,
    allow_partial: bool = False,
) -> RunProfile:
    """Compute the run's numbers from what is stored, and store them in `task_profiles` and `metrics`.

    Args:
        lake: The lake.
        record: The run.
        benchmark: Its benchmark, for metrics of its own; None leaves them out.
        by: Fields of the tasks by which scores are grouped.
        bootstrap: Resample the intervals of mean reward and pass@k in place of Student's.
        files: Also write NeMo Gym's files here, and the agents' numbers in them into `metrics`, with pass@k and
            majority@k in NeMo Gym's sense.
        allow_partial: Write them also of a run that misses rollouts.

    Raises:
        ConfigError: no task has such a field, a metric of the benchmark's own fails, rollouts are missing, or a file
            cannot be written.
    """
    if files is not None:
        check_targets(files.groups, files.agents, files.repeats)
    run_id, verification_id = record.spec.run_id, record.verification_id
    here = {"run_id": run_id, "verification_id": verification_id}
    spec, policy = record.spec, record.spec.graded_with_exception
    own, custom = _own_metrics(lake, record, benchmark)
    groups = None if files is None else groups_of(record)
    plan = _labelled(lake, record) if files is None else _with_texts(lake, record, custom)
    with kept(passed(_sources(lake, record, plan), policy, groups)) as passes:
        lake.replace(TASK_PROFILES, _stamped(profiles_of(passes), here), **here)
        profiles, counts = profiles_of(passes), counts_of(passes)
        covered, numbers = profile_numbers(counts, profiles, max_k=spec.num_repeats, exceptions_count_as=policy)
        if bootstrap is not None:
            how = {"replicates": bootstrap.replicates, "seed": bootstrap.seed}
            numbers = with_intervals(numbers, bootstrap_intervals(profiles, max_k=spec.num_repeats, **how))
        for name in by:
            numbers += group_scores(profiles, tasks_of(lake, record), name)
        numbers += cost_numbers(counts, covered, spec.endpoint.prices)
        numbers += custom_rows(own.overall, covered)
        measured: list[JsonObject] = []
        if files is not None:
            count = record.planned_rollouts
            measured = write_profile(files, passes, custom, planned=count, allow_partial=allow_partial)
    rows = [*(asdict(number) for number in numbers), *measured]
    lake.replace(METRICS, lake.frame(METRICS, [row | here for row in rows]), **here)
    return RunProfile(
        run_id=run_id,
        benchmark=record.spec.benchmark,
        dataset_version=record.spec.dataset_version or "",
        model=record.spec.endpoint.model,
        verification_id=verification_id,
        num_repeats=record.spec.num_repeats,
        status=record.status,
        stopped=None,
        coverage=covered,
        metrics=numbers,
        key_metrics=headline_names(_headline(benchmark), [number.name for number in numbers]),
        bootstrap=bootstrap,
        curves=_curves(measured),
    )


def _curves(measured: Sequence[JsonObject]) -> dict[str, float]:
    """Return pass@k and majority@k of a run's one agent; of several there is no one curve."""
    if len({row["label"] for row in measured}) != 1:
        return {}
    return {row["name"]: row["value"] for row in measured if row["name"].startswith(("pass@", "majority@"))}


def groups_of(record: RunRecord) -> Groups:
    """Return how the field's metrics group a run's rollouts."""
    imported = record.spec.imported
    return Groups(fan_out=bool(imported and imported.get("fan_out")), text_ids=imported is not None)


def _labelled(lake: Lake, record: RunRecord, *more: str) -> DataFrame:
    """Return a run's plan; the label of its rollouts is the agent, or the harness."""
    if record.spec.imported is not None:
        return plan_of(lake, record, "label", *more)
    return plan_of(lake, record, *more).withColumn("label", F.lit(record.spec.harness.name))


def _with_texts(lake: Lake, record: RunRecord, custom: Mapping[str, CustomMetrics]) -> DataFrame:
    """Return a run's plan with what NeMo Gym's group entries tell of the tasks."""
    if record.spec.imported is not None:
        plan = _labelled(lake, record, "input").withColumnRenamed("input", "sample")
    else:
        plan = _labelled(lake, record, "responses_create_params", "verifier_inputs")
        plan = plan.withColumn("sample", task_sample(record.spec.harness.name))
    return with_own(plan, by_task(custom, fan_out=groups_of(record).fan_out))


def _sources(lake: Lake, record: RunRecord, plan: DataFrame, judged: DataFrame | None = None) -> DataFrame:
    here = {"run_id": record.spec.run_id}
    if judged is None:
        judged = lake.read(VERIFICATIONS, verification_id=record.verification_id, **here)
    return sources(plan, lake.read(ROLLOUTS, **here), judged, count=record.planned_rollouts)


def run_sources(lake: Lake, record: RunRecord, judged: DataFrame | None = None) -> DataFrame:
    """Bring a run's plan together with what is stored (`results.outcomes.sources`).

    Args:
        lake: The lake.
        record: The run.
        judged: The verdicts that count; None: those that its verification has.
    """
    return _sources(lake, record, _labelled(lake, record), judged)


def run_outcomes(lake: Lake, record: RunRecord, judged: DataFrame | None = None) -> DataFrame:
    """Return what became of each planned rollout (`results.outcomes`); arguments as for :func:`run_sources`."""
    return outcomes(run_sources(lake, record, judged), record.spec.graded_with_exception)


def _custom_of(lake: Lake, record: RunRecord, benchmark: Benchmark | None, frame: DataFrame) -> CustomMetrics:
    """Return what the benchmark's own metrics are, if it has any."""
    hook = find_hook(benchmark) if benchmark is not None else None
    if benchmark is None or hook is None:
        return CustomMetrics()
    return custom_metrics(benchmark, hook, metric_rows(frame, tasks_of(lake, record)))


def _customs(lake: Lake, record: RunRecord, benchmark: Benchmark | None, frame: DataFrame) -> dict[str, CustomMetrics]:
    """Return the same of each label alone."""
    return {
        label: _custom_of(lake, record, benchmark, frame.where(F.col("label") == label)) for label in _labels(record)
    }


def _own_metrics(
    lake: Lake, record: RunRecord, benchmark: Benchmark | None
) -> tuple[CustomMetrics, dict[str, CustomMetrics]]:
    """Return the benchmark's own metrics of a run, and of each of its labels."""
    if benchmark is None or find_hook(benchmark) is None:
        return CustomMetrics(), {}
    labels = _labels(record)
    with kept(run_outcomes(lake, record)) as frame:
        own = _custom_of(lake, record, benchmark, frame)
        return own, {labels[0]: own} if len(labels) == 1 else _customs(lake, record, benchmark, frame)


def _headline(benchmark: Benchmark | None) -> tuple[str, ...]:
    return benchmark.spec.key_metrics if benchmark is not None else ()


def runs_named(lakes: Sequence[Lake], run_ids: Sequence[str]) -> list[tuple[Lake, RunRecord]]:
    """Return the runs of these names, from every lake that has one of the name.

    Raises:
        ConfigError: no lake has such a run, or a lake has none of them.
    """
    found: list[tuple[Lake, RunRecord]] = []
    for run_id in run_ids:
        records = [(lake, find_run(lake, run_id)) for lake in lakes]
        here = [(lake, record) for lake, record in records if record is not None]
        found += here or [(lakes[0], get_run(lakes[0], run_id))]
    for lake in lakes:
        if all(lake is not one for one, _ in found):
            raise ConfigError(f"The lake '{lake.root}' has none of the runs named; leave it out.")
    return found


def write_aggregate_of(
    runs: Sequence[tuple[Lake, RunRecord]],
    output: Path,
    benchmark: Benchmark | None = None,
    *,
    by: str | None = None,
) -> Overlap:
    """Write one result of several runs, as NeMo Gym's aggregate file.

    Args:
        runs: The runs, of any lakes.
        output: X.jsonl; the file is X_aggregate_metrics.json beside it.
        benchmark: Their benchmark, for metrics of its own; None leaves them out.
        by: Field of the tasks: pass@k and majority@k of each of its values are told too.

    Raises:
        ConfigError: a run is named twice; the runs were made with different settings (each is named); no task has such
            a field; a metric of the benchmark's own fails; the file cannot be written.
    """
    (lake, first), *others = runs
    names = [f"{record.spec.run_id} in {lake.root}" for lake, record in runs]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ConfigError(f"The run {twice[0]} is named twice; name each once.")
    for _, other in others:
        changed = differences(first.spec.identity_parts(), other.spec.identity_parts())
        if changed:
            raise ConfigError(
                f"The runs '{first.spec.run_id}' and '{other.spec.run_id}' were made with different settings "
                f"({'; '.join(changed)}) and are no one result; aggregate each alone, or compare them."
            )
    # Jobs on several clusters may have filled a lake each under one run id.
    alone = len({record.spec.run_id for _, record in runs}) == len(runs)
    shown = [record.spec.run_id for _, record in runs] if alone else names
    more = ROLLOUT_COLUMNS if by is not None or (benchmark and find_hook(benchmark)) else ()
    frames = [
        measured_rows(run_sources(place, record), record.spec.graded_with_exception, *more) for place, record in runs
    ]
    rows, overlap = union_of(dict(zip(shown, frames, strict=True)))
    labels = {label: label for label in _labels(first)}
    with kept(rows) if more else nullcontext(rows) as frame:
        own = OwnNumbers(
            custom=_customs(lake, first, benchmark, frame),
            key_metrics=_headline(benchmark),
            subsets=_subsets(lake, first, frame, by) if by is not None else {},
        )
        write_entries(frame, overlap.planned, labels, output, own)
    return overlap


def _subsets(lake: Lake, record: RunRecord, frame: DataFrame, by: str) -> dict[str, dict[str, float]]:
    """Return pass@k and majority@k of each value of a field, by label."""
    rows = metric_rows(frame, tasks_of(lake, record), "label")
    found = {label: subsets_by(rows.where(F.col("label") == label), by) for label in _labels(record)}
    if not any(found.values()):
        raise ConfigError(f"No scored task has the field '{by}'; --by takes a field of the tasks' metadata.")
    return found


def _labels(record: RunRecord) -> list[str]:
    imported = record.spec.imported
    return sorted(set(imported["labels"].values())) if imported is not None else [record.spec.harness.name]


def samples(lake: Lake, record: RunRecord, *, count: int) -> list[Sample]:
    """Return a few stored rollouts of the run with their verdicts; the same ones every time."""
    frame = sampled(
        lake.read(ROLLOUTS, run_id=record.spec.run_id),
        tasks_of(lake, record),
        lake.read(VERIFICATIONS, run_id=record.spec.run_id, verification_id=record.verification_id),
        count=count,
    )
    found = (sample_of(row.asDict()) for row in frame.collect())
    return sorted(found, key=lambda sample: (sample.task_id, sample.rollout_index))


def export_rows(lake: Lake, record: RunRecord, target: Path) -> int:
    """Write the run's rollouts with their tasks and verdicts as JSON Lines; returns how many lines."""
    here = {"run_id": record.spec.run_id}
    judged = lake.read(VERIFICATIONS, verification_id=record.verification_id, **here)
    stored = lake.read(ROLLOUTS, **here)
    rows = exported_rows(stored, tasks_of(lake, record), judged, partitions=export_partitions(stored))
    return write_lines(rows, target)


def _stamped(frame: DataFrame, constants: Mapping[str, str]) -> DataFrame:
    return frame.withColumns({name: F.lit(value) for name, value in constants.items()})
