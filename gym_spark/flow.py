"""The verbs: prepare, collect, verify, profile, and run, which is all of them in order. They own the actions.

Each takes a specification or a run id and the lake, and leaves its result there; what it returns is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec, RunSpec
from gym_spark.connection import Connect, Say, connected
from gym_spark.endpoint.budget import Spent
from gym_spark.errors import GymSparkError
from gym_spark.judging import judge_and_store
from gym_spark.ledger import plan_run, recorded
from gym_spark.planning import asked, planned, tasks_of
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.prompts import PromptSpec
from gym_spark.prepare.publish import BenchmarkVersion, find_version, publish, version_of
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import PreparedTasks, build_tasks
from gym_spark.reporting import profile
from gym_spark.results.run_profile import RunProfile
from gym_spark.rollout.adoption import adopt_leftovers, in_share
from gym_spark.rollout.claims import check_claim, claimed, is_at_work
from gym_spark.rollout.collect import run_collect_job, worker_count
from gym_spark.rollout.place import forget_place, note_place, staging_of
from gym_spark.rollout.plan import first_attempts, pending_rollouts
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.share import WHOLE, Share
from gym_spark.rollout.spending import estimate_of, in_words, shared_out, spent_before
from gym_spark.rollout.stage import task_slots
from gym_spark.rollout.units import UNIT_SECONDS, run_units
from gym_spark.rollout.worker import CollectJob
from gym_spark.session import get_session, speculates
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import SPARK_ERRORS, Lake
from gym_spark.tables.location import check_writable, location_of
from gym_spark.tables.runs import RunRecord, find_run
from gym_spark.tables.schemas import ROLLOUTS, VERIFICATIONS
from gym_spark.verify.stage import newest, unverified

Show = Callable[[Progress], None]


def no_progress(progress: Progress) -> None:
    """Show nothing, for a program that nobody watches."""


def no_mean() -> float | None:
    """Verify nothing, so there is no mean reward yet."""
    return None


def open_lake(
    lake: str | Lake, settings: Mapping[str, str] | None = None, *, say: Say = print, to_write: bool = True
) -> Lake:
    """Return the lake at a root, on the running Spark session or on one that is built now with `settings`.

    Raises:
        ConfigError: it cannot be written, and `to_write` says that it shall be.
    """
    if isinstance(lake, Lake):
        return lake
    if to_write:
        check_writable(location_of(lake))
    return Lake(get_session(settings, say=say), lake)


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
    folder = staging_of(lake, spec.run_id)
    note_place(lake, spec.run_id)
    with claimed(folder, share) as (staging, beat):
        adopt_leftovers(lake, spec.run_id, staging, share, say)
        todo, total, whole = _todo(lake, record, share)
        if total < whole:
            sent = "" if total else "; no request was sent"
            say(f"{whole - total} of {whole} planned rollouts are stored already, or failed for good{sent}.")
        if not total:
            return Progress(total=0, elapsed_s=0.0)
        beat.total = total
        job = _job(lake, record, connect(), share, todo, total, say)
        check_claim(folder, staging, beat)
        done, reached = run_collect_job(
            lake, todo, job, staging=staging, share=share, beat=beat, show=show, follow=follow, say=say
        )
        if done.wasted:
            say(f"{done.wasted} requests were sent in vain: a Spark task died, and their rollouts were done again.")
        if reached or done.stopped is not None:
            return done
        say(
            f"Workers cannot write to '{staging.uri}': rollouts are stored every {UNIT_SECONDS:g} s, not every "
            "second. Set GYM_SPARK_STAGING to a folder that driver and workers can reach from Python."
        )
        if speculates(lake.spark):
            say("Spark's speculation is on: what is slow is done, and paid for, twice. Set spark.speculation=false.")
        return run_units(lake, todo, job, share=share, beat=beat, show=show, follow=follow)


def _todo(lake: Lake, record: RunRecord, share: Share) -> tuple[DataFrame, int, int]:
    """Return the rollouts of a share that are to do (`PENDING_SCHEMA`), how many they are, and how many are planned."""
    run_id, prompts = record.spec.run_id, "responses_create_params"
    if lake.is_empty(ROLLOUTS, run_id=run_id):
        # Nothing to look up, and for a whole run nothing to count: the first request leaves the earlier.
        fresh = first_attempts(planned(lake, record, prompts).where(in_share(share)))
        count = record.planned_rollouts if share == WHOLE else planned(lake, record).where(in_share(share)).count()
        return fresh, count, count
    mine = planned(lake, record).where(in_share(share))
    whole = record.planned_rollouts if share == WHOLE else mine.count()
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
    spent = Spent()
    # A budget is kept by one worker that knows what is spent: several would each start a rollout on their share.
    slots = 1
    if endpoint.budget is None:
        slots = task_slots(lake.spark)
    else:
        spent = spent_before(lake.read(ROLLOUTS, run_id=spec.run_id).where(in_share(share)), endpoint)
    if endpoint.budget is not None or endpoint.prices is not None:
        bound = spec.sampling.max_output_tokens
        say(f"Estimate: {in_words(estimate_of(todo, endpoint, rollouts=total, max_output_tokens=bound))}.")
    return CollectJob(
        run_id=spec.run_id,
        endpoint=endpoint,
        sampling=spec.sampling,
        harness=spec.harness,
        rollout_timeout_s=spec.rollout_timeout_s,
        workers=worker_count(slots, endpoint.concurrency, total),
        spent=spent,
    )


def verify(lake: Lake, record: RunRecord, judge: EndpointSpec | None = None, share: Share = WHOLE) -> None:
    """Judge the stored rollouts of a share that this verification has not judged yet.

    Args:
        lake: Where they are.
        record: The run.
        judge: Its judge's endpoint with its addresses (`connection.connected`), if its verifier asks one.
        share: The part of the run.
    """
    spec = record.spec
    here = {"run_id": spec.run_id, "verification_id": record.verification_id}
    stored = None if lake.is_empty(VERIFICATIONS, **here) else lake.read(VERIFICATIONS, **here)
    rollouts = lake.read(ROLLOUTS, run_id=spec.run_id).where(in_share(share))
    judge_and_store(
        lake,
        unverified(rollouts, asked(lake, record), stored),
        run_id=spec.run_id,
        verification_id=record.verification_id,
        verifier=spec.verifier,
        sandbox=spec.sandbox,
        judge=judge,
        share=share,
    )


def tidy(lake: Lake, record: RunRecord) -> None:
    """Compact what collection and verification wrote a little at a time, unless another job still adds to it."""
    run_id = record.spec.run_id
    forget_place(lake, run_id)
    if not is_at_work(staging_of(lake, run_id)):
        lake.compact(ROLLOUTS, run_id=run_id)
        lake.compact(VERIFICATIONS, run_id=run_id)


def followed(lake: Lake, record: RunRecord, judge: EndpointSpec | None, share: Share) -> float | None:
    """Do as :func:`mean_so_far` while collection goes on; what fails is done again at its end, and told then."""
    try:
        return mean_so_far(lake, record, judge, share)
    except (GymSparkError, *SPARK_ERRORS):
        return None  # no reason to leave GPUs idle now


def mean_so_far(lake: Lake, record: RunRecord, judge: EndpointSpec | None = None, share: Share = WHOLE) -> float | None:
    """Verify what is stored, and return the mean reward of all that is verified; for the progress."""
    verify(lake, record, judge, share)
    judged = lake.read(VERIFICATIONS, run_id=record.spec.run_id, verification_id=record.verification_id)
    standing, policy = newest(judged, "reward"), record.spec.graded_with_exception
    if policy != "count":
        cut = lake.read(ROLLOUTS, run_id=record.spec.run_id).where("exception_kind IS NOT NULL").select(*ATTEMPT_KEY)
        rest = standing.join(cut, on=list(ATTEMPT_KEY), how="left_anti")
        zeros = standing.join(cut, on=list(ATTEMPT_KEY), how="left_semi").where("reward IS NOT NULL")
        standing = rest.unionByName(zeros.withColumn("reward", F.lit(0.0))) if policy == "zero" else rest
    row = standing.agg(F.avg("reward").alias("mean")).first()
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
    opening = connected(spec, resume=resume, preflight=preflight, say=say, judging=judge)
    with opening as (spec, connect, connect_judge):
        place = open_lake(lake, spec.spark, say=say)
        stored = find_run(place, spec.run_id)
        if stored is None:
            if resume:
                say(f"The lake has no run '{spec.run_id}' yet: it begins now.")
            connect()
        known = find_version(place, spec.benchmark, spec.dataset_version)
        if drafted is None and known is None:
            drafted = draft(benchmark)
        version = known if drafted is None else version_of(drafted)
        record = plan_run(place, spec, version, stored, resume=resume, share=share)
        asks = connect_judge() if judge else None
        # Only now is anything written: a run that is refused leaves the lake as it was.
        if drafted is not None and publish(place, drafted) != known:
            say(f"Prepared {spec.benchmark}: {drafted.table.num_rows} tasks, version {drafted.version}.")
        with recorded(place, record) as end:
            follow = partial(followed, place, record, asks, share) if judge else no_mean
            done = collect(place, record, connect, share=share, show=show, say=say, follow=follow)
            if judge:
                say("Verifying what is new, and computing the numbers.")
                verify(place, record, asks, share)
            tidy(place, record)
            return end(profile(place, record, benchmark), done.stopped)
