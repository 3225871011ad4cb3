"""Figures of a week by service, read from the metric store. Numbers only, no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Floats, SignalKey, Window
from outrider.ports import MetricStore
from outrider.vocabulary import catalog, indicators
from outrider.vocabulary.indicators import Attainment, Availability, AvailabilitySources, Latency

REQUESTS = SignalKey("svc_requests_total")
FAILED = SignalKey("svc_failed_total")
SUCCESS = SignalKey("svc_success_ratio")
PROBE = SignalKey("probe_success")
TOKENS = SignalKey("svc_generation_tokens_total")
LATENCIES = ("svc_ttft_seconds", "svc_tpot_seconds", "svc_latency_seconds")
QUANTILES = (0.5, 0.95, 0.99)
HOUR = timedelta(hours=1)
_SLOTS = (indicators.AVAILABILITY_SLOT, timedelta(minutes=5), timedelta(minutes=10), HOUR)
_CALLS = (REQUESTS, FAILED, SUCCESS, PROBE)
Sources: TypeAlias = tuple[Floats, Floats, Floats]
"""Success ratio of the users' requests, success of the probe, and number of requests, by slot."""


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """One service over the period. ``traffic`` is requests per second by the hour, NaN if unknown."""

    service: EntityRef
    availability: AvailabilitySources
    slot: timedelta
    daily: tuple[Availability, ...]
    requests: float
    success: float | None
    attainment: Attainment | None
    latencies: Mapping[str, Mapping[float, Latency | None]]
    tokens: float
    hours: Floats
    traffic: Floats


def read_services(metrics: MetricStore, start: datetime, end: datetime) -> tuple[ServiceFigures, ...]:
    """Reads the figures of every service with any value in [start, end), by name.

    Availability is judged in slots of one minute. If values are usually farther apart, the slot is the smallest of 5,
    10 and 60 min that contains one, so that a coarse history does not count as unknown.
    """
    hourly_keys = [REQUESTS, TOKENS]
    for name in LATENCIES:
        hourly_keys += [key for key in catalog.signal(name).bucket_keys if key.bucket is not None and key.bucket >= 0]
    hourly = metrics.read_windows(EntityKind.SERVICE, hourly_keys, start, end, HOUR)
    fine = {_SLOTS[0]: metrics.read_windows(EntityKind.SERVICE, _CALLS, start, end, _SLOTS[0])}
    figures = []
    for row, service in enumerate(hourly.entities):
        if not _any_value(hourly, row) and not _any_value_of(fine[_SLOTS[0]], service):
            continue
        figures.append(_figures(metrics, hourly, row, fine, start, end))
    return tuple(figures)


def _figures(
    metrics: MetricStore,
    hourly: Window,
    row: int,
    fine: dict[timedelta, Window],
    start: datetime,
    end: datetime,
) -> ServiceFigures:
    service = hourly.entities[row]
    slot, times, sources = _slots(metrics, service, fine, start, end)
    window = fine[slot]
    index = window.entities.index(service) if service in window.entities else None
    calls = 0.0 if index is None else float(np.nansum(window.column(REQUESTS)[index]))
    failed = 0.0 if index is None else float(np.nansum(window.column(FAILED)[index]))
    latencies = {name: _quantiles(hourly, row, name) for name in LATENCIES}
    ttft = catalog.signal(LATENCIES[0])
    return ServiceFigures(
        service=service,
        availability=indicators.availability_time(*sources),
        slot=slot,
        daily=_by_day(times, sources, start, end),
        requests=calls,
        success=indicators.success_ratio(calls, failed),
        attainment=indicators.sla_attainment(_buckets(hourly, row, ttft.name), ttft.bounds),
        latencies=latencies,
        tokens=float(np.nansum(hourly.column(TOKENS)[row])),
        hours=hourly.times,
        traffic=_traffic(hourly, row, times, sources[0]),
    )


def _slots(
    metrics: MetricStore, service: EntityRef, fine: dict[timedelta, Window], start: datetime, end: datetime
) -> tuple[timedelta, Floats, Sources]:
    """(slot, times, sources of availability) on the smallest slot that is not finer than the values."""
    window = fine[_SLOTS[0]]
    slot = _SLOTS[0]
    if service in window.entities:
        row = window.entities.index(service)
        reported = window.times[(window.status[row] != CellStatus.ABSENT).any(axis=1)]
        apart = _typical_gap(reported)
        slot = next((candidate for candidate in _SLOTS if candidate.total_seconds() >= apart), HOUR)
    if slot not in fine:
        fine[slot] = metrics.read_windows(EntityKind.SERVICE, _CALLS, start, end, slot)
    window = fine[slot]
    if service not in window.entities:
        return slot, np.empty(0), (np.empty(0), np.empty(0), np.empty(0))
    row = window.entities.index(service)
    return slot, window.times, (_success(window, row), window.column(PROBE)[row], window.column(REQUESTS)[row])


def _typical_gap(reported: Floats) -> float:
    """Seconds between values for most of the time, not for most of the values: older ones are farther apart."""
    gaps = np.sort(np.diff(reported))
    gaps = gaps[gaps <= HOUR.total_seconds()] if (gaps <= HOUR.total_seconds()).any() else gaps
    if not gaps.size:
        return 0.0
    covered = np.cumsum(gaps)
    return float(gaps[np.searchsorted(covered, covered[-1] / 2)])


def _success(window: Window, row: int) -> Floats:
    """Success ratio per slot from the requests, otherwise from the published ratio; NaN without requests."""
    requests, failed = window.column(REQUESTS)[row], np.nan_to_num(window.column(FAILED)[row], nan=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        counted = 1.0 - failed / requests
    ratio: Floats = np.where(requests > 0, counted, window.column(SUCCESS)[row])
    return ratio


def _traffic(hourly: Window, row: int, times: Floats, success: Floats) -> Floats:
    """Requests per second by the hour, scaled up if some of an hour's slots are missing.

    NaN if more than half of them are missing.
    """
    requests = hourly.column(REQUESTS)[row]
    index = ((times[~np.isnan(success)] - hourly.times[0]) // HOUR.total_seconds()).astype(int)
    known = np.bincount(index, minlength=hourly.times.size)[: hourly.times.size]
    typical = float(np.median(known[known > 0])) if (known > 0).any() else 0.0
    share = np.where(known > 0, np.minimum(known / max(typical, 1.0), 1.0), 1.0)
    rates: Floats = np.where(share >= 0.5, requests / HOUR.total_seconds() / share, np.nan)
    return rates


def _by_day(times: Floats, sources: Sources, start: datetime, end: datetime) -> tuple[Availability, ...]:
    days = -(-int((end - start).total_seconds()) // 86400)
    index = ((times - start.timestamp()) // 86400).astype(int)
    by_day = ((values[index == day] for values in sources) for day in range(days))
    return tuple(indicators.availability_time(*values).worse for values in by_day)


def _buckets(window: Window, row: int, name: str) -> Floats:
    keys = [key for key in catalog.signal(name).bucket_keys if key.bucket is not None and key.bucket >= 0]
    return np.stack([window.column(key)[row] for key in keys], axis=-1)


def _quantiles(window: Window, row: int, name: str) -> dict[float, Latency | None]:
    return indicators.latency_quantiles(_buckets(window, row, name), catalog.signal(name).bounds, QUANTILES)


def _any_value(window: Window, row: int) -> bool:
    return bool((~np.isnan(window.values[row])).any())


def _any_value_of(window: Window, service: EntityRef) -> bool:
    return service in window.entities and _any_value(window, window.entities.index(service))
