"""``outrider capacity replay``: cost of the scaling loop on traffic traces."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.text.i18n import translate
from outrider.vocabulary.units import format_duration
from planner.replay import figure, score, workload
from planner.replay.backtest import Trace, parse_trace
from service.cli.core import tables
from service.cli.core.common import Context, duration_of, leaf
from service.cli.core.progress import bars
from service.config import input_files
from service.planning.fanout import fan_out, usual_workers


def add(app: typer.Typer) -> None:
    """Registers the command."""
    leaf(app, "replay", example="outrider capacity replay traffic.csv --startup 5m -o json")(replay)


def replay(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV file with time_utc, requests_per_second.")],
    startup: Annotated[
        str, typer.Option("--startup", help="Time from launch to the first response of a replica.")
    ] = "5m",
    plot: Annotated[Path | None, typer.Option("--plot", help="Folder for one SVG per trace.")] = None,
    prophet: Annotated[
        bool,
        typer.Option(
            "--prophet/--no-prophet",
            help="Also run a policy of default Prophet and the formula; adds about 30 s per trace.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes that replay traces. Default: one per CPU core.")
    ] = None,
) -> None:
    """Compare the scaling loop with other policies on traffic traces.

    Other policies: static peak, HPA, KEDA, AWS predictive scaling, cron, Knative, default Prophet, and an oracle.
    """
    begins, traces = startup_option(startup), traces_of(csv)
    score.check_startup(begins)
    for trace in traces:
        workload.build_workload(trace)  # a trace that cannot be replayed is refused at once
    with bars(context) as progress:
        replayed = fan_out(
            partial(score.replay_one, startups=(begins,), prophet=prophet),
            traces,
            workers=workers or usual_workers(),
            progress=lambda done, count: progress("replay", done / count),
        )
    (result,) = score.join(replayed, (begins,))
    plots = []
    if plot is not None:
        for drawn in result.traces:
            path = plot / f"{drawn.name}.svg"
            input_files.write(path, figure.svg(drawn, result.startup, context.language))
            plots.append(str(path))
    context.show({**result.as_dict(), "plots": plots}, lambda shown: _replay_table(shown, result.traces, context))


def startup_option(text: str) -> timedelta:
    """Start-up time of the option. Raises UsageError for one that no replay supports."""
    duration = duration_of("--startup", text)
    if duration > score.MOST_STARTUP:
        most = format_duration(score.MOST_STARTUP)
        raise UsageError(f"--startup is {text}", hint=f"give the time from launch to serving, up to {most}, such as 5m")
    return duration


def _replay_table(shown: dict[str, Any], traces: tuple[score.TraceReplay, ...], context: Context) -> str:
    columns = ["name", "strategy", "setting", "gpu_hours", "waiting_over_2s", "times_oracle", "reversals_30min"]
    rows = []
    for trace in traces:
        oracle = trace.oracle_ratio
        policies = (trace.ours, *(trace.shown(name) for name in trace.rivals()))
        rows += [_strategy_row(trace.name, row, oracle) for row in policies]
        best = translate("cli.oracle", context.language)
        rows.append([trace.name, best, "-", percent(oracle), percent(0.0, 2), "1.00", "-"])
    table = tables.table(tables.heads(context.language, *columns), rows, empty="-")
    summary = translate(
        "cli.replay_summary",
        context.language,
        mean=percent(shown["mean_gpu_hours_ratio"]),
        times=f"{shown['mean_times_oracle']:.2f}",
        worst=percent(shown["worst_requests_waiting_over_2s_ratio"], 2),
    )
    rivals_note = translate("cli.replay_rivals", context.language, goal=percent(1 - score.WAITING_GOAL))
    return "\n".join([table, summary, rivals_note, *shown["plots"]])


def _strategy_row(name: str, row: score.StrategyScore, oracle: float) -> list[str]:
    return [
        name,
        row.name,
        "-" if row.setting is None else f"{row.setting:g}",
        percent(row.gpu_hours_ratio),
        percent(row.requests_waiting_over_2s_ratio, 2),
        f"{row.gpu_hours_ratio / oracle:.2f}",
        str(row.reversals_within_30min),
    ]


def percent(value: float, digits: int = 1) -> str:
    """Ratio as a percentage for a table, for example ``73.0 %``."""
    return f"{value * 100:.{digits}f} %"


def traces_of(paths: list[Path]) -> list[Trace]:
    """Reads traces. Raises UsageError that names the unreadable file."""
    hint = "give CSV files with time_utc and requests_per_second"
    return [parse_trace(input_files.text_of(path, hint), path.stem, str(path)) for path in paths]
