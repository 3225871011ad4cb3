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
    """Register the command on the root."""

    @leaf(app, "record", example="outrider record --minutes 10 --out flight")
    def record(
        context: Context,
        out: Annotated[Path, typer.Option("--out", help="new or empty folder for the recording")],
        minutes: Annotated[float, typer.Option("--minutes", min=0.01, max=525_600, help="how long to record")] = 10.0,
    ) -> None:
        """Record the pages of every target as they come; outrider replay reads the folder.

        Pages are scraped, read from a Prometheus or pushed, as the configuration says. What a recording cannot
        hold is named at the end.
        """
        with bars(context) as progress:
            found = asyncio.run(
                flight_recorder.record(context.settings(), timedelta(minutes=minutes), out, SystemClock(), progress)
            )
        for sentence in found.get("left_out", ()):
            typer.echo(f"left out: {sentence}", err=True)
        context.show(found, lambda shown: translate("cli.recorded", context.language, **shown))
