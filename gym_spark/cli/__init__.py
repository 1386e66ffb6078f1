"""The command line: parse, one call, exit code. 0 fine, 1 the result falls short, 2 the user's mistake."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gym_spark.cli.root import app
from gym_spark.errors import ConfigError, GymSparkError

#: The shell's own code for a command that Ctrl-C ended.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code; mistakes are one plain line on stderr."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = app.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except ConfigError as error:
        return _complain(str(error), 2)
    except GymSparkError as error:
        return _complain(str(error), 1)
    except (KeyboardInterrupt, click.Abort) as interrupt:
        # click makes an Abort without words of it; what was interrupted has said what is stored.
        return _complain(str(interrupt) or str(interrupt.__cause__ or "") or "Interrupted.", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    click.echo(f"gym-spark: {' '.join(message.split())}", err=True)
    return code
