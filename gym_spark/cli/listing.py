"""`gym-spark list`: what there is. Answers at once; starts no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml

from gym_spark.cli import options
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.harness.base import harness_names
from gym_spark.prepare.catalog import find_benchmark, list_benchmarks, search_path
from gym_spark.verify.base import verifier_descriptions


@click.group("list")
def listing() -> None:
    """Show what there is: benchmarks, verifiers, harnesses."""


@listing.command()
@click.argument("name", required=False)
@options.search_dir
@options.as_json
def benchmarks(name: str | None, search_dirs: tuple[Path, ...], as_json: bool) -> None:
    """Show the benchmarks, or all that one of them declares."""
    search = search_path(search_dirs)
    if name is not None:
        declared = find_benchmark(name, search).spec.model_dump(mode="json", exclude_defaults=True)
        click.echo(json.dumps(declared) if as_json else yaml.safe_dump(declared, sort_keys=False).rstrip())
        return
    faulty: list[ConfigError] = []
    specs = [found.spec for found in list_benchmarks(search, faulty=faulty)]
    if as_json:
        click.echo(json.dumps([spec.model_dump(mode="json", exclude_defaults=True) for spec in specs]))
    else:
        _table({spec.name: f"{spec.domain}; {spec.verifier.name}; {spec.description}" for spec in specs})
    for error in faulty:
        click.echo(f"gym-spark: {error}", err=True)
    if faulty:
        click.get_current_context().exit(2)


@listing.command()
@click.argument("name", required=False)
@options.as_json
def verifiers(name: str | None, as_json: bool) -> None:
    """Show the verifiers."""
    _parts("verifier", name, verifier_descriptions(), as_json)


@listing.command()
@click.argument("name", required=False)
@options.as_json
def agents(name: str | None, as_json: bool) -> None:
    """Show the harnesses, which make a model an agent; --harness takes one."""
    _parts("harness", name, harness_names(), as_json)


def _parts(kind: str, name: str | None, known: dict[str, str], as_json: bool) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"There is no {kind} '{name}'" + did_you_mean(name, known))
    shown = known if name is None else {name: known[name]}
    click.echo(json.dumps(shown)) if as_json else _table(shown)


def _table(rows: dict[str, str]) -> None:
    width = max((len(name) for name in rows), default=0)
    for name, text in rows.items():
        click.echo(f"{name:<{width}}  {text}")
