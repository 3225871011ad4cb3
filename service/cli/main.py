"""The entry point: builds the command tree, maps errors to exit codes."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import typer

from outrider.errors import OutriderError
from service.cli import common
from service.cli.common import Context, leaf

app = typer.Typer(
    name="outrider",
    help="Watches, plans and repairs clusters that serve large language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# the root of typer's usage errors; it is exported only through its subclasses
_WRONG_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@app.callback()
def _root() -> None:
    """Watches, plans and repairs clusters that serve large language models."""


@leaf(app, "version", example="outrider version -o json")
def version(context: Context) -> None:
    """Print the versions of the program, of Python and of the database schema."""
    result = {"version": metadata.version("outrider"), "python": sys.version.split()[0], "database": "x"}
    context.show(
        result, lambda shown: f"outrider {shown['version']} (Python {shown['python']}, schema {shown['database']})"
    )


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        code = app(standalone_mode=False)
    except _WRONG_USAGE as error:
        code = common.fail(error.format_message(), "outrider --help shows every command", common.USAGE)
    except OutriderError as error:
        code = common.fail(error.message, error.hint, common.code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)
