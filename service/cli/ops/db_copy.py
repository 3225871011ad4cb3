"""``outrider db copy``: move the value history to a remote metric server."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from outrider.clock import SystemClock, parse_rfc3339
from service.cli.core.common import Context, leaf
from service.cli.core.progress import bars
from service.ops import history_copy


def add(group: typer.Typer) -> None:
    """Registers ``copy`` in the group of database commands."""

    @leaf(group, "copy", example="outrider db copy --days 30")
    def copy(
        context: Context,
        days: Annotated[float, typer.Option(min=0.01, help="Days to copy, for example 30.")] = 15.0,
        since: Annotated[str | None, typer.Option(help="Start time (RFC 3339), instead of a span.")] = None,
        until: Annotated[str | None, typer.Option(help="End time (RFC 3339). Default: now.")] = None,
    ) -> None:
        """Copy values from store.url to the server of store.metrics. Can be repeated after an interruption."""
        end = parse_rfc3339(until) if until else SystemClock().now()
        start = parse_rfc3339(since) if since else end - timedelta(days=days)
        with bars(context) as progress:
            report = history_copy.run(context.settings(), start, end, progress)
        context.show(report)
