"""``outrider capacity what-if strategies``: scaling strategy that fits the traffic."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.text.i18n import translate
from planner.replay import advice
from planner.replay.backtest import Trace
from service.cli.capacity.replay import percent, startup_option, traces_of
from service.cli.core import tables
from service.cli.core.common import NO, Context, duration_of, instant_of, leaf
from service.cli.core.progress import bars

_USUAL_STARTUP = "5m"


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the command."""
    example = "outrider capacity what-if strategies --service chat --cold-start 30s"
    leaf(app, "strategies", example=example, hidden=hidden)(strategies)


def strategies(
    context: Context,
    csv: Annotated[
        list[Path] | None, typer.Argument(help="CSV file with time_utc, requests_per_second. Default: the store.")
    ] = None,
    service: Annotated[str | None, typer.Option("--service", help="Use this service of the store only.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Use the store as of this time (RFC 3339).")] = None,
    startup: Annotated[
        str | None,
        typer.Option("--startup", help="Time from launch to the first response. Default for the store: as measured."),
    ] = None,
    cold_start: Annotated[
        str, typer.Option("--cold-start", help="Maximum wait of the first request after an idle period.")
    ] = "0s",
) -> int | None:
    """Replay every scaling strategy on each trace and recommend one.

    Traces are files or services of the store. Exits 1 if no stored trace is long enough.
    """
    cold = duration_of("--cold-start", cold_start, none=True)
    given = None if startup is None else startup_option(startup)
    if csv and (service is not None or at is not None):
        raise UsageError(
            "files and --service or --at exclude each other",
            hint="--service and --at refer to the store; omit the files",
        )
    if csv:
        usual = given or startup_option(_USUAL_STARTUP)
        source = "default" if given is None else "given"
        traffic = [(trace, usual, source) for trace in traces_of(csv)]
    else:
        traffic = _of_store(context, service, at, given)
    shown, refused = [], []
    with bars(context) as progress:
        for index, (trace, begins, source) in enumerate(traffic):
            try:
                (advised,) = advice.advise([trace], startup=begins, cold_start_limit=cold)
            except UsageError as error:
                if csv:
                    raise
                refused.append({"name": trace.name, "why": error.message, "hint": error.hint})
            else:
                row = advised.as_dict(context.language)
                shown.append({**row, "startup_seconds": begins.total_seconds(), "startup_source": source})
            progress("replay", (index + 1) / len(traffic))
    seconds = {row["startup_seconds"] for row in shown}
    result = {"startup_seconds": seconds.pop() if len(seconds) == 1 else None, "traces": shown, "refused": refused}
    context.show(result, lambda answer: _table(answer, context))
    return None if shown else NO


def _of_store(
    context: Context, service: str | None, at: str | None, given: timedelta | None
) -> list[tuple[Trace, timedelta, str]]:
    from service.capacity import traces  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415 - the store, not needed for files

    settings = context.settings()
    starts = wiring_stores.startups(settings, wiring_stores.STARTS_READ) if given is None else ()
    with wiring_stores.stores(settings) as (state, metrics):
        newest = state.cycles(limit=1)
        instant: datetime | None = instant_of("--at", at) if at else newest[0].at if newest else None
        topology = state.topology(instant) if at else state.topology()
        stored = [] if instant is None else traces.of_store(settings, metrics, topology, instant, starts)
    names = ", ".join(item.service.name for item in stored) or "none yet"
    if service is not None and service not in {item.service.name for item in stored}:
        raise UsageError(f"no service with traffic is named {service!r}", hint=f"known services: {names}")
    return [
        (item.trace, given or item.startup, "given" if given else item.startup_source)
        for item in stored
        if service in (None, item.service.name)
    ]


def _table(shown: dict[str, Any], context: Context) -> str:
    named = ("strategy", "setting", "gpu_hours", "waiting_over_2s", "first_request_seconds", "keeps_goal", "advised")
    heads = tables.heads(context.language, *named)
    keeps, fails = (translate(f"cli.{word}", context.language) for word in ("is_so", "is_not_so"))
    blocks = []
    for trace in shown["traces"]:
        rows = [
            [
                row["name"],
                "-" if row["setting"] is None else f"{row['setting']:g}",
                percent(row["gpu_hours_ratio"]),
                percent(row["requests_waiting_over_2s_ratio"], 2),
                f"{row['first_request_delay_seconds']:g}",
                keeps if row["keeps_goal"] else fails,
                "*" if row["name"] == trace["recommended"] else "",
            ]
            for row in trace["strategies"]
        ]
        kind = translate(f"plan.traffic_{trace['traffic_class']}", context.language)
        title = f"{trace['name']} ({kind}): {trace['why']}"
        blocks.append(title + "\n" + tables.table(heads, rows, empty="-"))
    blocks += [f"{entry['why']}; {entry['hint']}" for entry in shown["refused"]]
    return "\n\n".join(blocks) or translate("cli.no_services", context.language)
