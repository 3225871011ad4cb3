"""``outrider report``: write and send reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.clock import SystemClock
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.runtime import report_jobs

report_app = typer.Typer(help="Write and send reports.", no_args_is_help=ON_A_TERMINAL)
Week = Annotated[
    str | None, typer.Option("--week", help="ISO week, for example 2026-W47. Default: the last complete week.")
]
Formats = Annotated[str, typer.Option("--format", help="Formats, separated by commas: html, md, json.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
Send = Annotated[bool, typer.Option("--send", help="Send it to the channels of the report group.")]


@leaf(report_app, "weekly", example="outrider report weekly --week 2026-W47 --format html,md --lang zh")
def weekly(
    context: Context,
    week: Week = None,
    formats: Formats = "html,md,json",
    out: Folder = Path("reports-out"),
    send: Send = False,
) -> None:
    """Write the weekly SLA report."""
    _write(context, "weekly", week, formats, out, send=send)


@leaf(report_app, "capacity", example="outrider report capacity --week 2026-W47 --format html,md --lang zh")
def capacity(
    context: Context,
    week: Week = None,
    formats: Formats = "html,md,json",
    out: Folder = Path("reports-out"),
    send: Send = False,
) -> None:
    """Write the capacity report: needs, forecast, and the plan of the week in hindsight."""
    _write(context, "capacity", week, formats, out, send=send)


def _write(context: Context, report: str, week: str | None, formats: str, out: Path, *, send: bool) -> None:
    settings, now = context.settings(), SystemClock().now()
    written = report_jobs.weekly(
        settings, week, formats.split(","), out, context.language, now, send=send, report=report
    )
    context.show(
        {"paths": [str(path) for path in written.paths], "empty": written.empty},
        lambda shown: "\n".join(shown["paths"]) + ("\n(no data in that week)" if shown["empty"] else ""),
    )
