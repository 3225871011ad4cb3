"""``outrider forecast``: forecast accuracy on traces and in production."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from outrider.errors import UsageError
from outrider.text import install_hints
from outrider.text.i18n import translate
from outrider.text.unknown_names import no_such
from outrider.vocabulary.units import format_duration
from planner.forecast.forecaster import DEFAULT_MODELS, FAST_MODELS, PROPHET
from planner.forecast.registry import FORECASTERS
from planner.replay import backtest
from service.cli.core import tables
from service.cli.core.common import ON_A_TERMINAL, Context, duration_of, leaf
from service.cli.core.progress import bars
from service.config import input_files
from service.planning.fanout import fan_out, usual_workers
from service.planning.forecast_accuracy import accuracy_by_horizon
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Score forecasts.", no_args_is_help=ON_A_TERMINAL)
_LONGEST = timedelta(days=14)
_COLUMNS = (
    "name",
    "horizon",
    "wape",
    "wape_last_value",
    "wape_seasonal_naive",
    "wape_prophet",
    "pinball",
    "peak_error",
    "coverage90",
    "peak_exceeds_p95",
    "over_provision",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One trace to score, with the forecasters that are fitted nightly."""

    trace: backtest.Trace
    horizons: Sequence[timedelta]
    models: tuple[str, ...] = DEFAULT_MODELS


def score(task: Task) -> backtest.ForecastBacktest:
    """Back-test of one trace; the unit of work for processes or a cluster."""
    return backtest.backtest([task.trace], horizons=task.horizons, models=task.models, timer=time.perf_counter)


@leaf(app, "backtest", example="outrider forecast backtest traffic.csv --horizon 30m,2h -o json")
def forecast_backtest(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV file with time_utc, requests_per_second.")],
    horizon: Annotated[
        str, typer.Option("--horizon", help="Horizons, separated by commas, for example 30m,2h,24h.")
    ] = "30m,2h,24h",
    forecasters: Annotated[
        str,
        typer.Option(
            "--forecasters", help=f"Forecasters fitted nightly, separated by commas: {', '.join(FORECASTERS)}."
        ),
    ] = PROPHET,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Number of processes. Default: number of cores.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", help="Ray cluster to use instead of processes: auto, local or ray://...")
    ] = None,
) -> None:
    """Score the forecaster on traffic traces: rolling origin every 2 h, history only."""
    horizons = [_horizon(text) for text in horizon.split(",")]
    models = (*FAST_MODELS, *_forecasters(forecasters))
    traces = [_trace(path) for path in csv]
    for trace in traces:
        if min(horizons) < trace.step:
            slot = format_duration(trace.step)
            raise UsageError(
                f"--horizon {format_duration(min(horizons))} is shorter than a slot of {trace.name}, {slot}",
                hint=f"give {slot} or more, such as 30m,2h,24h",
            )
    tasks = [Task(trace, horizons, models) for trace in traces]
    with bars(context) as progress:
        parts = fan_out(
            score,
            tasks,
            workers=workers or usual_workers(),
            ray_address=ray,
            progress=lambda done, count: progress("backtest", done / count),
        )
    context.show(
        backtest.merge_backtests(parts).as_dict(),
        lambda shown: tables.table(
            tables.heads(context.language, *_COLUMNS),
            [[_figure(key, row[key]) for key in _COLUMNS] for row in shown["series"]],
            empty="-",
        ),
    )


@leaf(app, "kept", example="outrider forecast kept --service chat --hours 24 -o json")
def forecast_kept(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="Score this service only.")] = None,
    hours: Annotated[
        float, typer.Option("--hours", help="Score forecasts for the last hours, for example 168.", min=0.2, max=336)
    ] = 24,
) -> None:
    """Compare stored forecasts of load and peaks with observed values, by lead time."""
    with wiring_stores.stores(context.settings()) as (state, metrics):
        newest = state.cycles(limit=1)
        entities = [entity.service for entity in state.plan().recommendations]
        names = [entity.name for entity in entities]
        if service is not None and service not in names:
            raise no_such("service", service, names)
        wanted = [entity for entity in entities if service in (None, entity.name)] if newest else []
        accuracies = [
            (entity, accuracy_by_horizon(state, metrics, entity, newest[0].at, timedelta(hours=hours)))
            for entity in wanted
        ]
    rows = [
        {"namespace": entity.namespace, "service": entity.name, **row.as_dict()}
        for entity, accuracy in accuracies
        for row in accuracy
    ]
    heads = list(rows[0]) if rows else []
    context.show(
        rows,
        lambda shown: tables.table(
            tables.heads(context.language, *heads),
            [[_figure(key, row[key]) for key in heads] for row in shown],
            empty=translate("cli.no_kept_forecasts", context.language),
        ),
    )


def _horizon(text: str) -> timedelta:
    """One value of ``--horizon``. Raises UsageError if no trace of weeks can score it."""
    horizon = duration_of("--horizon", text)
    if horizon > _LONGEST:
        raise UsageError(f"--horizon {text.strip()} is too long", hint=f"give at most {format_duration(_LONGEST)}")
    return horizon


def _forecasters(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        known = FORECASTERS.get(name)
        if known is None:
            raise no_such("forecaster", name, FORECASTERS)
        if known.is_absent():
            raise UsageError(f"{known.title} is not installed", hint=install_hints.how(known.extra))
    return names


def _trace(path: Path) -> backtest.Trace:
    hint = "give CSV files with time_utc and requests_per_second"
    return backtest.parse_trace(input_files.text_of(path, hint), path.stem, str(path))


def _figure(column: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if column in ("horizon", "horizon_seconds"):
        return format_duration(float(value))
    return f"{value:.3f}" if isinstance(value, float) and value < 1000 else str(value)
