"""``outrider config``: create and validate the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import SystemClock
from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.text import yaml_file
from outrider.text.i18n import Language, translate
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.config import settings as settings_file
from service.config import template
from service.oncall.config_warnings import button_warnings, maintenance_warnings, oncall_warnings

app = typer.Typer(help="Create and validate the configuration.", no_args_is_help=ON_A_TERMINAL)


@leaf(app, "init", example="outrider config init --prometheus http://prometheus:9090")
def init(
    context: Context,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", help="URL of a Prometheus to read instead of scraping.")
    ] = None,
    file: Annotated[
        Path, typer.Option("--file", help="File to write; - for standard output.")
    ] = settings_file.DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration."""
    if prometheus is not None and not prometheus.startswith(("http://", "https://")):
        raise UsageError(f"{prometheus!r} is not a URL", hint="write it as http://host:9090")
    text = template.text(prometheus)
    if str(file) == "-":
        typer.echo(text, nl=False)
        return
    if file.exists() and not force:
        raise UsageError(f"{file} exists already", hint="choose another file with --file, or overwrite it with --force")
    file.write_text(text, encoding="utf-8")
    context.show({"path": str(file)}, lambda _: translate("cli.config_written", context.language, file=file))


@leaf(app, "check", example="outrider config check outrider.yaml")
def check(context: Context, file: Annotated[Path, typer.Argument(help="Configuration file.")]) -> int:
    """Validate a configuration: file, line, key and expected value. Warnings do not make it invalid."""
    problems: Sequence[ConfigProblem] = ()
    doubts: Sequence[ConfigProblem] = ()
    try:
        settings, problems, doubts = settings_file.review(file)
        if settings is not None and not problems:
            document = yaml_file.read(file)
            doubts = [*doubts, *oncall_warnings(settings.oncall, document, SystemClock().now())]
            doubts += maintenance_warnings(settings, document, SystemClock().now())
            doubts += button_warnings(settings, document)
    except ConfigError as error:
        if not error.problems:
            raise
        problems = error.problems
    errors, warnings = _listed(problems), _listed(doubts)
    result = {"valid": not errors, "errors": errors, "warnings": warnings}
    context.show(result, lambda _: _text(file, _in_order(problems), _in_order(doubts), context.language))
    return NO if errors else YES


def _in_order(problems: Sequence[ConfigProblem]) -> list[ConfigProblem]:
    return sorted(problems, key=lambda problem: (problem.file, problem.line))


def _listed(problems: Sequence[ConfigProblem]) -> list[dict[str, Any]]:
    keys = ("file", "line", "key", "message")
    return [{key: getattr(problem, key) for key in keys} for problem in _in_order(problems)]


def _text(file: Path, problems: Sequence[ConfigProblem], doubts: Sequence[ConfigProblem], language: Language) -> str:
    key = "cli.config_invalid" if problems else "cli.config_valid"
    lines = [translate(key, language, file=file, count=len(problems)), *map(str, problems)]
    lines += [translate("cli.config_doubt", language, problem=str(doubt)) for doubt in doubts]
    return "\n".join(lines)
