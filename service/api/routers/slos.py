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
KEPT = timedelta(minutes=10)  # a month of hours is some work to read, and moves slowly
_ALERTS = 1000

_Counts = dict[EntityRef, tuple[float, float]]


@router.get("/slos")
def slos(ctx: Ctx) -> list[dict[str, Any]]:
    """Every configured SLO for every service it applies to; a service without values has null."""
    services = ctx.topology().of_kind(EntityKind.SERVICE) or ctx.metrics.entities(EntityKind.SERVICE)
    found = by_service(ctx, list(services), ctx.as_of())
    return [{"service": serialization.entity(each), **one} for each in services for one in found.get(each, [])]


def by_service(ctx: Context, services: Sequence[EntityRef], now: datetime) -> dict[EntityRef, list[dict[str, Any]]]:
    """SLOs of each service, in the order of the configuration."""
    given = ctx.settings.slos
    if not given or not services:
        return {}
    block = int(now.timestamp() // KEPT.total_seconds())
    counted: list[_Counts] = ctx.remembered.get(
        ("slos", block), lambda: [_counts(ctx.metrics, slo, services, now) for slo in given]
    )
    firing = ctx.state.alerts(states=[AlertState.FIRING], limit=_ALERTS)
    burning = {(alert.rule, alert.entity): alert for alert in firing}
    found: dict[EntityRef, list[dict[str, Any]]] = {}
    for slo, counts in zip(given, counted, strict=True):
        for service in services:
            if slo.about(service):
                bad, total = counts.get(service, (0.0, 0.0))
                found.setdefault(service, []).append(_json(slo, bad, total, burning.get((slo.rule, service))))
    return found


def _json(slo: Slo, bad: float, total: float, alert: Alert | None) -> dict[str, Any]:
    kept = indicators.success_ratio(total, bad)
    return {
        "name": slo.name,
        "objective": slo.objective,
        "window_seconds": slo.window.total_seconds(),
        "limit_seconds": slo.limit_seconds,
        "events": total,
        "bad": bad,
        "kept": kept,
        "budget_left": indicators.error_budget_left(kept, slo.objective),
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
    return {each: (float(bad[row]), float(total[row])) for row, each in enumerate(window.entities)}


def _sums(window: Window, keys: Sequence[SignalKey]) -> Floats:
    found: Floats = np.sum([np.nansum(window.column(key), axis=1) for key in keys], axis=0)
    return found
