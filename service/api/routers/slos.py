"""``/slos``: objective, attainment and remaining error budget per service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from fastapi import APIRouter

from detectors.rules import burn_rate
from detectors.rules.selection import selects
from outrider.documents import serialization
from outrider.model import Alert, AlertState, EntityKind, EntityRef
from outrider.ports import MetricStore
from outrider.topology import Topology
from outrider.vocabulary import indicators
from outrider.vocabulary.slo import Slo
from outrider.vocabulary.tenants import name_of, service_of
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
    topology = ctx.topology()  # not within the cache, whose lock is not reentrant
    block = int(now.timestamp() // CACHE_TIME.total_seconds())
    counted: list[_Counts] = ctx.result_cache.get(
        ("slos", block), lambda: [_counts(ctx.metrics, slo, services, topology, now) for slo in configured]
    )
    firing = ctx.state.alerts(states=[AlertState.FIRING], limit=_ALERTS)
    burning = {(alert.rule, alert.entity): alert for alert in firing}
    rows: dict[EntityRef, list[dict[str, Any]]] = {}
    for slo, counts in zip(configured, counted, strict=True):
        for service in services:
            if slo.about(service):
                rows.setdefault(service, []).extend(_rows(slo, service, counts, burning))
    return rows


def _rows(
    slo: Slo, service: EntityRef, counts: _Counts, burning: Mapping[tuple[str, EntityRef], Alert]
) -> Iterator[dict[str, Any]]:
    """One row, or one for each tenant of an SLO on tenants; a tenant without values has none."""
    if slo.tenant is None:
        yield _json(slo, *counts.get(service, (0.0, 0.0)), burning.get((slo.rule, service)), None)
        return
    for tenant, (bad, total) in counts.items():
        if service_of(tenant) == service:
            yield _json(slo, bad, total, burning.get((slo.rule, tenant)), name_of(tenant))


def _json(slo: Slo, bad: float, total: float, alert: Alert | None, tenant: str | None) -> dict[str, Any]:
    success = indicators.success_ratio(total, bad)
    return {
        "name": slo.name,
        "tenant": tenant,
        "objective": slo.objective,
        "window_seconds": slo.window.total_seconds(),
        "limit_seconds": slo.limit_seconds,
        "events": total,
        "bad": bad,
        "kept": success,
        "budget_left": indicators.error_budget_left(success, slo.objective),
        "burns": alert.priority.value if alert else None,
    }


def _counts(
    metrics: MetricStore, slo: Slo, services: Sequence[EntityRef], topology: Topology, now: datetime
) -> _Counts:
    """(bad, all) events of each service, or each tenant, within the SLO's window."""
    end = now + timedelta(seconds=1)
    wanted = [service for service in services if slo.about(service)]
    if slo.tenant is None:
        counted = {service: parts_of(slo, service, topology) for service in wanted}
    else:
        known = set(wanted)
        tenants = [tenant for tenant in metrics.entities(EntityKind.TENANT) if slo.about(tenant)]
        counted = {tenant: [tenant] for tenant in tenants if service_of(tenant) in known}
    entities = list(dict.fromkeys(entity for parts in counted.values() for entity in parts))
    if not entities:
        return {}
    window = metrics.read_windows(slo.kind, slo.keys, end - slo.window, end, STEP, entities)
    bad, total = (np.nansum(counts, axis=1) for counts in burn_rate.events(window, slo))
    rows = {entity: row for row, entity in enumerate(window.entities)}
    return {
        service: (float(bad[mine].sum()), float(total[mine].sum()))
        for service, parts in counted.items()
        if (mine := [rows[entity] for entity in parts if entity in rows])
    }


def parts_of(slo: Slo, service: EntityRef, topology: Topology) -> list[EntityRef]:
    """The entities whose events count for a service: itself, or its replicas that the SLO covers."""
    if not slo.where:
        return [service]
    replicas = topology.below(service, EntityKind.REPLICA)
    return [replica for replica in replicas if selects(slo.where, replica, topology)]
