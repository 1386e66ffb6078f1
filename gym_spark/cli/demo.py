"""`gym-spark demo`: one real evaluation on this machine, from nothing to sample rollouts."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from gym_spark.cli import options
from gym_spark.cli.evaluation import evaluation


@click.command()
@options.lake
@click.pass_context
def demo(ctx: click.Context, lake: str) -> int:
    """Evaluate a small real model on a small benchmark, and show what comes out."""
    run_id = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    click.echo("Benchmark: arithmetic, one-digit sums and products; `gym-spark list benchmarks arithmetic` tells more.")
    arguments = ["run", "--benchmark", "arithmetic", "--lake", lake, "--run-id", run_id, "--samples", "5"]
    code: int = evaluation.main(args=arguments, standalone_mode=False, prog_name="gym-spark eval")
    click.echo(f"\nThe lake with all of it is {Path(lake).absolute()} (Delta tables, read by any Spark).")
    # As it was called: `make demo` does not put the command on the user's path.
    command = "python -m gym_spark.cli" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
    click.echo(f"Next: {command} eval profile --run-id {run_id} --lake {lake} --json")
    return code
