"""Common options, output formats and exit codes of all commands."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
import yaml

from outrider import log
from outrider.clock import parse_rfc3339
from outrider.errors import OutriderError, UsageError
from outrider.text.i18n import Language
from outrider.vocabulary.units import parse_duration

if TYPE_CHECKING:
    from service.config.settings import Settings

YES, NO, USAGE, UNAVAILABLE = 0, 1, 2, 3
ON_A_TERMINAL = sys.stdout.isatty()  # a group without a command prints its help on a terminal, an error in scripts


class Output(StrEnum):
    """Output formats."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Context:
    """Common options of one call."""

    config: Path | None
    output: Output
    language: Language
    progress: bool

    def settings(self) -> Settings:
        """Configuration of this call. Raises ConfigError."""
        from service.config import settings as settings_file  # noqa: PLC0415 - takes half a second, not needed by --help

        return settings_file.load(settings_file.find(self.config))

    @property
    def configured(self) -> bool:
        """True if a configuration was given or found; otherwise defaults apply."""
        from service.config import settings as settings_file  # noqa: PLC0415

        return settings_file.find(self.config) is not None

    def show(self, result: Any, table: Callable[[Any], str] | None = None) -> None:
        """Prints a result: one JSON or YAML document, or the command's own table."""
        if self.output is Output.JSON:
            typer.echo(json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False))
        elif self.output is Output.YAML or table is None:
            typer.echo(yaml.safe_dump(result, allow_unicode=True, sort_keys=False).rstrip())
        else:
            typer.echo(table(result))


_COMMON: dict[str, tuple[Any, Any]] = {
    "config": (
        Annotated[
            Path | None,
            typer.Option(
                "--config",
                help="Configuration file. Default: $OUTRIDER_CONFIG, else ./outrider.yaml.",
                rich_help_panel="Common",
            ),
        ],
        None,
    ),
    "output": (
        Annotated[
            Output | None,
            typer.Option(
                "-o",
                "--output",
                help="Output format. Default: table on a terminal, else json.",
                rich_help_panel="Common",
            ),
        ],
        None,
    ),
    "lang": (
        Annotated[
            Language | None,
            typer.Option("--lang", help="Language of texts: en or zh. Default: en.", rich_help_panel="Common"),
        ],
        None,
    ),
    "no_progress": (
        Annotated[bool, typer.Option("--no-progress", help="Hide progress bars.", rich_help_panel="Common")],
        False,
    ),
}


def leaf(
    app: typer.Typer, name: str, *, example: str, hidden: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers ``function(context, ...)`` as a leaf command that takes the common options.

    The function returns an exit code, or None for 0. ``--help`` shows ``example``. A parameter whose type is a
    dataclass stands for one option per field: commands share options by sharing the dataclass.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        declared = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared_options: dict[str, type[Any]] = {
            item.name: item.annotation
            for item in declared
            if isinstance(item.annotation, type) and is_dataclass(item.annotation)
        }

        @functools.wraps(function)
        def command(**arguments: Any) -> None:
            context = _context({key: arguments.pop(key) for key in _COMMON})
            _refuse_no_numbers(arguments)
            for parameter, kind in shared_options.items():
                arguments[parameter] = kind(**{field.name: arguments.pop(field.name) for field in fields(kind)})
            code = function(context, **arguments)
            raise typer.Exit(YES if code is None else code)

        options = [option for item in declared for option in _options_of(item)]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in _COMMON.items()
        ]
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in options]
        command.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*keyword, *shared)}
        del command.__wrapped__  # else typer inspects the bare function
        help_text = f"{inspect.getdoc(function)}\n\nExample: {example}"
        app.command(name, help=help_text, hidden=hidden)(command)
        return function

    return register


def _options_of(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """The options a parameter stands for: itself, or one per field of its dataclass."""
    if not is_dataclass(parameter.annotation):
        return [parameter]
    kinds = get_type_hints(parameter.annotation, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in fields(parameter.annotation)
    ]


def _default_output() -> Output:
    return Output.TABLE if sys.stdout.isatty() else Output.JSON


def output_of(arguments: Sequence[str]) -> Output:
    """Output format of a command line, also of an invalid one; an unknown format counts as the default."""
    given = ""
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        if word in ("-o", "--output"):
            given = following
        elif word.startswith(("-o", "--output=")):
            given = word.partition("=")[2] if word.startswith("--") else word.removeprefix("-o")
    return Output(given) if given in tuple(Output) else _default_output()


def _context(options: dict[str, Any]) -> Context:
    context = Context(
        config=options["config"],
        output=options["output"] or _default_output(),
        language=options["lang"] or "en",
        progress=not options["no_progress"] and sys.stderr.isatty(),
    )
    log.configure(level="warning")
    return context


def instant_of(option: str, text: str) -> datetime:
    """Timestamp of an option. Raises UsageError that names the option."""
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="write it as 2026-11-21T08:00:00Z") from error


def duration_of(option: str, text: str, *, none: bool = False) -> timedelta:
    """Duration of an option, above 0 unless ``none`` is allowed. Raises UsageError that names the option."""
    try:
        duration = parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from error
    if not duration and not none:
        raise UsageError(f"{option}: {text!r} is not longer than 0", hint="write it as 15s, 5m, 1h30m or 7d")
    return duration


def _refuse_no_numbers(arguments: dict[str, Any]) -> None:
    """Rejects ``nan`` and ``inf``, which pass every bound of an option."""
    for name, value in arguments.items():
        if isinstance(value, float) and not isfinite(value):
            raise UsageError(f"--{name.replace('_', '-')}: {value} is not a number", hint="write it as 10 or 0.5")


def fail(message: str, hint: str, code: int, output: Output) -> int:
    """Reports a failure: a sentence on standard error; on standard output a document, unless it is for a table."""
    typer.echo(f"outrider: {message}" + (f"\n  {hint}" if hint else ""), err=True)
    error = {"error": {"message": message, "hint": hint}}
    if output is Output.JSON:
        typer.echo(json.dumps(error, ensure_ascii=False))
    elif output is Output.YAML:
        typer.echo(yaml.safe_dump(error, allow_unicode=True, sort_keys=False).rstrip())
    return code


def code_of(error: OutriderError) -> int:
    """Exit code: 2 for errors in the call or a file, 3 for an unavailable dependency."""
    return USAGE if isinstance(error, UsageError) else UNAVAILABLE
