"""``/slos``: objective, attainment and remaining error budget per service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from fastapi import APIRouter

from outrider.documents import serialization
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Floats, SignalKey, Window
from outrider.ports import MetricStore
from outrider.vocabulary import indicators
from outrider.vocabulary.slo import Slo
from service.api.context import Context, Ctx

router = APIRouter(tags=["slos"])
STEP = timedelta(hours=1)
CACHE_TIME = timedelta(minutes=10)  # reading a month of hours is slow, and the values change slowly
_ALERTS = 1000

_Counts = dict[EntityRef, tuple[float, float]]


@router.get("/slos")
def slos(ctx: Ctx) -> list[dict[str, Any]]:
    """Every configured SLO for every service it applies to; a service without values has null."""
    services = ctx.topology().of_kind(EntityKind.SERVICE) or ctx.metrics.entities(EntityKind.SERVICE)
    rows = by_service(ctx, list(services), ctx.as_of())
    return [{"service": serialization.entity(service), **row} for service in services for row in rows.get(service, [])]


def by_service(ctx: Context, services: Sequence[EntityRef], now: datetime) -> dict[EntityRef, list[dict[str, Any]]]:
    """SLOs of each service, in the order of the configuration."""
    configured = ctx.settings.slos
    if not configured or not services:
        return {}
    block = int(now.timestamp() // CACHE_TIME.total_seconds())
    counted: list[_Counts] = ctx.result_cache.get(
        ("slos", block), lambda: [_counts(ctx.metrics, slo, services, now) for slo in configured]
    )
    firing = ctx.state.alerts(states=[AlertState.FIRING], limit=_ALERTS)
    burning = {(alert.rule, alert.entity): alert for alert in firing}
    rows: dict[EntityRef, list[dict[str, Any]]] = {}
    for slo, counts in zip(configured, counted, strict=True):
        for service in services:
            if slo.about(service):
                bad, total = counts.get(service, (0.0, 0.0))
                rows.setdefault(service, []).append(_json(slo, bad, total, burning.get((slo.rule, service))))
    return rows


def _json(slo: Slo, bad: float, total: float, alert: Alert | None) -> dict[str, Any]:
    success = indicators.success_ratio(total, bad)
    return {
        "name": slo.name,
        "objective": slo.objective,
        "window_seconds": slo.window.total_seconds(),
        "limit_seconds": slo.limit_seconds,
        "events": total,
        "bad": bad,
        "kept": success,
        "budget_left": indicators.error_budget_left(success, slo.objective),
        "burns": alert.priority.value if alert else None,
    }


def _counts(metrics: MetricStore, slo: Slo, services: Sequence[EntityRef], now: datetime) -> _Counts:
    """(bad, all) events of each service within the SLO's window."""
    end = now + timedelta(seconds=1)
    wanted = [service for service in services if slo.about(service)]
    if not wanted:
        return {}
    window = metrics.read_windows(EntityKind.SERVICE, slo.keys, end - slo.window, end, STEP, wanted)
    bad, total = _sums(window, slo.bad), _sums(window, slo.total)
    return {service: (float(bad[row]), float(total[row])) for row, service in enumerate(window.entities)}


def _sums(window: Window, keys: Sequence[SignalKey]) -> Floats:
    sums: Floats = np.sum([np.nansum(window.column(key), axis=1) for key in keys], axis=0)
    return sums
