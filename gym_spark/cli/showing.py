"""What the commands say, and the exit code that a result gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console

if TYPE_CHECKING:
    from gym_spark.results.run_profile import RunProfile


def say(text: str) -> None:
    """Tell the user on standard error: standard output is for results."""
    click.echo(text, err=True)


def show(profile: RunProfile, lake: str, *, as_json: bool, strict: bool, samples: int) -> int:
    """Print a profile, and some rollouts; return the exit code."""
    from gym_spark import flow, reporting
    from gym_spark.cli.render import profile_table, sample_rollouts
    from gym_spark.tables.runs import get_run

    picked = []
    if samples:
        place = flow.open_lake(lake, say=say, to_write=False)
        record = replace(get_run(place, profile.run_id), verification_id=profile.verification_id)
        picked = reporting.samples(place, record, count=samples)
    if as_json:
        click.echo(profile.to_json(samples=picked))
    else:
        profile_table(profile, Console(soft_wrap=True))
        sample_rollouts(picked)
    return exit_code(profile, strict=strict)


def exit_code(profile: RunProfile, *, strict: bool) -> int:
    """Return 1 where the result falls short: nothing came, the run was stopped, or --strict asks for all of it."""
    covered = profile.coverage
    short = covered.completed == 0 or profile.stopped is not None
    return 1 if short or (strict and covered.scored < covered.planned) else 0
