"""The command tree. Groups are known by name here and imported when they are used, so that `--help` stays fast."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Final

import click

from gym_spark.errors import did_you_mean

#: name -> (module:command, one line for `--help`)
_COMMANDS: Final = {
    "demo": ("gym_spark.cli.demo:demo", "Evaluate a small real model on a small benchmark, and show what comes out."),
    "eval": ("gym_spark.cli.evaluation:evaluation", "Prepare benchmarks, run evaluations, profile and export them."),
    "list": ("gym_spark.cli.listing:listing", "Show what there is: benchmarks, verifiers, harnesses."),
    "model": ("gym_spark.cli.model:model", "The small model of the embedded endpoint."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            ctx.fail(f"There is no command '{cmd_name}'" + did_you_mean(cmd_name, _COMMANDS))
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(importlib.metadata.version("gym-spark"), "--version", prog_name="gym-spark")
def app() -> None:
    """Repeatable LLM and agent evaluations as Spark jobs over Delta tables."""
