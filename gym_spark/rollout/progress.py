"""Where a collect job stands, summed over its workers. No pyspark."""

from __future__ import annotations

from dataclasses import dataclass, field

from gym_spark.rollout.staging import Stop, WorkerStatus


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a collect job stands."""

    total: int
    elapsed_s: float
    done: int = 0
    in_flight: int = 0
    retrying: int = 0
    requests: int = 0
    retries: int = 0
    #: Requests that a dead Spark task had sent for rollouts that had to be done again.
    wasted: int = 0
    output_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    first_failure: str | None = None
    #: Mean reward of what is verified so far.
    mean_reward: float | None = None
    #: Why the job stopped before its end, if it did.
    stopped: Stop | None = None

    @classmethod
    def of(
        cls,
        statuses: list[WorkerStatus],
        total: int,
        elapsed_s: float,
        *,
        mean_reward: float | None = None,
        stopped: Stop | None = None,
    ) -> Progress:
        """Sum the workers' statuses."""
        failures: dict[str, int] = {}
        for status in statuses:
            for kind, count in status.failures.items():
                failures[kind] = failures.get(kind, 0) + count
        return cls(
            total=total,
            elapsed_s=elapsed_s,
            done=sum(status.done for status in statuses),
            in_flight=sum(status.in_flight for status in statuses),
            retrying=sum(status.retrying for status in statuses),
            requests=sum(status.requests for status in statuses),
            retries=sum(status.retries for status in statuses),
            wasted=sum(status.wasted for status in statuses),
            output_tokens=sum(status.output_tokens for status in statuses),
            failures=failures,
            first_failure=next((status.first_failure for status in statuses if status.first_failure), None),
            mean_reward=mean_reward,
            stopped=stopped or next((Stop(**status.stop) for status in statuses if status.stop), None),
        )
