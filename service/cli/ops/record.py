"""``outrider record``: the flight recorder."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from outrider.clock import SystemClock
from outrider.text.i18n import translate
from service.cli.core.common import Context, leaf
from service.cli.core.progress import bars
from service.recorder import flight_recorder


def add(app: typer.Typer) -> None:
    """Registers the command at the top level."""

    @leaf(app, "record", example="outrider record --minutes 10 --out flight")
    def record(
        context: Context,
        out: Annotated[Path, typer.Option("--out", help="New or empty folder for the recording.")],
        minutes: Annotated[
            float, typer.Option("--minutes", min=0.01, max=525_600, help="Duration of the recording in minutes.")
        ] = 10.0,
    ) -> None:
        """Record the metrics pages of every target, for outrider replay.

        Pages are scraped, read from a Prometheus or pushed, as configured. Sources that
        cannot be recorded are listed at the end.
        """
        with bars(context) as progress:
            report = asyncio.run(
                flight_recorder.record(context.settings(), timedelta(minutes=minutes), out, SystemClock(), progress)
            )
        for sentence in report.get("left_out", ()):
            typer.echo(f"left out: {sentence}", err=True)
        context.show(report, lambda shown: translate("cli.recorded", context.language, **shown))
