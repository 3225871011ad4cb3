"""``outrider capacity replay``: what scaling costs, on traces."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.units import format_duration
from planner.backtest import Trace, parse_trace
from planner.replay import figure, score
from service import reading
from service.cli import tables
from service.cli.common import Context, duration_of, leaf
from service.cli.progress import bars


def add(app: typer.Typer) -> None:
    """Add the command to ``outrider capacity``."""
    leaf(app, "replay", example="outrider capacity replay traffic.csv --startup 5m -o json")(replay)


def replay(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    startup: Annotated[str, typer.Option("--startup", help="from launch to the first answer")] = "5m",
    plot: Annotated[Path | None, typer.Option("--plot", help="folder to draw one SVG a trace into")] = None,
    prophet: Annotated[
        bool, typer.Option("--prophet/--no-prophet", help="formula x Prophet as a rival: half a minute a trace")
    ] = True,
) -> None:
    """Replay the scaling loop on traces against static peak, HPA, KEDA, cron, Knative, Prophet by rote, an oracle."""
    with bars(context) as progress:
        found = score.replay(traces_of(csv), startup=startup_option(startup), prophet=prophet, progress=progress)
    drawn = []
    if plot is not None:
        for trace in found.traces:
            path = plot / f"{trace.name}.svg"
            reading.write(path, figure.svg(trace, found.startup, context.language))
            drawn.append(str(path))
    context.show({**found.as_dict(), "plots": drawn}, lambda shown: _replay_table(shown, context))


def startup_option(text: str) -> timedelta:
    """The option's duration. Raises UsageError for one that no replay has."""
    found = duration_of("--startup", text)
    if found > score.MOST_STARTUP:
        most = format_duration(score.MOST_STARTUP)
        raise UsageError(f"--startup is {text}", hint=f"give the time from launch to serving, up to {most}, such as 5m")
    return found


def _replay_table(shown: dict[str, Any], context: Context) -> str:
    rivals = list(shown["rival_settings"])
    heads = ["name", "gpu_hours_ratio", "requests_waiting_over_2s_ratio", "oracle_ratio", "times_oracle"]
    rows = [
        [
            row["name"],
            *(shared(row[head]) for head in heads[1:]),
            *(_rival(row[f"{name}_ratio"], row[f"{name}_waiting_over_2s_ratio"]) for name in rivals),
            shared(row["reversals_within_30min"]),
        ]
        for row in shown["traces"]
    ]
    named = ["name", "gpu_hours", "waiting_over_2s", "oracle", "times_oracle"]
    headings = [*tables.heads(context.language, *named), *rivals, *tables.heads(context.language, "reversals_30min")]
    table = tables.table(headings, rows, empty="-")
    said = translate(
        "cli.replay_summary",
        context.language,
        mean=shared(shown["mean_gpu_hours_ratio"]),
        times=f"{shown['mean_times_oracle']:.2f}",
        worst=f"{shown['worst_requests_waiting_over_2s_ratio']:.2%}",
    )
    how = translate("cli.replay_rivals", context.language, goal=f"{score.WAITING_GOAL:.1%}")
    return "\n".join([table, how, said, *shown["plots"]])


def _rival(cost: float | None, waiting: float | None) -> str:
    """``0.7297 (0.31%)``: what a rival costs, and the requests that wait for it."""
    return "-" if cost is None or waiting is None else f"{cost:.4f} ({waiting:.2%})"


def shared(value: float | None) -> str:
    """A share of a table."""
    return "-" if value is None else (str(value) if isinstance(value, int) else f"{value:.4f}")


def traces_of(paths: list[Path]) -> list[Trace]:
    """Read traces. Raises UsageError naming the file that cannot be read."""
    hint = "give CSV files with time_utc and requests_per_second"
    return [parse_trace(reading.text_of(path, hint), path.stem, str(path)) for path in paths]
