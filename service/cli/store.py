"""``outrider report``, ``outrider notify``, ``outrider forecast``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from outrider.clock import SystemClock
from outrider.errors import UsageError
from outrider.units import parse_duration
from planner import backtest
from service import reporting
from service.cli import tables
from service.cli.common import NO, ON_A_TERMINAL, YES, Context, leaf

report_app = typer.Typer(help="Reports.", no_args_is_help=ON_A_TERMINAL)
notify_app = typer.Typer(help="Notification channels.", no_args_is_help=ON_A_TERMINAL)
forecast_app = typer.Typer(help="Forecasts.", no_args_is_help=ON_A_TERMINAL)


@leaf(report_app, "weekly", example="outrider report weekly --week 2026-W47 --format html,md --lang zh")
def weekly(
    context: Context,
    week: Annotated[str | None, typer.Option("--week", help="ISO week such as 2026-W47; the last whole one")] = None,
    formats: Annotated[str, typer.Option("--format", help="html, md, json; several with commas")] = "html,md,json",
    out: Annotated[Path, typer.Option("--out", help="folder to write into")] = Path("reports-out"),
    send: Annotated[bool, typer.Option("--send", help="send it to the channels of group report")] = False,
) -> None:
    """Write the weekly SLA report."""
    _write(context, "weekly", week, formats, out, send=send)


@leaf(report_app, "capacity", example="outrider report capacity --week 2026-W47 --format html,md --lang zh")
def capacity(
    context: Context,
    week: Annotated[str | None, typer.Option("--week", help="ISO week such as 2026-W47; the last whole one")] = None,
    formats: Annotated[str, typer.Option("--format", help="html, md, json; several with commas")] = "html,md,json",
    out: Annotated[Path, typer.Option("--out", help="folder to write into")] = Path("reports-out"),
    send: Annotated[bool, typer.Option("--send", help="send it to the channels of group report")] = False,
) -> None:
    """Write what each service needs, what comes, and what the plan did or would have done in the week."""
    _write(context, "capacity", week, formats, out, send=send)


def _write(context: Context, report: str, week: str | None, formats: str, out: Path, *, send: bool) -> None:
    settings, now = context.settings(), SystemClock().now()
    written = reporting.weekly(settings, week, formats.split(","), out, context.language, now, send=send, report=report)
    context.show(
        {"paths": [str(path) for path in written.paths], "empty": written.empty},
        lambda shown: "\n".join(shown["paths"]) + ("\n(no data in that week)" if shown["empty"] else ""),
    )


@leaf(notify_app, "test", example="outrider notify test oncall")
def notify_test(context: Context, channel: Annotated[str, typer.Argument(help="name under notify.channels")]) -> int:
    """Send a sample of each priority to a channel."""
    sent, error = reporting.test_channel(context.settings(), channel, context.language, SystemClock().now())
    context.show(
        {"sent": sent, "error": error}, lambda shown: f"{shown['sent']} sent" + (f"; {error}" if error else "")
    )
    return NO if error else YES


@leaf(forecast_app, "backtest", example="outrider forecast backtest traffic.csv --horizon 30m,2h -o json")
def forecast_backtest(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    horizon: Annotated[str, typer.Option("--horizon", help="durations with commas")] = "30m,2h,24h",
) -> None:
    """Score the forecaster on traffic traces: rolling origin every 2 h, history only."""
    traces = []
    for path in csv:
        try:
            traces.append(backtest.parse_trace(path.read_text(encoding="utf-8"), path.stem))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    horizons = [parse_duration(text) for text in horizon.split(",")]
    result = backtest.backtest(traces, horizons=horizons, timer=time.perf_counter).as_dict()
    headings = ["name", "horizon", "wape", "wape_last_value", "wape_seasonal_naive", "wape_prophet", "coverage90"]
    context.show(
        result,
        lambda shown: tables.table(
            headings, [[_figure(row[key]) for key in headings] for row in shown["series"]], empty="-"
        ),
    )


def _figure(value: float | str | None) -> str:
    return "-" if value is None else (f"{value:.3f}" if isinstance(value, float) and value < 1000 else str(value))
