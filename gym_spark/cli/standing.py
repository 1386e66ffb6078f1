"""What `eval status` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from gym_spark.cli.render import about
from gym_spark.config import JsonObject
from gym_spark.reverify import Reverification
from gym_spark.standing import JobStanding, RunStanding

_FLIPS: Final = {
    "fail_to_pass": "from fail to pass",
    "pass_to_fail": "from pass to fail",
    "scored_to_unscored": "from scored to not scored",
    "unscored_to_scored": "from not scored to scored",
}


def change_lines(done: Reverification) -> Iterator[str]:
    """Say what a reverification did and changed."""
    change = done.change
    verdicts = ", ".join(f"{count} {state}" for state, count in change.verdicts.items()) or "none"
    yield (
        f"{done.run_id}: {_of(done.judged, 'rollout')} judged by {done.verification_id}, which has verdicts on "
        f"{change.compared} of {change.planned} planned rollouts: {verdicts}."
    )
    if change.reasons:
        yield "Not scored, such as: " + "; ".join(f"{state}: {why}" for state, why in change.reasons.items()) + "."
    if done.unsafe:
        yield "Unsafe: the verifier needs more than what is stored; these verdicts may mean nothing."
    flips = [
        f"{_of(found.rollouts, 'rollout')} of {_of(found.tasks, 'task')} {_FLIPS[kind]}{_such_as(found.example)}"
        for kind, found in change.flips.items()
        if found.rollouts
    ]
    beside = "what it was before" if done.compared_with == done.verification_id else done.compared_with
    yield f"Beside {beside}: {'; '.join(flips) or 'nothing flipped'}."
    if change.delta is None or change.before is None or change.after is None:
        yield "Mean reward: no rollout is scored in both."
        return
    interval = "no interval can be estimated from that"
    if change.ci_low is not None and change.ci_high is not None:
        interval = f"95 % interval {change.ci_low:+.3f} to {change.ci_high:+.3f}"
    yield (
        f"Mean reward changed by {change.delta:+.3f}, from {change.before:.3f} to {change.after:.3f}, over "
        f"{_of(change.n_tasks, 'task')} scored in both; {interval}."
    )


def _of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _such_as(example: tuple[str, int] | None) -> str:
    return "" if example is None else f" (such as repeat {example[1]} of task {example[0]})"


def run_lines(runs: Iterable[JsonObject]) -> Iterator[str]:
    """Say which runs a lake has (`tables.runs.list_runs`), a line each."""
    lines = [
        f"{run['run_id']}: {about(run['benchmark'], run['model'])}, {run['planned_rollouts']} rollouts planned, "
        f"{run['status']} at {run['recorded_at'][:19]}"
        for run in runs
    ]
    yield from lines or ["The lake has no run."]


def standing_lines(standing: RunStanding) -> Iterator[str]:
    """Say where a run stands."""
    covered = standing.coverage
    mean = "" if standing.mean_reward is None else f", mean reward so far {standing.mean_reward:.3f}"
    yield f"{standing.run_id}: {about(standing.benchmark, standing.model)}, {standing.status}"
    yield f"{covered.completed} of {covered.planned} planned rollouts completed{mean}"
    yield f"{covered.summary()}."
    if covered.failures:
        yield "Failures: " + ", ".join(f"{count} {kind}" for kind, count in sorted(covered.failures.items())) + "."
    for noted in standing.verifications:
        unsafe = ", unsafe" if noted.unsafe else ""
        own = ", the run's own" if noted.verification_id == standing.verification_id else ""
        params = ", ".join(f"{name}={json.dumps(value)}" for name, value in noted.params.items())
        counts = standing.verdicts.get(noted.verification_id, {})
        told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no verdict yet"
        yield (
            f"Verified again: {noted.verification_id}{own} (by {noted.verifier}({params}) at {noted.recorded_at[:19]}"
            f"{unsafe}): {told}."
        )
    for job in standing.jobs:
        who = f"Job for shards {job.share} (process {job.pid} on {job.host}"
        if not job.is_alive:
            yield f"{who}, dead, silent for {job.silent_s:.0f} s): had {job.done}/{job.total} rollouts."
            continue
        yield f"{who}, alive):"
        yield from _job_lines(job)
    if not any(job.is_alive for job in standing.jobs):
        ended = "either it verifies, or it was killed, and --resume goes on"
        yield f"No job collects: {ended}." if standing.status == "running" else "No job works on it."


def _job_lines(job: JobStanding) -> Iterator[str]:
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
