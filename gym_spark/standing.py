"""Where a run stands, told from outside: what is stored or staged, and what its live jobs are doing. Writes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from gym_spark.errors import StorageError
from gym_spark.planning import plan_of
from gym_spark.results.outcomes import kept, sources
from gym_spark.results.passes import counts_of, passed, profiles_of
from gym_spark.results.run_profile import Coverage, profile_numbers
from gym_spark.rollout.place import staging_of
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.staging import JobBeat, Staging, WorkerStatus
from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.tables.lake import SPARK_ERRORS, Lake, first_line
from gym_spark.tables.reverifications import Noted, noted_of
from gym_spark.tables.runs import RunRecord
from gym_spark.tables.schemas import ROLLOUTS, VERIFICATIONS

#: A request this many times older than the mean answer, and at least so many seconds, is called stalled.
STALLED_TIMES: Final = 10.0
STALLED_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class OpenRollout:
    """A rollout that has not ended; neither prompt nor answer is told."""

    rollout: str
    state: str
    age_s: float
    requests: int
    last_failure: str | None


@dataclass(frozen=True, slots=True)
class JobStanding:
    """One collect job of the run."""

    share: str
    host: str
    pid: int
    is_alive: bool
    #: Since its driver was last heard of.
    silent_s: float
    total: int
    done: int
    in_flight: int
    retrying: int
    rollouts_per_s: float
    tokens_per_s: float
    eta_s: float | None
    failures: Mapping[str, int]
    stalled: tuple[OpenRollout, ...]
    retried: tuple[OpenRollout, ...]


@dataclass(frozen=True, slots=True)
class RunStanding:
    """Where a run stands.

    Attributes:
        verification_id: The verification that its numbers are taken from, the run's own.
        verifications: Those that `eval reverify` made of it.
        verdicts: Of each verification that has any: state -> verdicts, of attempts judged again every one.
    """

    run_id: str
    status: str
    benchmark: str
    model: str | None
    coverage: Coverage
    mean_reward: float | None
    jobs: tuple[JobStanding, ...]
    verification_id: str
    verifications: tuple[Noted, ...]
    verdicts: Mapping[str, Mapping[str, int]]

    def to_json(self) -> str:
        """Return it as strict JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)


def run_standing(lake: Lake, record: RunRecord) -> RunStanding:
    """Look at the lake and at the staging folder of a run.

    Rollouts that are staged and not adopted yet count like stored ones.

    Raises:
        StorageError: Spark gave up.
    """
    try:
        return _standing(lake, record)
    except SPARK_ERRORS:
        # A job that ended meanwhile has removed the parts that were to be read: they are stored now.
        try:
            return _standing(lake, record)
        except SPARK_ERRORS as error:
            raise StorageError(f"The lake '{lake.root}' cannot be read: {first_line(error)}") from error


def _standing(lake: Lake, record: RunRecord) -> RunStanding:
    spec = record.spec
    jobs = staging_of(lake, spec.run_id).jobs()
    stored = lake.read(ROLLOUTS, run_id=spec.run_id)
    judged = lake.read(VERIFICATIONS, run_id=spec.run_id, verification_id=record.verification_id)
    policy = spec.graded_with_exception
    rows = sources(plan_of(lake, record), _with_staged(lake, stored, jobs), judged, count=record.planned_rollouts)
    with kept(passed(rows, policy)) as passes:
        coverage, metrics = profile_numbers(counts_of(passes), profiles_of(passes), max_k=1, exceptions_count_as=policy)
    mean = next(item for item in metrics if (item.name, item.denominator) == ("mean_reward", "scored"))
    noted = noted_of(lake, spec.run_id)
    standings = [_job_standing(job.last_beat(), job.statuses()) for job in jobs]
    return RunStanding(
        run_id=spec.run_id,
        status=record.status,
        benchmark=spec.benchmark,
        model=spec.endpoint.model,
        coverage=coverage,
        mean_reward=mean.value,
        jobs=tuple(standing for standing in standings if standing is not None),
        verification_id=record.verification_id,
        verifications=tuple(noted.values()),
        verdicts=_verdicts(lake, spec.run_id) if noted else {},
    )


def _verdicts(lake: Lake, run_id: str) -> dict[str, dict[str, int]]:
    rows = lake.read(VERIFICATIONS, run_id=run_id).groupBy("verification_id", "state").count().collect()
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["verification_id"], {})[row["state"]] = row["count"]
    return found


def _with_staged(lake: Lake, stored: DataFrame, jobs: list[Staging]) -> DataFrame:
    parts = [part for job in jobs for part in job.parts()]
    # A part stays for a while after it was adopted.
    if not parts:
        return stored
    staged = stored.unionByName(lake.spark.read.schema(stored.schema).parquet(*parts))
    return staged.dropDuplicates(list(ATTEMPT_KEY))


def _job_standing(beat: JobBeat | None, statuses: list[WorkerStatus]) -> JobStanding | None:
    if beat is None:
        return None
    now = time.time()
    seen = Progress.of(statuses, beat.total, max(now - beat.started_at, 1e-9))
    answered = seen.done - sum(seen.failures.values())
    typical_s = sum(status.latency_ms for status in statuses) / 1000 / answered if answered else 0.0
    late_s = max(STALLED_SECONDS, STALLED_TIMES * typical_s)
    calls = [_open(call, now - status.updated_at) for status in statuses for call in status.oldest]
    rate = seen.done / seen.elapsed_s
    return JobStanding(
        share=beat.share,
        host=beat.host,
        pid=beat.pid,
        is_alive=beat.is_alive(),
        silent_s=now - beat.updated_at,
        total=beat.total,
        done=seen.done,
        in_flight=seen.in_flight,
        retrying=seen.retrying,
        rollouts_per_s=rate,
        tokens_per_s=seen.output_tokens / seen.elapsed_s,
        eta_s=(beat.total - seen.done) / rate if rate else None,
        failures=seen.failures,
        stalled=tuple(call for call in calls if call.state == "in_flight" and call.age_s > late_s),
        retried=tuple(call for call in calls if call.state == "retrying"),
    )


def _open(call: Mapping[str, Any], since_s: float) -> OpenRollout:
    """Describe an open call as of now; its worker told of it `since_s` seconds ago."""
    age = call["state_age_s"] if call["state"] == "in_flight" else call["age_s"]
    return OpenRollout(
        rollout=call["session"] or "",
        state=call["state"],
        age_s=age + since_s,
        requests=call["requests"],
        last_failure=call["last_failure"],
    )
