"""``outrider forecast``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from outrider.units import parse_duration
from planner import backtest
from service import reading
from service.cli import tables
from service.cli.common import ON_A_TERMINAL, Context, leaf
from service.cli.progress import bars
from service.fanout import fan_out, usual_workers

app = typer.Typer(help="Forecasts.", no_args_is_help=ON_A_TERMINAL)
_COLUMNS = (
    "name",
    "horizon",
    "wape",
    "wape_last_value",
    "wape_seasonal_naive",
    "wape_prophet",
    "coverage90",
    "peak_exceeds_p95",
    "over_provision",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One trace to score."""

    trace: backtest.Trace
    horizons: Sequence[timedelta]


def score(task: Task) -> backtest.ForecastBacktest:
    """One trace's back-test: what is spread over processes or a cluster."""
    return backtest.backtest([task.trace], horizons=task.horizons, timer=time.perf_counter)


@leaf(app, "backtest", example="outrider forecast backtest traffic.csv --horizon 30m,2h -o json")
def forecast_backtest(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    horizon: Annotated[str, typer.Option("--horizon", help="durations with commas")] = "30m,2h,24h",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="processes; as many as cores")] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Ray cluster instead: auto, local or ray://...")] = None,
) -> None:
    """Score the forecaster on traffic traces: rolling origin every 2 h, history only."""
    horizons = [parse_duration(text) for text in horizon.split(",")]
    tasks = [Task(_trace(path), horizons) for path in csv]
    with bars(context) as progress:
        parts = fan_out(
            score,
            tasks,
            workers=workers or usual_workers(),
            ray_address=ray,
            progress=lambda done, count: progress("backtest", done / count),
        )
    context.show(
        backtest.joined(parts).as_dict(),
        lambda shown: tables.table(
            list(_COLUMNS), [[_figure(row[key]) for key in _COLUMNS] for row in shown["series"]], empty="-"
        ),
    )


def _trace(path: Path) -> backtest.Trace:
    hint = "give CSV files with time_utc and requests_per_second"
    return backtest.parse_trace(reading.text_of(path, hint), path.stem, str(path))


def _figure(value: float | str | None) -> str:
    return "-" if value is None else (f"{value:.3f}" if isinstance(value, float) and value < 1000 else str(value))
