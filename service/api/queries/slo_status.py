"""SLO status of every service over 24 h and 5 min, as one verdict with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import numpy as np

from outrider.clock import from_unix, rfc3339
from outrider.documents import serialization
from outrider.model import EntityKind, EntityRef, Floats, Incident, SignalKey, Window
from outrider.ports import MetricStore
from outrider.vocabulary import catalog, indicators
from outrider.vocabulary.indicators import Availability, AvailabilitySources
from service.config.api_settings import SloDefaults

DAY = timedelta(hours=24)
RECENT = timedelta(minutes=5)
SLOT = indicators.AVAILABILITY_SLOT
STRIP_SLOT = timedelta(minutes=30)

REQUESTS = SignalKey("svc_requests_total")
FAILED = SignalKey("svc_failed_total")
RATE = SignalKey("svc_requests_per_second")
PROBE = SignalKey("probe_success")
READY = SignalKey("svc_ready_backends")
QUEUE = SignalKey("svc_queue_requests")
TTFT = "svc_ttft_seconds"


class HealthStatus(StrEnum):
    """Status of a service or of the monitoring."""

    OK = "ok"
    AT_RISK = "at_risk"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class HealthReason(StrEnum):
    """Reason for the status. The first that applies, in this order."""

    NO_VALUES = "no_values"
    NO_READY_REPLICA = "no_ready_replica"
    CALLS_FAIL = "calls_fail"
    TTFT_OVER_LIMIT = "ttft_over_limit"
    CALLS_BELOW_TARGET = "calls_below_target"
    URGENT_INCIDENT = "urgent_incident"
    DAY_BELOW_TARGET = "day_below_target"
    SLA_BELOW_TARGET = "sla_below_target"
    WITHIN_LIMITS = "within_limits"


@dataclass(frozen=True, slots=True)
class Recent:
    """Indicators of one service over the last 5 min. None: no value."""

    service: EntityRef
    success: float | None
    availability: AvailabilitySources
    ttft_p99: float | None
    ttft_p99_below: bool
    requests_per_second: float | None
    queue: float | None
    ready: float | None


@dataclass(frozen=True, slots=True)
class Day:
    """Indicators of one service over 24 h. ``strip`` is the share of good minutes per half hour."""

    success: float | None
    availability: AvailabilitySources
    sla_low: float | None
    sla_high: float | None
    strip: tuple[tuple[datetime, float | None], ...]


def measure_now(
    metrics: MetricStore, services: Sequence[EntityRef], now: datetime, slo_defaults: SloDefaults
) -> dict[EntityRef, Recent]:
    """Indicators of every service over the last 5 min, in one read."""
    keys = (REQUESTS, FAILED, PROBE, RATE, READY, QUEUE, *catalog.signal(TTFT).bucket_keys)
    window = _read(metrics, services, keys, now, RECENT)
    return (
        {service: _recent(window, row, slo_defaults) for row, service in enumerate(window.entities)} if window else {}
    )


def measure_day(
    metrics: MetricStore, services: Sequence[EntityRef], now: datetime, slo_defaults: SloDefaults
) -> dict[EntityRef, Day]:
    """Indicators of every service over 24 h, in one read."""
    keys = (REQUESTS, FAILED, PROBE, *catalog.signal(TTFT).bucket_keys)
    window = _read(metrics, services, keys, now, DAY)
    return {service: _day(window, row, slo_defaults) for row, service in enumerate(window.entities)} if window else {}


def _read(
    metrics: MetricStore, services: Sequence[EntityRef], keys: Sequence[SignalKey], now: datetime, span: timedelta
) -> Window | None:
    if not services:
        return None
    end = now + timedelta(seconds=1)
    return metrics.read_windows(EntityKind.SERVICE, keys, end - span, end, SLOT, services)


def _recent(window: Window, row: int, slo_defaults: SloDefaults) -> Recent:
    requests, failed = window.column(REQUESTS)[row], window.column(FAILED)[row]
    p99 = indicators.latency_quantiles(_buckets(window, row), catalog.signal(TTFT).bounds, (0.99,))[0.99]
    slots = (_ratios(requests, failed), window.column(PROBE)[row], requests, slo_defaults.violated_below_ratio)
    return Recent(
        service=window.entities[row],
        success=_calls(requests, failed),
        availability=indicators.availability_time(*slots),
        ttft_p99=p99.seconds if p99 else None,
        ttft_p99_below=bool(p99 and p99.below),
        requests_per_second=_last(window.column(RATE)[row]),
        queue=_last(window.column(QUEUE)[row]),
        ready=_last(window.column(READY)[row]),
    )


def _day(window: Window, row: int, slo_defaults: SloDefaults) -> Day:
    requests, failed = window.column(REQUESTS)[row], window.column(FAILED)[row]
    slots = (_ratios(requests, failed), window.column(PROBE)[row], requests, slo_defaults.violated_below_ratio)
    sla = indicators.sla_attainment(_buckets(window, row), catalog.signal(TTFT).bounds, slo_defaults.ttft_seconds)
    return Day(
        success=_calls(requests, failed),
        availability=indicators.availability_time(*slots),
        sla_low=sla.lower if sla else None,
        sla_high=sla.upper if sla else None,
        strip=_strip(window.times, np.fmin(*indicators.slots_up(*slots))),
    )


def _ratios(requests: Floats, failed: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(requests > 0, 1.0 - np.nan_to_num(failed) / requests, np.nan)


def _calls(requests: Floats, failed: Floats) -> float | None:
    return indicators.success_ratio(float(np.nansum(requests)), float(np.nansum(failed)))


def health(
    now: Recent | None, day: Day | None, incidents: Sequence[Incident], slo_defaults: SloDefaults
) -> tuple[HealthStatus, HealthReason]:
    """Verdict on one service. ``incidents`` are the open ones that concern it."""
    if now is None or (now.success is None and now.ready is None):
        return HealthStatus.UNKNOWN, HealthReason.NO_VALUES
    if now.ready is not None and now.ready < 1:
        return HealthStatus.BROKEN, HealthReason.NO_READY_REPLICA
    if now.success is None and now.requests_per_second is None and now.ttft_p99 is None:
        return HealthStatus.UNKNOWN, HealthReason.NO_VALUES  # ready replicas say nothing about the requests
    if now.success is not None and now.success < slo_defaults.violated_below_ratio:
        return HealthStatus.BROKEN, HealthReason.CALLS_FAIL
    if now.ttft_p99 is not None and not now.ttft_p99_below and now.ttft_p99 > slo_defaults.ttft_p99_seconds:
        return HealthStatus.BROKEN, HealthReason.TTFT_OVER_LIMIT
    if now.success is not None and now.success < slo_defaults.success_ratio:
        return HealthStatus.AT_RISK, HealthReason.CALLS_BELOW_TARGET
    if any(incident.priority.rank <= 1 for incident in incidents):
        return HealthStatus.AT_RISK, HealthReason.URGENT_INCIDENT
    available = day.availability.worse.ratio if day is not None else None
    if available is not None and available < slo_defaults.availability_ratio:
        return HealthStatus.AT_RISK, HealthReason.DAY_BELOW_TARGET
    if day is not None and day.sla_high is not None and day.sla_high < slo_defaults.sla_attainment_ratio:
        return HealthStatus.AT_RISK, HealthReason.SLA_BELOW_TARGET
    return HealthStatus.OK, HealthReason.WITHIN_LIMITS


def as_json(
    service: EntityRef, now: Recent | None, day: Day | None, incidents: Sequence[Incident], slo_defaults: SloDefaults
) -> dict[str, Any]:
    """One service of the overview, without its plan."""
    verdict, reason = health(now, day, incidents, slo_defaults)
    return {
        "service": serialization.entity(service),
        "status": verdict.value,
        "reason": reason.value,
        "availability": _availability(now, day, slo_defaults),
        "success_ratio": {
            "now": now.success if now else None,
            "day": day.success if day else None,
            "target": slo_defaults.success_ratio,
        },
        "sla_attainment": {
            "low": day.sla_low if day else None,
            "high": day.sla_high if day else None,
            "limit_seconds": slo_defaults.ttft_seconds,
            "target": slo_defaults.sla_attainment_ratio,
        },
        "ttft_p99_seconds": {
            "value": now.ttft_p99 if now else None,
            "below_first_bucket": bool(now and now.ttft_p99_below),
            "limit": slo_defaults.ttft_p99_seconds,
        },
        "requests_per_second": now.requests_per_second if now else None,
        "queue_requests": now.queue if now else None,
        "ready_replicas": now.ready if now else None,
        "strip": [{"start": rfc3339(start), "good_ratio": share} for start, share in day.strip] if day else [],
        "incidents": [incident.id for incident in incidents],
    }


def _availability(now: Recent | None, day: Day | None, slo_defaults: SloDefaults) -> dict[str, Any]:
    """The worse of both sources in each minute, then each source by itself."""

    def ratios(source: Callable[[AvailabilitySources], Availability]) -> dict[str, float | None]:
        return {
            "now": source(now.availability).ratio if now else None,
            "day": source(day.availability).ratio if day else None,
        }

    return {
        **ratios(lambda sources: sources.worse),
        "target": slo_defaults.availability_ratio,
        "requests": ratios(lambda sources: sources.requests),
        "probe": ratios(lambda sources: sources.probe),
    }


def _buckets(window: Window, row: int) -> Floats:
    keys = [key for key in catalog.signal(TTFT).bucket_keys if key.bucket is not None and key.bucket >= 0]
    return np.array([np.nansum(window.column(key)[row]) for key in keys])


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _last(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known[-1]) if known.size else None


def _strip(times: Floats, good: Floats) -> tuple[tuple[datetime, float | None], ...]:
    per = int(STRIP_SLOT / SLOT)
    starts = range(0, good.size, per)
    return tuple((from_unix(float(times[index])), _mean(good[index : index + per])) for index in starts)
