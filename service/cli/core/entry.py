"""Runs a command line and maps errors to messages and exit codes."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import typer

from outrider.errors import OutriderError
from service.cli.core import common

# the root of typer's usage errors; it is exported only through its subclasses
_WRONG_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_CHOICE = re.compile(r"'([^']*)' is not one of (.+)")
_QUOTED = re.compile(r"'([^']*)'")
INTERRUPTED = 130  # the exit code of shells


def run(app: typer.Typer) -> None:
    """Runs an application on the arguments of this process and exits with its code."""
    fail = partial(common.fail, output=common.output_of(sys.argv[1:]))
    try:
        code = app(standalone_mode=False)
    except _WRONG_USAGE as error:
        message = _in_words(error) or "no command given"
        command = getattr(getattr(error, "ctx", None), "command_path", "") or "outrider"
        code = fail(message, f"{command} --help lists the commands and options", common.USAGE)
    except OutriderError as error:
        code = fail(error.message, error.hint, common.code_of(error))
    except (KeyboardInterrupt, typer.Abort) as error:
        code = fail(str(error) or "interrupted", "", INTERRUPTED)
    sys.exit(code or 0)


def _in_words(error: Any) -> str:
    """Message for an invalid call; newer versions of typer wrap pydantic's message."""
    from outrider.text import yaml_file, yaml_words  # noqa: PLC0415 - only for an invalid call

    message: str = error.format_message()
    errors = getattr(error.__cause__, "errors", None)
    if errors is not None:
        detail = errors()[0]
        message = message.replace(str(detail["msg"]), yaml_words.describe(detail))
    refused = _CHOICE.search(message)
    if refused is None:
        return message
    return f"{message.removesuffix('.')}{yaml_file.near(refused[1], _QUOTED.findall(refused[2]))}"
