"""What the lake says of a run: whether it may start, that it is worked on, and how that ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from gym_spark.config import EndpointSpec, PartSpec, RunSpec
from gym_spark.endpoint.serving import local_server_version
from gym_spark.errors import BusyError, ConfigError, GymSparkError, StorageError
from gym_spark.prepare.limits import limit_count
from gym_spark.prepare.publish import BenchmarkVersion
from gym_spark.results.run_profile import RunProfile
from gym_spark.rollout.share import WHOLE, Share, check_share
from gym_spark.rollout.staging import Stop
from gym_spark.tables.lake import SPARK_ERRORS, Lake, first_line
from gym_spark.tables.runs import RunRecord, Status, check_resumable, record_run, versions
from gym_spark.tables.schemas import METRICS, ROLLOUTS, RUNS, TASK_PROFILES, VERIFICATIONS
from gym_spark.verify.base import load_verifier, verifier_digest
from gym_spark.verify.sandbox.choice import sandbox_description

_GOES_ON: Final = "what was finished is stored, and --resume goes on from there."


def verification_id_of(verifier: PartSpec, judge: EndpointSpec | None = None) -> str:
    """Return the name of the verification that this verifier configuration makes."""
    return f"{verifier.name.replace(':', '.')}-{verifier_digest(verifier.name, verifier.params, judge)[:8]}"


def plan_run(
    lake: Lake,
    spec: RunSpec,
    version: BenchmarkVersion | None,
    stored: RunRecord | None,
    *,
    resume: bool,
    share: Share = WHOLE,
) -> RunRecord:
    """Return the run as it is planned, or stop because it exists, or would not continue what is stored. Writes nothing.

    Args:
        lake: Where it is, or will be, stored.
        spec: The run.
        version: The benchmark's version that it uses, stored or about to be.
        stored: The run as the lake knows it (`tables.runs.find_run`).
        resume: Continue the run if it exists. Jobs that share a run out always join it.
        share: The part that this job takes; the plan is the whole run's all the same.

    Raises:
        ConfigError: the run exists and `resume` is not set; its identity differs; it would shrink; there are too few
            shards.
    """
    if stored is not None and not resume and share == WHOLE:
        raise ConfigError(
            f"The run '{spec.run_id}' exists ({stored.status}); add --resume to complete it, or take another --run-id."
        )
    if version is None or spec.dataset_version not in (None, version.version):
        raise ConfigError(
            f"The lake '{lake.root}' has no version '{spec.dataset_version}' of '{spec.benchmark}'; "
            "leave dataset_version out to use the current one."
        )
    check_share(share, version.shards, spec.benchmark)
    if share.of > spec.endpoint.concurrency:
        raise ConfigError(
            f"--shards {share} leaves a job no request: --concurrency {spec.endpoint.concurrency} is the limit of all "
            f"jobs together; make it {share.of} or more."
        )
    spec = spec.model_copy(update={"dataset_version": version.version})
    count = limit_count(spec.limit, version.tasks) if spec.limit is not None else version.tasks
    is_local = not spec.endpoint.urls or (spec.judge is not None and not spec.judge.urls)
    served = {"server": local_server_version()} if is_local else {}
    if load_verifier(spec.verifier.name, spec.verifier.params).wants_sandbox:
        served["sandbox"] = sandbox_description(spec.sandbox)
    record = RunRecord(
        spec=spec,
        status="running",
        verification_id=verification_id_of(spec.verifier, spec.judge),
        planned_tasks=count,
        planned_rollouts=count * spec.num_repeats,
        versions=versions({"spark": lake.spark.version, **served}),
    )
    if stored is not None:
        check_resumable(stored, record)
    return record


@contextlib.contextmanager
def recorded(lake: Lake, record: RunRecord) -> Iterator[Callable[[RunProfile, Stop | None], RunProfile]]:
    """Record that the run is worked on, and how that ended: the caller tells it with the profile, or an exception."""
    lake.ensure(RUNS, ROLLOUTS, VERIFICATIONS, TASK_PROFILES, METRICS)
    record_run(lake, record)

    def end(profile: RunProfile, stopped: Stop | None) -> RunProfile:
        status: Status = "incomplete" if profile.coverage.missing else "finished"
        if stopped is not None:
            status = "budget_exhausted" if stopped.kind == "budget_exhausted" else "stopped"
        reason = stopped.reason if stopped is not None else None
        record_run(lake, replace(record, status=status), error=reason)
        return replace(profile, status=status, stopped=reason)

    try:
        yield end
    except KeyboardInterrupt as interrupt:
        record_run(lake, replace(record, status="interrupted"))
        raise KeyboardInterrupt(
            f"Interrupted; the finished rollouts of '{record.spec.run_id}' are stored, and --resume goes on from there."
        ) from interrupt
    except StorageError as error:
        _record_failure(lake, record, error)
        if "--resume" in str(error):
            raise
        raise StorageError(f"{str(error).rstrip('.')}; {_GOES_ON}") from error
    except BusyError:
        raise  # the run is another job's, and so is its state
    except GymSparkError as error:
        _record_failure(lake, record, error)
        raise
    except (*SPARK_ERRORS, ConnectionError) as error:
        _record_failure(lake, record, error)
        raise StorageError(f"Spark gave up on the lake '{lake.root}' ({first_line(error)}); {_GOES_ON}") from error


def _record_failure(lake: Lake, record: RunRecord, error: Exception) -> None:
    # Spark itself may be what failed; then the run stays recorded as running, and the first error is the one to tell.
    with contextlib.suppress(StorageError, *SPARK_ERRORS, ConnectionError):
        record_run(lake, replace(record, status="failed"), error=str(error)[:2000])
