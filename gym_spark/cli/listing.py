"""`gym-spark list`: what there is. Answers at once; starts no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml

from gym_spark.cli import options
from gym_spark.config import JsonObject
from gym_spark.errors import ConfigError
from gym_spark.harness.base import harness_names, told_harness
from gym_spark.prepare.catalog import find_benchmark, list_benchmarks, search_path
from gym_spark.verify.base import told_verifier, verifier_descriptions


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
    """Show the verifiers, or what one of them does and takes; NAME may be a module:Class."""
    if name is None:
        _lines(verifier_descriptions(), as_json)
    else:
        _told(told_verifier(name), "verifier", as_json)


@listing.command()
@click.argument("name", required=False)
@options.as_json
def agents(name: str | None, as_json: bool) -> None:
    """Show the harnesses, which make a model an agent, or what one of them does and takes; --harness takes one."""
    if name is None:
        _lines(harness_names(), as_json)
    else:
        _told(told_harness(name), "harness", as_json)


def _lines(known: dict[str, str], as_json: bool) -> None:
    click.echo(json.dumps(known)) if as_json else _table(known)


def _told(part: JsonObject, kind: str, as_json: bool) -> None:
    """Print what `plugins.Registry.told` says of one part."""
    if as_json:
        click.echo(json.dumps(part))
        return
    click.echo(f"{part['name']}: {part['description']}\n")
    if part["documentation"]:
        click.echo(f"{part['documentation']}\n")
    if not part["parameters"]:
        click.echo("It takes no parameters.")
        return
    click.echo(f"Types and defaults (--set {kind}.params.NAME=VALUE):")
    for name, about in part["parameters"].items():
        default = f" = {json.dumps(about['default'])}" if "default" in about else ", needed"
        click.echo(f"    {name}: {about['type']}{default}")


def _table(rows: dict[str, str]) -> None:
    width = max((len(name) for name in rows), default=0)
    for name, text in rows.items():
        click.echo(f"{name:<{width}}  {text}")
