"""`gym-spark eval`: the group of its commands."""

from __future__ import annotations

import click

from gym_spark.cli import results, running


@click.group("eval")
def evaluation() -> None:
    """Prepare benchmarks, run evaluations, profile and export them."""


for _command in (
    *(running.prepare, running.run, running.collect, running.verify, running.reverify),
    *(results.profile, results.aggregate, results.import_run, results.status, results.export),
):
    evaluation.add_command(_command)
