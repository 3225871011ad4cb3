"""``outrider report``, ``outrider notify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.clock import SystemClock
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.runtime import report_jobs

report_app = typer.Typer(help="Reports.", no_args_is_help=ON_A_TERMINAL)
Week = Annotated[str | None, typer.Option("--week", help="ISO week such as 2026-W47; the last whole one")]
Formats = Annotated[str, typer.Option("--format", help="html, md, json; several with commas")]
Folder = Annotated[Path, typer.Option("--out", help="folder to write into")]
Send = Annotated[bool, typer.Option("--send", help="send it to the channels of group report")]
notify_app = typer.Typer(help="Notification channels.", no_args_is_help=ON_A_TERMINAL)


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
    """Write what each service needs, what comes, and what the plan did or would have done in the week."""
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


@leaf(notify_app, "test", example="outrider notify test oncall")
def notify_test(context: Context, channel: Annotated[str, typer.Argument(help="name under notify.channels")]) -> int:
    """Send a sample of each priority to a channel."""
    sent, error = report_jobs.test_channel(context.settings(), channel, context.language, SystemClock().now())
    context.show(
        {"sent": sent, "error": error}, lambda shown: f"{shown['sent']} sent" + (f"; {error}" if error else "")
    )
    return NO if error else YES
