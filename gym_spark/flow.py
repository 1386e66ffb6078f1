"""The verbs: prepare, collect, verify, profile, and run, which is all of them in order. They own the actions.

Each takes a specification or a run id and the lake, and leaves its result there; what it returns is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec, RunSpec
from gym_spark.connection import Connect, Say, connected
from gym_spark.interchange.gym.profiling import (
    ProfileFiles,
    imported_samples,
    profile_rows,
    task_samples,
    write_profile,
)
from gym_spark.interchange.row_files import exported_rows, write_lines
from gym_spark.ledger import plan_run, recorded
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.prompts import PromptSpec
from gym_spark.prepare.publish import BenchmarkVersion, find_version, publish, version_of
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import PreparedTasks, build_tasks
from gym_spark.results.agent_numbers import outcome_rows
from gym_spark.results.outcomes import outcomes
from gym_spark.results.reward_profile import task_profiles
from gym_spark.results.run_profile import RunProfile, profile_numbers
from gym_spark.results.samples import Sample, sample_of, sampled
from gym_spark.rollout.adoption import adopt_leftovers, claimed, in_share, is_at_work
from gym_spark.rollout.collect import run_collect_job, worker_count
from gym_spark.rollout.place import staging_of
from gym_spark.rollout.plan import chosen_tasks, first_attempts, pending_rollouts, planned_rollouts
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.share import WHOLE, Share
from gym_spark.rollout.spending import estimate_of, in_words, shared_out, spent_before
from gym_spark.rollout.stage import task_slots
from gym_spark.rollout.units import UNIT_SECONDS, run_units
from gym_spark.rollout.worker import CollectJob
from gym_spark.session import get_session
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord, find_run
from gym_spark.tables.schemas import INPUTS, METRICS, ROLLOUTS, TASK_PROFILES, TASKS, VERIFICATIONS
from gym_spark.verify.stage import unverified, verdicts

#: Wall-clock limit of one verdict in a child process.
VERIFY_LIMIT_S: Final = 10.0

Show = Callable[[Progress], None]


def no_progress(progress: Progress) -> None:
    """Show nothing, for a program that nobody watches."""


def no_mean() -> float | None:
    """Verify nothing, so there is no mean reward yet."""
    return None


def open_lake(lake: str | Lake, settings: Mapping[str, str] | None = None, *, say: Say = print) -> Lake:
    """Return the lake at a root, on the running Spark session or on one that is built now with `settings`."""
    return lake if isinstance(lake, Lake) else Lake(get_session(settings, say=say), lake)


def draft(
    benchmark: Benchmark,
    *,
    sources: Sequence[Path] = (),
    prompt: PromptSpec | None = None,
    num_shards: int | None = None,
    drop_duplicates: bool = False,
) -> PreparedTasks:
    """Build a benchmark's tasks in memory; no Spark, nothing is written.

    Args:
        benchmark: The benchmark (`prepare.catalog.find_benchmark`).
        sources: Local files to read in place of the benchmark's address.
        prompt: Replaces the benchmark's own prompt.
        num_shards: Shards to make, in place of the number that follows from the size.
        drop_duplicates: Leave byte-equal source rows out.

    Raises:
        ConfigError: a source, script, prompt or row is wrong.
    """
    return build_tasks(
        benchmark,
        resolve_source(benchmark.spec.source, sources),
        prompt=prompt,
        num_shards=num_shards,
        drop_duplicates=drop_duplicates,
    )


def prepare(benchmark: Benchmark, lake: str | Lake, *, sources: Sequence[Path] = ()) -> BenchmarkVersion:
    """Build a benchmark's tasks and store them as one version; the lake is opened only when they are built."""
    drafted = draft(benchmark, sources=sources)
    return publish(open_lake(lake), drafted)


def tasks_of(lake: Lake, record: RunRecord) -> DataFrame:
    """Return the rows of `tasks` that the run is about: all of its dataset version."""
    return lake.read(TASKS, benchmark=record.spec.benchmark, version=str(record.spec.dataset_version))


def planned(lake: Lake, record: RunRecord, *more: str) -> DataFrame:
    """Return the plan, one row per planned rollout: `task_id`, `task_index`, `shard`, `rollout_index`.

    And `more` columns of `tasks`, or of `inputs` where the run was imported.
    """
    if record.spec.imported is not None:
        rows = lake.read(INPUTS, run_id=record.spec.run_id).withColumn("shard", F.lit(0))
        return rows.select("task_id", "task_index", "shard", "rollout_index", *more)
    tasks = tasks_of(lake, record).select("task_id", "task_index", "shard", *more)
    if record.spec.limit is not None:
        # Spark sorts what is picked from in one place, so it is ids only.
        ids = chosen_tasks(tasks.select("task_id"), count=record.planned_tasks, seed=record.spec.limit_seed)
        tasks = tasks.join(ids, on="task_id", how="left_semi")
    return planned_rollouts(tasks, num_repeats=record.spec.num_repeats)


def collect(
    lake: Lake,
    record: RunRecord,
    connect: Connect,
    *,
    share: Share = WHOLE,
    show: Show = no_progress,
    say: Say = print,
    follow: Callable[[], float | None] = no_mean,
) -> Progress:
    """Do the planned rollouts that are not stored yet; each becomes one row of `rollouts`, failures included.

    Args:
        lake: Where they are stored.
        record: The run.
        connect: Returns the endpoint with its addresses; called only if there is something to do.
        share: The part of the run to do.
        show: Told where the run stands, about twice a second.
        say: Told how much is stored already.
        follow: Called after each adoption of finished rollouts; returns the mean reward so far.
    """
    spec = record.spec
    with claimed(staging_of(lake, spec.run_id), share) as (staging, beat):
        adopt_leftovers(lake, spec.run_id, staging, share, say)
        todo, total, whole = _todo(lake, record, share)
        if total < whole:
            sent = "" if total else "; no request was sent"
            say(f"{whole - total} of {whole} planned rollouts are stored already, or failed for good{sent}.")
        if not total:
            return Progress(total=0, elapsed_s=0.0)
        beat.total = total
        job = _job(lake, record, connect(), share, todo, total, say)
        done, reached = run_collect_job(
            lake, todo, job, staging=staging, share=share, beat=beat, show=show, follow=follow
        )
        if done.wasted:
            say(f"{done.wasted} requests were sent in vain: a Spark task died, and their rollouts were done again.")
        if reached or done.stopped is not None:
            return done
        say(
            f"Workers cannot write to '{staging.uri}': rollouts are stored every {UNIT_SECONDS:g} s, not every "
            "second. Set GYM_SPARK_STAGING to a folder that driver and workers can reach from Python."
        )
        return run_units(lake, todo, job, share=share, beat=beat, show=show, follow=follow)


def _todo(lake: Lake, record: RunRecord, share: Share) -> tuple[DataFrame, int, int]:
    """Return the rollouts of a share that are to do (`PENDING_SCHEMA`), how many they are, and how many are planned."""
    run_id, prompts = record.spec.run_id, "responses_create_params"
    mine = planned(lake, record).where(in_share(share))
    whole = record.planned_rollouts if share == WHOLE else mine.count()
    if lake.is_empty(ROLLOUTS, run_id=run_id):
        # Nothing to look up or to count: the first request leaves the earlier.
        return first_attempts(planned(lake, record, prompts).where(in_share(share))), whole, whole
    # As of now: what is to do must stay the same while the job stores what it has done.
    todo = pending_rollouts(mine, lake.read_as_of_now(ROLLOUTS, run_id=run_id))
    return todo.join(tasks_of(lake, record).select("task_id", prompts), on="task_id"), todo.count(), whole


def _job(
    lake: Lake,
    record: RunRecord,
    endpoint: EndpointSpec,
    share: Share,
    todo: DataFrame,
    total: int,
    say: Say,
) -> CollectJob:
    """Settle what the workers need to know; says what the run may cost where that is asked for."""
    spec = record.spec
    endpoint = shared_out(endpoint, share)
    money, tokens = 0.0, 0
    if endpoint.budget is not None:
        money, tokens = spent_before(lake.read(ROLLOUTS, run_id=spec.run_id).where(in_share(share)), endpoint)
    if endpoint.budget is not None or endpoint.prices is not None:
        bound = spec.sampling.max_output_tokens
        say(f"Estimate: {in_words(estimate_of(todo, endpoint, rollouts=total, max_output_tokens=bound))}.")
    return CollectJob(
        run_id=spec.run_id,
        endpoint=endpoint,
        sampling=spec.sampling,
        harness=spec.harness,
        workers=worker_count(task_slots(lake.spark), endpoint.concurrency, total),
        spent_money=money,
        spent_tokens=tokens,
    )


def verify(lake: Lake, record: RunRecord) -> None:
    """Judge the run's stored rollouts that this verification has not judged yet."""
    spec = record.spec
    stored = lake.read(VERIFICATIONS, run_id=spec.run_id, verification_id=record.verification_id)
    todo = unverified(lake.read(ROLLOUTS, run_id=spec.run_id), tasks_of(lake, record), stored)
    lake.append(
        VERIFICATIONS,
        verdicts(
            todo,
            run_id=spec.run_id,
            verification_id=record.verification_id,
            verifier=spec.verifier,
            limit_s=VERIFY_LIMIT_S,
        ),
    )


def tidy(lake: Lake, record: RunRecord) -> None:
    """Compact what collection and verification wrote a little at a time, unless another job still adds to it."""
    run_id = record.spec.run_id
    if not is_at_work(staging_of(lake, run_id)):
        lake.compact(ROLLOUTS, run_id=run_id)
        lake.compact(VERIFICATIONS, run_id=run_id)


def profile(lake: Lake, record: RunRecord) -> RunProfile:
    """Compute the run's numbers from what is stored, and store them in `task_profiles` and `metrics`."""
    run_id, verification_id = record.spec.run_id, record.verification_id
    here = {"run_id": run_id, "verification_id": verification_id}
    frame = outcomes(planned(lake, record), lake.read(ROLLOUTS, run_id=run_id), lake.read(VERIFICATIONS, **here))
    lake.replace(TASK_PROFILES, _stamped(task_profiles(frame), here), **here)
    covered, numbers = profile_numbers(frame, lake.read(TASK_PROFILES, **here), max_k=record.spec.num_repeats)
    lake.replace(METRICS, lake.frame(METRICS, [asdict(number) | here for number in numbers]), **here)
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
    )


def write_profile_files(lake: Lake, record: RunRecord, files: ProfileFiles, *, allow_partial: bool = False) -> None:
    """Write the run's numbers as NeMo Gym's files.

    Args:
        lake: The lake.
        record: The run.
        files: Where to.
        allow_partial: Also of a run that misses rollouts.

    Raises:
        ConfigError: rollouts are missing, or a file cannot be written.
    """
    spec, here = record.spec, {"run_id": record.spec.run_id}
    rollouts = lake.read(ROLLOUTS, **here)
    judged = lake.read(VERIFICATIONS, verification_id=record.verification_id, **here)
    options = spec.imported or {}
    if spec.imported is not None:
        plan, samples = planned(lake, record, "label"), imported_samples(lake.read(INPUTS, **here))
    else:
        plan = planned(lake, record).withColumn("label", F.lit(spec.harness.name))
        samples = task_samples(tasks_of(lake, record), spec.harness.name)
    with profile_rows(
        outcome_rows(plan, rollouts, judged),
        record.planned_rollouts,
        fan_out=options.get("fan_out", False),
        text_ids=spec.imported is not None,
    ) as passes:
        write_profile(files, passes, samples, planned=record.planned_rollouts, allow_partial=allow_partial)


def mean_so_far(lake: Lake, record: RunRecord) -> float | None:
    """Verify what is stored, and return the mean reward of all that is verified; for the progress."""
    verify(lake, record)
    judged = lake.read(VERIFICATIONS, run_id=record.spec.run_id, verification_id=record.verification_id)
    row = judged.agg(F.avg("reward").alias("mean")).first()
    return None if row is None else row["mean"]


def run(
    spec: RunSpec,
    benchmark: Benchmark,
    lake: str | Lake,
    *,
    sources: Sequence[Path] = (),
    resume: bool = False,
    share: Share = WHOLE,
    preflight: bool = True,
    judge: bool = True,
    show: Show = no_progress,
    say: Say = print,
) -> RunProfile:
    """Run one evaluation from end to end; a benchmark that the lake does not have is prepared first.

    Args:
        spec: The run (`resolve.resolve_run`).
        benchmark: Its benchmark.
        lake: The lake, or its root.
        sources: Local files to prepare the benchmark from.
        resume: Continue the run if it exists.
        share: The part of the run to do, of several parallel jobs.
        preflight: Send one tiny request first, to check key and model.
        judge: Verify what was collected; without, the rollouts are stored and nothing is scored.
        show: Told where the run stands, about twice a second.
        say: Told what is going on.

    Raises:
        ConfigError: something the user gave is wrong; no rollout was paid for.
        StorageError: Spark or the storage gave up; what was finished is stored.
    """
    drafted = draft(benchmark, sources=sources) if sources else None
    with connected(spec, resume=resume, preflight=preflight, say=say) as (spec, connect):
        place = open_lake(lake, spec.spark, say=say)
        stored = find_run(place, spec.run_id)
        if stored is None:
            connect()
        known = find_version(place, spec.benchmark, spec.dataset_version)
        if drafted is None and known is None:
            drafted = draft(benchmark)
        version = known if drafted is None else version_of(drafted)
        record = plan_run(place, spec, version, stored, resume=resume, share=share)
        # Only now is anything written: a run that is refused leaves the lake as it was.
        if drafted is not None and publish(place, drafted) != known:
            say(f"Prepared {spec.benchmark}: {drafted.table.num_rows} tasks, version {drafted.version}.")
        with recorded(place, record) as end:
            follow = partial(mean_so_far, place, record) if judge else no_mean
            done = collect(place, record, connect, share=share, show=show, say=say, follow=follow)
            if judge:
                say("Verifying what is new, and computing the numbers.")
                verify(place, record)
            tidy(place, record)
            return end(profile(place, record), done.stopped)


def _stamped(frame: DataFrame, constants: Mapping[str, str]) -> DataFrame:
    return frame.withColumns({name: F.lit(value) for name, value in constants.items()})


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
    return write_lines(exported_rows(lake.read(ROLLOUTS, **here), tasks_of(lake, record), judged), target)
