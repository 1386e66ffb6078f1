"""`gym-spark model`: the small model of the embedded endpoint."""

from __future__ import annotations

import click

from gym_spark.endpoint.model_file import model_file


@click.group()
def model() -> None:
    """The small model of the embedded endpoint."""


@model.command()
def fetch() -> int:
    """Fetch the model's file into the cache, once; runs do it by themselves when it is missing."""
    found = model_file()
    click.echo(f"{found.name} is in {found.path}.")
    return 0
