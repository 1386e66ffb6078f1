"""What a person sees: the profile's table, sample rollouts, and live progress."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gym_spark.results.pass_majority import highest_k
from gym_spark.results.run_profile import Bootstrap, Metric, RunProfile
from gym_spark.results.samples import Sample
from gym_spark.rollout.progress import Progress

#: Names of NeMo Gym's curves.
_PATTERNS: Final = ("pass@{k}", "pass@1[avg-of-{k}]", "majority@{k}")
#: Between two progress lines where there is no terminal to redraw.
_LINE_SECONDS = 10.0


def profile_table(profile: RunProfile, console: Console) -> None:
    """Print the headline numbers: over the plan with their interval, and over what was scored."""
    # Names are the user's, and a model may be called "m[/x]": every text is a Text, in which rich reads no markup.
    title = Text(f"{profile.run_id}: {about(profile.benchmark, profile.model)}", style="table.title")
    table = Table(title=title, title_justify="left")
    table.add_column("metric", overflow="fold")  # a name that is cut is no name
    table.add_column("over the plan", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("over scored only", justify="right")
    for planned in (metric for metric in profile.metrics if metric.denominator == "planned"):
        scored = profile.metric(planned.name, "scored")
        cells = (planned.name, _number(planned.value), _interval(planned), _number(scored.value))
        table.add_row(*map(Text, cells))
    own = {metric.name: metric for metric in profile.metrics if metric.denominator == "custom"}
    if own:
        table.add_section()
    for name, metric in own.items():
        table.add_row(Text(name), Text(""), Text(""), Text(_number(metric.value)))
    if profile.key_metrics:
        shown = (f"{name} {_number(profile.headline(name))}" for name in profile.key_metrics)
        console.print(Text(", ".join(shown), style="bold"))
    console.print(table)
    for line in _remarks(profile):
        console.print(Text(line))


def about(benchmark: str, model: str | None) -> str:
    """Say what was evaluated; of an imported run the model is not known."""
    return benchmark if model is None else f"{benchmark} on {model}"


def _remarks(profile: RunProfile) -> list[str]:
    """Return what stands below the table, a line each: coverage, answers, failures, what has no number and why."""
    lines = [f"Coverage: {profile.coverage.summary()}."]
    states = profile.coverage.answer_states
    if set(states) - {"complete"}:
        lines.append(
            f"Answers: {states.get('complete', 0)} of {sum(states.values())} complete; "
            + ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "complete")
            + f"; mean reward of the complete ones: {_number(profile.coverage.mean_of_complete)}."
        )
    for verdict, reason in profile.coverage.reasons.items():
        if verdict != "not_scored":
            lines.append(f"Not scored: {profile.coverage.verdicts[verdict]} {verdict}, such as: {reason}")
    if profile.coverage.failures:
        failures = ", ".join(f"{count} {kind}" for kind, count in sorted(profile.coverage.failures.items()))
        lines.append(f"Failures: {failures}.")
    if profile.curves:
        lines.append(f"NeMo Gym's, in percent of what has a result: {_largest_k(profile.curves)}.")
    if profile.unsafe:
        lines.append("Unsafe: these verdicts were forced, by a verifier that needs more than what is stored.")
    if profile.stopped:
        lines.append(f"Stopped early: {profile.stopped}; --resume goes on.")
    shown = (metric.reason for metric in profile.metrics if metric.denominator != "completed")
    lines += [f"n/a: {reason}." for reason in sorted(set(filter(None, shown)))]
    lines.append(
        f"{profile.coverage.planned_tasks} tasks x {profile.num_repeats}; {_intervals(profile.bootstrap)}; "
        f"verdicts: {profile.verification_id}; dataset version {profile.dataset_version}."
    )
    return lines


def _largest_k(curves: Mapping[str, float]) -> str:
    """Say pass@k and majority@k at the largest k."""
    found = [highest_k(curves, pattern, without={"no_answer"}) for pattern in _PATTERNS]
    return ", ".join(f"{name} {value:.1f}" for part in found for name, value in part.items())


def _intervals(bootstrap: Bootstrap | None) -> str:
    if bootstrap is None:
        return "intervals are clustered by task"
    return f"intervals are percentiles of {bootstrap.replicates} resamples of tasks (seed {bootstrap.seed})"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _interval(metric: Metric) -> str:
    if metric.ci_low is None or metric.ci_high is None:
        return "n/a"
    return f"{metric.ci_low:.3f} to {metric.ci_high:.3f}"


def sample_rollouts(samples: Sequence[Sample]) -> None:
    """Print rollouts in full: prompt, answer, verdict."""
    for number, sample in enumerate(samples, start=1):
        score = "not scored" if sample.reward is None else f"reward {sample.reward:g}"
        click.echo(f"\nSample {number}: task {sample.task_id}, repeat {sample.rollout_index}")
        click.echo(_block("prompt", sample.prompt))
        cut = "" if sample.answer_state in (None, "complete") else f" [{sample.answer_state}]"
        click.echo(_block("answer", sample.answer + cut))
        taken = "nothing" if sample.extracted is None else sample.extracted
        why = sample.reason or f"expected {sample.expected}, took {taken}"
        click.echo(_block("verdict", f"{score} ({sample.verdict}; {why})"))


def _block(label: str, text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return textwrap.indent("\n".join(lines), " " * 11).replace(" " * 11, f"  {label:<9}", 1)


class ProgressLine:
    """Shows on stderr where a run stands: one line redrawn on a terminal, plain lines now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next_line = 0.0
        self._warned = False
        self._finished = False

    def __call__(self, progress: Progress) -> None:
        """Show the newest state."""
        if progress.first_failure and not self._warned:
            self._warned = True
            click.echo(f"{self._clear()}Warning: a request failed, {progress.first_failure}", err=True)
        over = progress.done >= progress.total
        if over and self._finished:
            return
        self._finished = over
        if self._terminal:
            click.echo(self._clear() + _line(progress), nl=over, err=True)
        elif over or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            click.echo(_line(progress), err=True)

    def _clear(self) -> str:
        return "\r\x1b[2K" if self._terminal else ""


def _line(progress: Progress) -> str:
    rate = progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    if progress.done:
        tokens = progress.output_tokens / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
        parts = [
            f"{progress.done}/{progress.total} rollouts",
            f"{progress.in_flight} in flight",
            f"{rate:.1f} rollouts/s",
            f"{tokens:.0f} tokens/s",
        ]
    else:
        # No rate yet: zeros would read as if nothing worked.
        parts = [f"waiting for the first of {progress.total} rollouts", f"{progress.in_flight} in flight"]
    if progress.mean_reward is not None:
        parts.append(f"mean reward so far {progress.mean_reward:.3f}")
    if progress.retries:
        parts.append(f"{progress.retries} failed tries")
    if progress.failures:
        parts.append("failed: " + ", ".join(f"{count} {kind}" for kind, count in sorted(progress.failures.items())))
    if rate and progress.done < progress.total:
        parts.append(f"ETA {(progress.total - progress.done) / rate:.0f} s")
    return ", ".join(parts)
