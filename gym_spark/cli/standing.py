"""What `eval status` prints."""

from __future__ import annotations

from collections.abc import Iterator

from gym_spark.standing import RunStanding


def standing_lines(standing: RunStanding) -> Iterator[str]:
    """Say where a run stands."""
    covered = standing.coverage
    mean = "" if standing.mean_reward is None else f", mean reward so far {standing.mean_reward:.3f}"
    yield f"{standing.run_id}: {standing.benchmark} on {standing.model}, {standing.status}"
    yield f"{covered.completed} of {covered.planned} planned rollouts completed{mean}"
    yield f"{covered.summary()}."
    if covered.failures:
        yield "Failures: " + ", ".join(f"{count} {kind}" for kind, count in sorted(covered.failures.items())) + "."
    for job in standing.jobs:
        alive = "alive" if job.is_alive else f"dead, silent for {job.silent_s:.0f} s"
        yield f"Job for shards {job.share} (process {job.pid} on {job.host}, {alive}):"
        eta = "" if job.eta_s is None else f", ETA {job.eta_s:.0f} s"
        yield (
            f"  {job.done}/{job.total} rollouts, {job.in_flight} in flight, {job.retrying} retrying, "
            f"{len(job.stalled)} stalled, {job.rollouts_per_s:.1f} rollouts/s, {job.tokens_per_s:.0f} tokens/s{eta}"
        )
        for call in job.stalled:
            yield f"  stalled: {call.rollout}, its request is {call.age_s:.0f} s old"
        for call in job.retried:
            tries = f"{call.requests} requests in {call.age_s:.0f} s"
            yield f"  retrying: {call.rollout}, {tries}, the last one {call.last_failure}"
    if not standing.jobs:
        yield "No job works on it."
