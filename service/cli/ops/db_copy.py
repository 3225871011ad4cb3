"""``outrider db copy``: the history of the database into the server that keeps the values from now on."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from outrider.clock import SystemClock, parse_rfc3339
from service.cli.core.common import Context, leaf
from service.cli.core.progress import bars
from service.ops import history_copy


def add(group: typer.Typer) -> None:
    """Register ``copy`` on the group of database commands."""

    @leaf(group, "copy", example="outrider db copy --days 30")
    def copy(
        context: Context,
        days: Annotated[float, typer.Option(min=0.01, help="how far back")] = 15.0,
        since: Annotated[str | None, typer.Option(help="instant to begin at instead, RFC 3339")] = None,
        until: Annotated[str | None, typer.Option(help="instant to end at, RFC 3339; now when not given")] = None,
    ) -> None:
        """Copy the values of store.url to the server of store.metrics. May be run again when it was broken off."""
        end = parse_rfc3339(until) if until else SystemClock().now()
        start = parse_rfc3339(since) if since else end - timedelta(days=days)
        with bars(context) as progress:
            found = history_copy.run(context.settings(), start, end, progress)
        context.show(found)
