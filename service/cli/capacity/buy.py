"""``outrider capacity what-if buy`` and ``balance``: reservations, troughs, replica weights."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef, Recommendation
from outrider.text.i18n import translate
from outrider.text.unknown_names import no_such
from service.cli.capacity.weight_options import Arriving, Prefill, Tokens, Watermark
from service.cli.core.amounts import amount
from service.cli.core.common import NO, Context, duration_of, leaf

USUAL_LOAD = 0.7
"""Share of the total speed at which replicas of a file are replayed."""


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the commands."""
    leaf(
        app,
        "buy",
        example="outrider capacity what-if buy --service chat --weeks 8 --held-price 1.4 --burst-price 2.2",
        hidden=hidden,
    )(buy)
    leaf(app, "balance", example="outrider capacity what-if balance --service chat -o json", hidden=hidden)(balance)


def buy(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="Service of the store, for example chat.")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="CSV file with its load: time_utc, requests_per_second.")
    ] = None,
    per_gpu: Annotated[
        float | None, amount("--per-gpu", "request/second*gpu", "Throughput of one GPU, with --csv")
    ] = None,
    weeks: Annotated[int, typer.Option("--weeks", help="Weeks to plan, 4 to 12.", min=1)] = 8,
    held_price: Annotated[
        float | None,
        typer.Option("--held-price", help="Price of a reserved GPU-hour. Default: the price of the GPU catalog."),
    ] = None,
    burst_price: Annotated[
        float | None,
        typer.Option("--burst-price", help="Price of an on-demand GPU-hour. Default: the price of the GPU catalog."),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu", help="GPU type whose catalog prices apply, for example H100.")
    ] = None,
    lead: Annotated[str, typer.Option("--lead", help="Delivery time of reserved GPUs, for example 14d.")] = "14d",
    quota: Annotated[int | None, typer.Option("--quota", help="Maximum number of reserved GPUs.", min=0)] = None,
    startup: Annotated[
        str,
        typer.Option(
            "--startup",
            help="Start-up time of a replica, for example 5m; shorter idle windows are not offered to batch jobs.",
        ),
    ] = "8m",
) -> None:
    """Plan reserved and on-demand GPUs for 4 to 12 weeks.

    Prints GPUs to reserve, GPUs to rent by the hour, the cost with its interval, and the free capacity of troughs.
    """
    from planner.cost import reservations  # noqa: PLC0415 - numpy, not needed by --help
    from planner.performance.gpu_catalog import gpu  # noqa: PLC0415
    from service.capacity import purchasing  # noqa: PLC0415

    demand = _demand(context, service, csv, per_gpu)
    hourly, now, kind = demand.gpus, demand.at, demand.gpu_type
    spec = None if gpu_type is None and kind in (None, "unknown") else gpu(gpu_type or kind or "")
    offers = [setting.offer() for setting in context.settings().gpus]
    prices = purchasing.prices_of(demand, spec, offers, held_price, burst_price)
    reservation = reservations.plan(
        hourly,
        now,
        held_price=prices.held,
        burst_price=prices.burst,
        weeks=weeks,
        lead=duration_of("--lead", lead),
        quota=quota,
        group=demand.group,
    )
    end = now.replace(minute=0, second=0, microsecond=0)  # end of the last counted hour
    day = reservations.coming_day(hourly, reservation.growth, demand.group)
    times = end.timestamp() + 3600.0 * _hours(day.size)
    free = reservations.troughs(
        times, day.tolist(), reservation.held, startup=duration_of("--startup", startup), group=demand.group
    )
    result = {
        "held_gpus": reservation.held,
        "burst_gpus": reservation.burst,
        "cost": {"value": reservation.cost, "low": reservation.low, "high": reservation.high},
        "cost_all_on_demand": reservation.all_burst,
        "cost_peak_held": reservation.all_held,
        "weeks": reservation.weeks,
        "weekly_growth": {
            "value": reservation.growth.middle,
            "low": reservation.growth.low,
            "high": reservation.growth.high,
        },
        "held_without_quota": reservation.worth,
        "reason": None if reservation.unheld is None else reservation.unheld.value,
        "order_by": None if reservation.order_by is None else rfc3339(reservation.order_by),
        "lead_days": reservation.lead_days,
        "in_time": reservation.in_time,
        "prices": {
            "held": prices.held,
            "burst": prices.burst,
            "source": prices.source,
            "currency": prices.currency,
        },
        "load": {
            "peak_requests_per_second": demand.peak,
            "requests_per_second_per_gpu": demand.per_gpu,
            "gpus_per_replica": demand.group,
        },
        "spikes": [
            {"at": rfc3339(end - timedelta(hours=hourly.size - hour)), "gpus": float(hourly[hour])}
            for hour in reservations.spikes(hourly)
        ],
        "offline": [
            {
                "start": rfc3339(window.start),
                "back_by": rfc3339(window.back_by),
                "gpus": window.gpus,
                "gpu_hours": window.gpu_hours,
            }
            for window in free
        ],
        "offline_gpu_hours": sum(window.gpu_hours for window in free),
    }
    context.show(result, lambda shown: "\n".join(_buy_lines(context, shown, reservation.busy_ratio, quota)))


def balance(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="Service of the store, for example chat.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="JSON file with replicas, instead of the store.")] = None,
    arriving: Arriving = None,
    tokens: Tokens = 250.0,
    watermark: Watermark = 0.9,
    prefill: Prefill = 0.0,
) -> int | None:
    """Compute replica weights from predicted wait and KV headroom.

    Replays the weights against equal ones. Exits 1 if all replicas are full.
    """
    from planner.traffic import weights as weighing  # noqa: PLC0415
    from service.capacity import purchasing  # noqa: PLC0415

    if not (tokens >= 1.0):
        raise UsageError(
            f"--tokens must be 1 or more, not {tokens:g}", hint="tokens generated per request, for example 250"
        )
    if file is not None:
        if service is not None:
            raise UsageError("--file and --service exclude each other", hint="give only one of them")
        replicas, silent = purchasing.replicas_of_file(file), list[str]()
        rate = USUAL_LOAD * sum(replica.tokens_per_second for replica in replicas) if arriving is None else arriving
    else:
        replicas, seen, silent = _replicas(context, service)
        rate = seen if arriving is None else arriving
    result_weights = weighing.weigh(replicas, rate, watermark=watermark, prefill_seconds=prefill)
    admitting = [replica for replica in replicas if replica.name not in result_weights.closed] or replicas
    before, after = weighing.gain(admitting, weighing.replay_rate(admitting, rate, tokens), tokens)
    by_wait, key = after, "balance_gain"
    # with --prefill weights also keep caches warm, which a replay of waits does not show
    if prefill == 0.0 and result_weights.reason is weighing.BalanceReason.BY_WAIT and after >= before:
        result_weights, after, key = weighing.even_weights(result_weights), before, "balance_no_gain"
    result = result_weights.as_dict() | {"p95_wait_even_seconds": before, "p95_wait_seconds": after, "silent": silent}
    gain_text = translate(f"capacity.{key}", context.language, before=f"{before:.2f}", after=f"{by_wait:.2f}")
    unknown = [translate("capacity.balance_silent", context.language, replica=name) for name in silent]
    context.show(result, lambda _: "\n".join([*result_weights.lines(context.language), *unknown, gain_text]))
    return NO if result_weights.reason is weighing.BalanceReason.ALL_FULL else None


def _demand(context: Context, service: str | None, csv: Path | None, per_gpu: float | None) -> Any:
    import numpy as np  # noqa: PLC0415

    from service.capacity import purchasing  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    if csv is not None:
        if service is not None:
            raise UsageError("--csv and --service exclude each other", hint="give only one of them")
        if per_gpu is None or per_gpu <= 0:
            raise UsageError(
                "--csv needs --per-gpu above 0", hint="take the load per GPU from outrider capacity cost or calibrate"
            )
        loads, end = purchasing.hourly_of_csv(csv)
        return purchasing.Demand(np.ceil(loads / per_gpu), end, purchasing.peak_of(loads), per_gpu)
    settings = context.settings()
    with wiring_stores.stores(settings) as (state, metrics):
        entity, calibrations, now = calibrated(settings, state, metrics, service)
        loads = purchasing.hourly_of_store(metrics, entity, now)
    calibration, buffer, price = _counted(settings, entity, calibrations[0])
    return purchasing.demand_of(loads, now, calibration, buffer, price)


def _counted(
    settings: Any, entity: EntityRef, known: Calibration
) -> tuple[Calibration, float, tuple[float | None, str | None]]:
    """Calibration of one replica (SLOs and load tests included), its buffer and its price."""
    from service.cli.capacity.newest_plan import newest_plan  # noqa: PLC0415
    from service.config.service_settings import setting_of  # noqa: PLC0415

    setting = setting_of(settings.services, entity)
    price = (setting.price_per_gpu_hour, setting.currency)
    plan = newest_plan(settings)
    item = next((item for item in plan.recommendations if item.service == entity), None)
    inputs = item.derivation.get("inputs") if isinstance(item, Recommendation) else None
    if not inputs or "tokens_per_second" not in inputs:
        return known, settings.planner.buffer, price
    figures = {name: inputs[name]["value"] for name in ("tokens", "batch", "tokens_per_second", "tp", "pp")}
    planned = replace(
        known,
        tokens_per_request=figures["tokens"],
        batch=figures["batch"],
        tokens_per_second_per_sequence=figures["tokens_per_second"],
        tensor_parallel=int(figures["tp"]),
        pipeline_parallel=int(figures["pp"]),
    )
    assert isinstance(item, Recommendation)  # it has inputs
    buffer = item.derivation.get("buffer") or {}
    return planned, float(buffer.get("value", settings.planner.buffer)), price


def _replicas(context: Context, service: str | None) -> tuple[list[Any], float, list[str]]:
    """Replicas with values, arriving tokens per second, and names of replicas without values."""
    from service.capacity import purchasing  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    settings = context.settings()
    with wiring_stores.stores(settings) as (state, metrics):
        topology = state.topology()
        entity, calibrations, _ = calibrated(settings, state, metrics, service)
        replicas, arriving = purchasing.replicas_of_store(metrics, topology, entity, calibrations)
    if not replicas:
        raise UsageError(f"no replica of service {entity.name} has values", hint="collect its metrics first")
    measured = {replica.name for replica in replicas}
    members = topology.below(entity, EntityKind.REPLICA)
    return replicas, arriving, [member.name for member in members if member.name not in measured]


def calibrated(
    settings: Any, state: Any, metrics: Any, service: str | None
) -> tuple[EntityRef, list[Calibration], datetime]:
    """The service, its calibrations and the newest timestamp. Raises UsageError with the reason if there are none.

    Without usable live values, returns the calibration of the stored load test that the plan uses.
    """
    from service.capacity import sizing  # noqa: PLC0415
    from service.cli.capacity.newest_plan import newest_plan  # noqa: PLC0415

    newest, topology = state.cycles(limit=1), state.topology()
    services = topology.of_kind(EntityKind.SERVICE)
    names = sorted(item.name for item in services)
    matching = [item for item in services if service in (None, item.name)]
    if service is not None and not matching:
        raise no_such("service", service, names)
    if len(matching) != 1 or not newest:
        raise UsageError("which service?", hint=f"known services: {', '.join(names) or 'none yet'}")
    measured = sizing.of_store(settings, metrics, topology, newest[0].at, service=matching[0].name)
    known = [item for item in measured if isinstance(item, Calibration)]
    if not known:
        known = [item for item in newest_plan(settings).calibrations if item.service == matching[0]]
    if not known:
        message = (
            measured[0].text() if measured and not isinstance(measured[0], Calibration) else "nothing was measured"
        )
        raise UsageError(
            f"{matching[0].name} is not calibrated: {message}",
            hint="configure a calibration, or run outrider capacity calibrate",
        )
    return matching[0], known, newest[0].at


def _hours(count: int) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.arange(count, dtype=np.float64)


def _buy_lines(context: Context, shown: dict[str, Any], ratio: float, quota: int | None) -> list[str]:
    def line(key: str, **numbers: Any) -> str:
        return translate(f"capacity.{key}", context.language, **numbers)

    prices, load = shown["prices"], shown["load"]
    unit = prices["currency"]
    cost = {name: f"{value:,.0f} {unit}" for name, value in shown["cost"].items()}
    numbers = {"held": shown["held_gpus"], "burst": shown["burst_gpus"], "cost": cost["value"]}
    all_burst, all_held = (f"{shown[name]:,.0f} {unit}" for name in ("cost_all_on_demand", "cost_peak_held"))
    per_gpu = {"peak": f"{load['peak_requests_per_second']:.4g}", "each": f"{load['requests_per_second_per_gpu']:.3g}"}
    paid = {"held": f"{prices['held']:.4g}", "burst": f"{prices['burst']:.4g}", "source": prices["source"]}
    lines = [
        line("buy_now", **numbers, low=cost["low"], high=cost["high"]),
        line("buy_load", **per_gpu, group=load["gpus_per_replica"]),
        line("buy_prices", **paid, currency=unit),
        line("buy_rather", burst=all_burst, peak=all_held),
        line("buy_never") if ratio >= 1.0 else line("buy_why", ratio=f"{ratio:.0%}"),
    ]
    lead, worth = f"{shown['lead_days']:g}", shown["held_without_quota"]
    if worth > shown["held_gpus"]:
        lines.append(line("buy_quota", held=shown["held_gpus"], worth=worth, quota=quota))
    if shown["order_by"] is not None:
        lines.append(line("buy_when", order=shown["order_by"], lead=lead))
    elif shown["reason"] in ("too_late", "seldom_busy"):
        lines.append(line(f"buy_{shown['reason']}", lead=lead))
    lines += [line("buy_spike", at=entry["at"], gpus=f"{entry['gpus']:,.0f}") for entry in shown["spikes"]]
    lines.append(line("offline", hours=f"{shown['offline_gpu_hours']:,.0f}"))
    lines += [
        "  " + line("offline_window", gpus=entry["gpus"], start=entry["start"], end=entry["back_by"])
        for entry in shown["offline"]
    ]
    return lines
