"""``outrider capacity replay``, ``strategies`` and ``warm``: what scaling costs, which way fits, and faster starts."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.ledger import StartPhase, Startup
from outrider.units import parse_duration
from planner import advice
from planner.backtest import Trace, parse_trace
from planner.replay import figure, score
from planner.warm import WarmSettings, phases_of, warm
from service import wiring
from service.cli import tables
from service.cli.common import Context, leaf
from service.cli.progress import bars
from service.settings import ServiceSettings

_STARTS_READ = 1000


def add(app: typer.Typer) -> None:
    """Add the commands to ``outrider capacity``."""
    leaf(app, "replay", example="outrider capacity replay traffic.csv --startup 5m -o json")(replay)
    leaf(app, "strategies", example="outrider capacity strategies traffic.csv --startup 5m")(strategies)
    leaf(app, "warm", example="outrider capacity warm --service chat --phase pull=140 --documents warm.yaml")(warming)


def replay(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    startup: Annotated[str, typer.Option("--startup", help="from launch to the first answer")] = "5m",
    plot: Annotated[Path | None, typer.Option("--plot", help="folder to draw one SVG a trace into")] = None,
    prophet: Annotated[
        bool, typer.Option("--prophet/--no-prophet", help="formula x Prophet as a rival: a minute a trace")
    ] = True,
) -> None:
    """Replay the scaling loop on traces against static peak, HPA, KEDA, cron, Knative, Prophet by rote, an oracle."""
    with bars(context) as progress:
        found = score.replay(traces_of(csv), startup=parse_duration(startup), prophet=prophet, progress=progress)
    drawn = []
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        for trace in found.traces:
            path = plot / f"{trace.name}.svg"
            path.write_text(figure.svg(trace, found.startup), encoding="utf-8")
            drawn.append(str(path))
    context.show({**found.as_dict(), "plots": drawn}, lambda shown: _replay_table(shown, context))


def _replay_table(shown: dict[str, Any], context: Context) -> str:
    rivals = list(shown["rival_settings"])
    heads = ["name", "gpu_hours_ratio", "requests_waiting_over_2s_ratio", "oracle_ratio", "times_oracle"]
    heads += [*(f"{name}_ratio" for name in rivals), "reversals_within_30min"]
    rows = [[row["name"], *(_share(row[head]) for head in heads[1:])] for row in shown["traces"]]
    table = tables.table([head.removesuffix("_ratio").replace("_", " ") for head in heads], rows, empty="-")
    said = translate(
        "cli.replay_summary",
        context.language,
        mean=_share(shown["mean_gpu_hours_ratio"]),
        times=f"{shown['mean_times_oracle']:.2f}",
        worst=f"{shown['worst_requests_waiting_over_2s_ratio']:.2%}",
    )
    return "\n".join([table, said, *shown["plots"]])


def _share(value: float | None) -> str:
    return "-" if value is None else (str(value) if isinstance(value, int) else f"{value:.4f}")


def traces_of(paths: list[Path]) -> list[Trace]:
    """Read traces. Raises UsageError naming the file that cannot be read."""
    found = []
    for path in paths:
        try:
            found.append(parse_trace(path.read_text(encoding="utf-8"), path.stem))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"{path} cannot be read: {why}", hint="give CSV files with time_utc and requests_per_second"
            ) from error
    return found


def strategies(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    startup: Annotated[str, typer.Option("--startup", help="from launch to the first answer")] = "5m",
    cold_start: Annotated[
        str, typer.Option("--cold-start", help="how long the first request after a silence may wait")
    ] = "0s",
) -> None:
    """Replay every strategy on each trace and advise one by the class of its traffic, with the reason."""
    with bars(context) as progress:
        found = advice.advise(
            traces_of(csv),
            startup=parse_duration(startup),
            cold_start_limit=parse_duration(cold_start),
            progress=progress,
        )
    shown = [one.as_dict(context.language) for one in found]
    context.show({"startup_seconds": parse_duration(startup).total_seconds(), "traces": shown}, _strategies_table)


def _strategies_table(shown: dict[str, Any]) -> str:
    heads = ["strategy", "setting", "gpu hours", "waiting over 2s", "first request s", "keeps goal", "advised"]
    blocks = []
    for trace in shown["traces"]:
        rows = [
            [
                row["name"],
                "-" if row["setting"] is None else f"{row['setting']:g}",
                _share(row["gpu_hours_ratio"]),
                _share(row["requests_waiting_over_2s_ratio"]),
                f"{row['first_request_delay_seconds']:g}",
                "yes" if row["keeps_goal"] else "no",
                "*" if row["name"] == trace["recommended"] else "",
            ]
            for row in trace["strategies"]
        ]
        title = f"{trace['name']} ({trace['traffic_class']}): {trace['why']}"
        blocks.append(title + "\n" + tables.table(heads, rows, empty="-"))
    return "\n\n".join(blocks)


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
        out.write_text(yaml.safe_dump_all(planned.documents, sort_keys=False, allow_unicode=True), encoding="utf-8")
    shown = {**planned.as_dict(), "currency": known.currency, "written": None if out is None else str(out)}
    context.show(shown, lambda answer: _warm_table(answer, context))


def _starts(context: Context, service: str) -> tuple[Startup, ...]:
    """The starts that the store knows of a service."""
    kept = wiring.startups(context.settings(), _STARTS_READ)
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
    table = tables.table(["remedy", "saves s", "idle GPUs", "idle cost", "phases"], rows, empty="-")
    return "\n".join([first, table, *([shown["written"]] if shown["written"] else [])])
