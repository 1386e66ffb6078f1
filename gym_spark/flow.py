"""The verbs: prepare, collect, verify, profile, and run, which is all of them in order. They own the actions.

Each takes a specification or a run id and the lake, and leaves its result there; what it returns is small.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec, PartSpec, RunSpec
from gym_spark.endpoint.client import key_from_environment
from gym_spark.endpoint.model_file import model_file
from gym_spark.endpoint.preflight import check_endpoint
from gym_spark.endpoint.serving import local_model_server, local_server_version
from gym_spark.errors import ConfigError
from gym_spark.harness.base import load_harness
from gym_spark.interchange.row_files import exported_rows, write_lines
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.limits import limit_count
from gym_spark.prepare.prompts import PromptSpec
from gym_spark.prepare.publish import BenchmarkVersion, find_version, get_version, publish
from gym_spark.prepare.sources import resolve_source
from gym_spark.prepare.tasks import build_tasks
from gym_spark.results.outcomes import outcomes
from gym_spark.results.reward_profile import task_profiles
from gym_spark.results.run_profile import RunProfile, profile_numbers
from gym_spark.results.samples import Sample, sample_of, sampled
from gym_spark.rollout.collect import (
    Progress,
    adopt_leftovers,
    free_slots,
    run_collect_job,
    staging_of,
    worker_count,
)
from gym_spark.rollout.plan import chosen_tasks, pending_rollouts, planned_rollouts
from gym_spark.rollout.staging import Staging
from gym_spark.rollout.worker import CollectJob
from gym_spark.session import get_session
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord, check_resumable, find_run, record_run, versions
from gym_spark.tables.schemas import METRICS, ROLLOUTS, RUNS, TASK_PROFILES, TASKS, VERIFICATIONS
from gym_spark.verify.base import load_verifier, verifier_digest
from gym_spark.verify.stage import unverified, verdicts

#: Wall-clock limit of one verdict in a child process.
VERIFY_LIMIT_S: Final = 10.0

Show = Callable[[Progress], None]
Say = Callable[[str], None]


def no_progress(progress: Progress) -> None:
    """Show nothing, for a program that nobody watches."""


def open_lake(lake: str | Lake, settings: Mapping[str, str] | None = None) -> Lake:
    """Return the lake at a root, on the running Spark session or on one that is built now with `settings`."""
    return lake if isinstance(lake, Lake) else Lake(get_session(settings), lake)


def prepare(
    benchmark: Benchmark,
    lake: str | Lake,
    *,
    sources: Sequence[Path] = (),
    prompt: PromptSpec | None = None,
    num_shards: int | None = None,
    drop_duplicates: bool = False,
) -> BenchmarkVersion:
    """Build a benchmark's tasks and store them as one version.

    Args:
        benchmark: The benchmark (`prepare.catalog.find_benchmark`).
        lake: The lake, or its root: it is opened only when the tasks are built, so a wrong source starts no Spark.
        sources: Local files to read in place of the benchmark's address.
        prompt: Replaces the benchmark's own prompt.
        num_shards: Shards to make, in place of the number that follows from the size.
        drop_duplicates: Leave byte-equal source rows out.

    Raises:
        ConfigError: a source, script, prompt or row is wrong; nothing is written.
    """
    prepared = build_tasks(
        benchmark,
        resolve_source(benchmark.spec.source, sources),
        prompt=prompt,
        num_shards=num_shards,
        drop_duplicates=drop_duplicates,
    )
    return publish(open_lake(lake), prepared)


def check_parts(spec: RunSpec) -> RunSpec:
    """Return the specification with the model named, after checking all that can be wrong without asking anyone.

    Raises:
        ConfigError: the harness, verifier or their parameters are wrong, or no model is named.
    """
    load_harness(spec.harness)
    load_verifier(spec.verifier.name, spec.verifier.params)
    endpoint = spec.endpoint
    if endpoint.urls and endpoint.model is None:
        raise ConfigError(f"Name the model that {endpoint.urls[0]} serves with --model.")
    if not endpoint.urls:
        local_server_version()
        served = model_file().name
        if endpoint.model not in (None, served):
            raise ConfigError(
                f"The embedded endpoint serves '{served}', not '{endpoint.model}'; "
                "leave --model out, or give the address of yours with --model-url."
            )
        endpoint = endpoint.model_copy(update={"model": served})
    return spec.model_copy(update={"endpoint": endpoint})


@contextlib.contextmanager
def open_endpoint(spec: RunSpec, *, preflight: bool = True, say: Say = print) -> Iterator[EndpointSpec]:
    """Make sure that the run's endpoint answers; without an address, serve the small local model for the while.

    Raises:
        ConfigError: the endpoint is down, or refuses the key or the model.
    """
    with contextlib.ExitStack() as stack:
        endpoint = spec.endpoint
        if not endpoint.urls:
            server = stack.enter_context(local_model_server())
            endpoint = endpoint.model_copy(update={"urls": (server.url,)})
            say(f"Serving {server.model} on this machine with {server.server_version}.")
        if preflight:
            warning = check_endpoint(endpoint, spec.sampling, key_from_environment(endpoint))
            if warning:
                say(f"Warning: {warning}.")
        yield endpoint


def verification_id_of(verifier: PartSpec) -> str:
    """Return the name of the verification that this verifier configuration makes."""
    return f"{verifier.name.replace(':', '.')}-{verifier_digest(verifier.name, verifier.params)[:8]}"


def plan_run(lake: Lake, spec: RunSpec, *, resume: bool) -> RunRecord:
    """Return the run as it is planned, or stop because it exists, or would not continue what is stored. Writes nothing.

    Raises:
        ConfigError: the benchmark is not prepared; the run exists and `resume` is not set; its identity differs; it
            would shrink.
    """
    stored = find_run(lake, spec.run_id)
    if stored is not None and not resume:
        raise ConfigError(
            f"The run '{spec.run_id}' exists ({stored.status}); add --resume to complete it, or take another --run-id."
        )
    version = get_version(lake, spec.benchmark, spec.dataset_version)
    spec = spec.model_copy(update={"dataset_version": version.version})
    count = limit_count(spec.limit, version.tasks) if spec.limit is not None else version.tasks
    served = {} if spec.endpoint.urls else {"server": local_server_version()}
    record = RunRecord(
        spec=spec,
        status="running",
        verification_id=verification_id_of(spec.verifier),
        planned_tasks=count,
        planned_rollouts=count * spec.num_repeats,
        versions=versions({"spark": lake.spark.version, **served}),
    )
    if stored is not None:
        check_resumable(stored, record)
    return record


def start_run(lake: Lake, record: RunRecord) -> None:
    """Make the tables that are missing and record the run as running."""
    lake.ensure(RUNS, ROLLOUTS, VERIFICATIONS, TASK_PROFILES, METRICS)
    record_run(lake, record)


def tasks_of(lake: Lake, record: RunRecord) -> DataFrame:
    """Return the rows of `tasks` that the run is about: all of its dataset version."""
    return lake.read(TASKS, benchmark=record.spec.benchmark, version=str(record.spec.dataset_version))


def planned(lake: Lake, record: RunRecord) -> DataFrame:
    """Return the plan: `task_id`, `task_index`, `shard`, `rollout_index`, one row per planned rollout."""
    chosen = chosen_tasks(
        tasks_of(lake, record).select("task_id", "task_index", "shard"),
        count=record.planned_tasks,
        seed=record.spec.limit_seed,
    )
    return planned_rollouts(chosen, num_repeats=record.spec.num_repeats)


def collect(lake: Lake, record: RunRecord, connect: Callable[[], EndpointSpec], *, show: Show) -> Progress:
    """Do the planned rollouts that are not stored yet; each becomes one row of `rollouts`, failures included.

    Args:
        lake: Where they are stored.
        record: The run.
        connect: Returns the endpoint with its addresses; called only if there is something to do.
        show: Told where the run stands, about twice a second.
    """
    spec = record.spec
    adopt_leftovers(lake, spec.run_id)
    todo = pending_rollouts(planned(lake, record), lake.read(ROLLOUTS, run_id=spec.run_id))
    total = todo.count()
    if not total:
        return Progress(total=0, elapsed_s=0.0)
    endpoint = connect()
    job = CollectJob(
        run_id=spec.run_id,
        endpoint=endpoint,
        sampling=spec.sampling,
        harness=spec.harness,
        workers=worker_count(free_slots(lake.spark), endpoint.concurrency, total),
        staging=Staging(f"{staging_of(lake, spec.run_id).uri}/{uuid.uuid4().hex[:12]}"),
    )
    rows = todo.join(tasks_of(lake, record).select("task_id", "responses_create_params"), on="task_id")
    return run_collect_job(lake, rows, job, total=total, show=show)


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
        coverage=covered,
        metrics=numbers,
    )


def run(
    spec: RunSpec,
    benchmark: Benchmark,
    lake: str | Lake,
    *,
    sources: Sequence[Path] = (),
    resume: bool = False,
    preflight: bool = True,
    show: Show = no_progress,
    say: Say = print,
) -> RunProfile:
    """Run one evaluation from end to end; a benchmark that the lake does not have is prepared first."""
    with connected(spec, resume=resume, preflight=preflight, say=say) as (spec, connect):
        place = open_lake(lake, spec.spark)
        if find_run(place, spec.run_id) is None:
            connect()
        known = find_version(place, spec.benchmark, spec.dataset_version)
        if (sources or known is None) and (stored := prepare(benchmark, place, sources=sources)) != known:
            say(f"Prepared {stored.benchmark}: {stored.tasks} tasks, version {stored.version}.")
        record = plan_run(place, spec, resume=resume)
        start_run(place, record)
        with recorded(place, record):
            if not collect(place, record, connect, show=show).total:
                say("Every planned rollout is stored already; no request was sent.")
            verify(place, record)
            return profile(place, replace(record, status="finished"))


@contextlib.contextmanager
def connected(
    spec: RunSpec, *, resume: bool, preflight: bool, say: Say
) -> Iterator[tuple[RunSpec, Callable[[], EndpointSpec]]]:
    """Check the specification, and give a function that opens its endpoint once and returns it.

    A new run opens it here, before any Spark stage; one that is resumed when it turns out that something is left to do.
    """
    spec = check_parts(spec)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def connect() -> EndpointSpec:
            return stack.enter_context(open_endpoint(spec, preflight=preflight, say=say))

        if not resume:
            connect()
        yield spec, connect


@contextlib.contextmanager
def recorded(lake: Lake, record: RunRecord) -> Iterator[None]:
    """Record how the enclosed work on a run ended."""
    try:
        yield
    except KeyboardInterrupt:
        record_run(lake, replace(record, status="interrupted"))
        raise
    except BaseException as error:
        record_run(lake, replace(record, status="failed"), error=str(error)[:2000])
        raise
    record_run(lake, replace(record, status="finished"))


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
    return [sample_of(row.asDict()) for row in frame.collect()]


def export_rows(lake: Lake, record: RunRecord, target: Path) -> int:
    """Write the run's rollouts and verdicts as JSON Lines; returns how many lines."""
    here = {"run_id": record.spec.run_id}
    judged = lake.read(VERIFICATIONS, verification_id=record.verification_id, **here)
    return write_lines(exported_rows(lake.read(ROLLOUTS, **here), judged), target)
