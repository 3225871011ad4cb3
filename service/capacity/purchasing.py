"""Inputs of reservation, trough and traffic weight plans: loads of a file or the store, and current replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef, Floats, SignalKey, Statistic, signal_keys
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner.capacity.demand import apply_formula
from planner.cost.offers import DEFAULT_CURRENCY, Offer
from planner.performance import calibrate
from planner.performance.gpu_catalog import GpuSpec, Purchase, terms
from planner.performance.headroom import capacity_per_second
from planner.replay import loads
from planner.traffic.weights import ReplicaLoad
from service.config import input_files

HOUR = timedelta(hours=1)
LOAD = SignalKey("svc_requests_per_second")


def hourly_of_csv(path: Path) -> tuple[Floats, datetime]:
    """Returns the peak load of each hour (requests per second, NaN if missing) and the end of the last one.

    Lines may have any order. Raises UsageError with the line, as ``planner.replay.loads`` does.
    """
    hint = "give a CSV file with time_utc and requests_per_second"
    times, values, _ = loads.read(input_files.text_of(path, hint), str(path))
    known = np.isfinite(values)
    if not known.any():
        raise UsageError(f"{path} has no load values", hint="check the column requests_per_second")
    hours = (times[known] // 3600.0).astype(np.int64)
    peaks = np.full(int(hours.max() - hours.min()) + 1, -np.inf)
    np.maximum.at(peaks, hours - hours.min(), values[known])
    return np.where(np.isfinite(peaks), peaks, np.nan), datetime.fromtimestamp((int(hours.max()) + 1) * 3600, UTC)


def hourly_of_store(metrics: MetricStore, service: EntityRef, now: datetime, weeks: int = 12) -> Floats:
    """Returns the peak load of each hour of the last weeks from the first value on, NaN if unknown."""
    end = now.replace(minute=0, second=0, microsecond=0)
    window = metrics.read_windows(
        EntityKind.SERVICE, (LOAD,), end - timedelta(weeks=weeks), end, HOUR, (service,), statistic=Statistic.MAX
    )
    if not window.entities:
        return np.empty(0)
    values = window.column(LOAD)[0]
    known = np.flatnonzero(~np.isnan(values))
    peaks: Floats = values[known[0] :] if known.size else np.empty(0)
    return peaks


def gpus_of(loads: Floats, calibration: Calibration, buffer: float) -> Floats:
    """Returns the GPUs that each load needs by the formula, NaN if the load is unknown."""
    return np.array(
        [np.nan if np.isnan(load) else apply_formula(calibration, float(load), buffer).gpus for load in loads],
        dtype=np.float64,
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """GPUs needed in each past hour (newest last, NaN if unknown) and the figures behind them.

    ``peak`` is the highest load of the last week in requests per second. ``per_gpu`` is the capacity of one GPU in
    requests per second, less the buffer. ``price`` is the configured price, None without one.
    """

    gpus: Floats
    at: datetime
    peak: float
    per_gpu: float
    gpu_type: str | None = None
    group: int = 1
    price: float | None = None
    currency: str | None = None


def demand_of(
    loads: Floats, at: datetime, calibration: Calibration, buffer: float, price: tuple[float | None, str | None]
) -> Demand:
    """Returns the GPU demand of ``loads`` on replicas with this ``calibration``."""
    group = calibration.tensor_parallel * calibration.pipeline_parallel
    per_gpu = capacity_per_second(calibration, 1, buffer) / group
    gpus = gpus_of(loads, calibration, buffer)
    return Demand(gpus, at, peak_of(loads), per_gpu, calibration.gpu_type, group, *price)


def peak_of(loads: Floats) -> float:
    """Returns the highest known load of the last week, 0 if none is known."""
    week = loads[-168:]
    return float(np.nanmax(week)) if np.isfinite(week).any() else 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a GPU-hour, reserved (``held``) and on demand (``burst``), with their source."""

    held: float
    burst: float
    source: str
    currency: str


def prices_of(
    demand: Demand, spec: GpuSpec | None, offers: Sequence[Offer], held: float | None, burst: float | None
) -> Prices:
    """Returns the given prices, else the configured ones (offers of the type, the service's price), else priors.

    An unknown reserved price is the contract's usual share of the on-demand price. Raises UsageError if no price is
    known, if offers of several regions differ, and for prices in two currencies.
    """
    matching = [
        offer for offer in offers if spec is not None and offer.gpu.name == spec.name and offer.price is not None
    ]
    own = None if demand.price is None else (demand.price, demand.currency or DEFAULT_CURRENCY)
    sources: list[str] = []
    currencies: set[str] = set()
    if burst is not None:
        sources.append("given")
    elif (configured := _offered(matching, "on_demand") or own) is not None:
        burst = configured[0]
        sources.append("configured")
        currencies.add(configured[1])
    elif spec is not None:
        burst = spec.price
        sources.append(spec.price_source)
        currencies.add(DEFAULT_CURRENCY)
    else:
        raise UsageError("no GPU price is known", hint="give --held-price and --burst-price, or --gpu for priors")
    share = terms()["reserved"].price_ratio
    if held is not None:
        sources.append("given")
    elif (reserved := _offered(matching, "reserved")) is not None:
        held = reserved[0]
        sources.append("configured")
        currencies.add(reserved[1])
    elif spec is None and "configured" not in sources:
        raise UsageError("no GPU price is known", hint="give --held-price and --burst-price, or --gpu for priors")
    else:
        base = burst if "configured" in sources or spec is None else spec.price
        currencies |= set() if "configured" in sources else {DEFAULT_CURRENCY}
        held = share * base
        sources.append(f"prior: reserved at {share:g} of the on-demand price")
    if len(currencies) > 1:
        raise UsageError(
            f"prices in {' and '.join(sorted(currencies))} cannot be compared",
            hint="give both prices in one currency: under gpus:, or with --held-price and --burst-price",
        )
    currency = currencies.pop() if currencies else demand.currency or DEFAULT_CURRENCY
    return Prices(held, burst, "; ".join(dict.fromkeys(sources)), currency)


def _offered(offers: Sequence[Offer], purchase: Purchase) -> tuple[float, str] | None:
    """Returns the price of a contract with its currency, None without one. Raises UsageError for several."""
    regions = {(offer.price, offer.currency): offer.region for offer in offers if offer.purchase == purchase}
    if len(regions) > 1:
        prices = " and ".join(
            f"{price:g} {currency} in {region or '-'}" for (price, currency), region in regions.items()
        )
        option = "--held-price" if purchase == "reserved" else "--burst-price"
        raise UsageError(f"{offers[0].gpu.name} {purchase} costs {prices}", hint=f"choose one with {option}")
    return next(((price, currency) for price, currency in regions if price is not None), None)


def replicas_of_file(path: Path) -> list[ReplicaLoad]:
    """Reads replicas as JSON objects with the keys of ``ReplicaLoad``. Raises UsageError with the entry."""
    hint = "give a JSON list of replicas"
    text = input_files.text_of(path, hint)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg}", hint=hint) from error
    if not isinstance(document, list) or not document:
        raise UsageError(f"{path} is not a list of replicas", hint='such as [{"name", "queued_tokens", ...}]')
    return [_replica(entry, f"{path}, replica {number}") for number, entry in enumerate(document, start=1)]


def replicas_of_store(
    metrics: MetricStore, topology: Topology, service: EntityRef, calibrations: Sequence[Calibration]
) -> tuple[list[ReplicaLoad], float]:
    """Returns the replicas of a service by their newest values, and the tokens per second that arrive for all.

    A waiting request has all of its tokens to go, a running one half of them. The speed is that of the calibration of
    the replica's GPU type, else of the first one. Replicas without values are left out, because they may be busy.
    """
    names = (calibrate.RUNNING, calibrate.WAITING, calibrate.KV_USED, "engine_prefix_cache_hit_ratio")
    window = metrics.latest(EntityKind.REPLICA, signal_keys(*names))
    members = set(topology.below(service, EntityKind.REPLICA))
    replicas = []
    for row, replica in enumerate(window.entities):
        values = [float(window.column(name)[row, -1]) for name in names]
        if replica not in members or np.isnan(values[:2]).all():
            continue
        running, waiting, used, cached = (float(value) for value in np.nan_to_num(values))
        kind = topology.label(replica, "gpu_type")
        fitting = next((item for item in calibrations if item.gpu_type == kind), calibrations[0])
        replicas.append(
            ReplicaLoad(
                name=replica.name,
                queued_tokens=fitting.tokens_per_request * (waiting + running / 2.0),
                tokens_per_second=fitting.batch * fitting.tokens_per_second_per_sequence,
                kv_ratio=min(max(used, 0.0), 1.0),
                cached_ratio=min(max(cached, 0.0), 1.0),
            )
        )
    edge = metrics.latest(EntityKind.SERVICE, (LOAD,))
    rate = (
        float(np.nan_to_num(edge.column(LOAD)[edge.entities.index(service), -1])) if service in edge.entities else 0.0
    )
    return replicas, rate * calibrations[0].tokens_per_request


def _replica(entry: Any, where: str) -> ReplicaLoad:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is not an object", hint="give name, queued_tokens and tokens_per_second")
    unknown = set(entry) - set(ReplicaLoad.__slots__)
    missing = {"name", "queued_tokens", "tokens_per_second"} - set(entry)
    if unknown or missing:
        problem = f"lacks {', '.join(sorted(missing))}" if missing else f"has unknown keys {', '.join(sorted(unknown))}"
        raise UsageError(f"{where} {problem}", hint=f"known: {', '.join(ReplicaLoad.__slots__)}")
    numbers = {}
    for name, value in entry.items():
        if name == "name":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{where}: {name} must be a number, not {value!r}", hint="tokens, or a ratio from 0 to 1")
        numbers[name] = float(value)
    return ReplicaLoad(name=str(entry["name"]), **numbers)
