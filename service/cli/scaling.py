"""``outrider capacity replay`` and ``warm``: what scaling costs, and faster starts."""

from __future__ import annotations

from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.ledger import StartPhase, Startup
from outrider.units import format_duration
from planner.backtest import Trace, parse_trace
from planner.replay import figure, score
from planner.warm import WarmSettings, phases_of, warm
from service import reading, wiring
from service.cli import tables
from service.cli.common import Context, duration_of, leaf
from service.cli.progress import bars
from service.service_settings import ServiceSettings


def add(app: typer.Typer) -> None:
    """Add the commands to ``outrider capacity``."""
    leaf(app, "replay", example="outrider capacity replay traffic.csv --startup 5m -o json")(replay)
    leaf(app, "warm", example="outrider capacity warm --service chat --phase pull=140 --documents warm.yaml")(warming)


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
    heads += [*(f"{name}_ratio" for name in rivals), "reversals_within_30min"]
    rows = [[row["name"], *(shared(row[head]) for head in heads[1:])] for row in shown["traces"]]
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
    return "\n".join([table, said, *shown["plots"]])


def shared(value: float | None) -> str:
    """A share of a table."""
    return "-" if value is None else (str(value) if isinstance(value, int) else f"{value:.4f}")


def traces_of(paths: list[Path]) -> list[Trace]:
    """Read traces. Raises UsageError naming the file that cannot be read."""
    hint = "give CSV files with time_utc and requests_per_second"
    return [parse_trace(reading.text_of(path, hint), path.stem, str(path)) for path in paths]


def warming(
    context: Context,
    service: Annotated[str, typer.Option("--service", help="name of the service")],
    phase: Annotated[
        list[str] | None, typer.Option("--phase", help="PHASE=SECONDS by hand, in place of what was measured")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="of the engine, to pull it ahead")] = None,
    url: Annotated[str | None, typer.Option("--url", help="of the service, for warm-up prompts")] = None,
    model: Annotated[str | None, typer.Option("--model", help="name that the prompts ask for")] = None,
    spare: Annotated[int, typer.Option("--spare", help="replicas kept ahead by balloons or a warm pool", min=1)] = 1,
    out: Annotated[Path | None, typer.Option("--documents", help="file to write the Kubernetes documents to")] = None,
) -> None:
    """Say which phase of a start to attack first, what each remedy saves and costs, and write the documents."""
    if not service.strip():
        raise UsageError("--service names no service", hint="give the name of one")
    settings = context.settings()
    known = next((one for one in settings.services if one.name == service), ServiceSettings(name=service))
    starts: tuple[Startup, ...] = () if phase else _starts(context, service)
    planned = warm(
        WarmSettings(
            service=service,
            namespace=known.namespace or "default",
            image=image,
            url=url,
            model=model,
            gpus=known.tensor_parallel * known.pipeline_parallel,
            spare=spare,
            price_per_gpu_hour=known.price_per_gpu_hour,
        ),
        _phases(phase) if phase else phases_of(starts),
        starts,
    )
    if out is not None:
        reading.write(out, yaml.safe_dump_all(planned.documents, sort_keys=False, allow_unicode=True))
    shown = {**planned.as_dict(), "currency": known.currency, "written": None if out is None else str(out)}
    context.show(shown, lambda answer: _warm_table(answer, context))


def _starts(context: Context, service: str) -> tuple[Startup, ...]:
    """The starts that the store knows of a service."""
    kept = wiring.startups(context.settings(), wiring.STARTS_READ)
    return tuple(one for one in kept if service in (one.service, one.workload))


def _phases(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, seconds = text.partition("=")
        try:
            value = float(seconds)
        except ValueError:
            value = -1.0
        if name not in set(StartPhase) or not isfinite(value) or value < 0:
            raise UsageError(
                f"--phase {text!r} is no phase with its seconds",
                hint=f"write PHASE=SECONDS such as pull=140; phases: {', '.join(StartPhase)}",
            )
        found[name] = value
    return found


def _warm_table(shown: dict[str, Any], context: Context) -> str:
    if not shown["phases"]:
        return translate("cli.warm_unknown", context.language, service=shown["service"])
    phases = ", ".join(f"{name} {seconds:g} s" for name, seconds in shown["phases"].items())
    first = translate("cli.warm_first", context.language, phase=shown["attack_first"] or "-", phases=phases)
    rows = [
        [
            remedy["name"],
            f"{remedy['seconds_saved']:g}",
            str(remedy["idle_gpus"]),
            "-" if remedy["idle_cost_per_hour"] is None else f"{remedy['idle_cost_per_hour']:g} {shown['currency']}/h",
            ", ".join(remedy["phases"]),
        ]
        for remedy in shown["remedies"]
    ]
    table = tables.table(
        tables.heads(context.language, "remedy", "saves_seconds", "idle_gpus", "idle_cost", "phases"), rows, empty="-"
    )
    return "\n".join([first, table, *([shown["written"]] if shown["written"] else [])])
