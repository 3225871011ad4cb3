"""``/overview`` and ``/services``: SLO status, incidents, capacity, actions."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter

from outrider.documents import serialization
from outrider.model import ActionStatus, AlertState, CycleRecord, EntityKind, EntityRef, Incident
from outrider.records import degrade_levels
from outrider.records.degrade_levels import LevelPeriod
from outrider.topology import Topology
from service.api.context import Context, Ctx, Lang
from service.api.errors import NotFoundError
from service.api.queries import entity_location, slo_status
from service.api.routers import slos
from service.api.routers.actions import remediation_state
from service.engine import fleet_state
from service.planning import capacity_summary, role_pools

router = APIRouter(tags=["overview"])
_LEVELS_SPAN = timedelta(days=7)  # a level lasts minutes to hours
_INCIDENTS, _ACTIONS, _ALERTS = 20, 10, 1000
_PENDING = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL)


@router.get("/overview")
def overview(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """SLO status, open incidents, capacity plan and recent actions, at the newest cycle."""
    newest = ctx.newest_cycle()
    now = ctx.as_of()
    incidents = fleet_state.open_incidents(ctx.state)
    recent = ctx.state.incidents(since=now - slo_status.DAY, limit=_INCIDENTS)
    plan, graph, drills = ctx.state.plan(), ctx.topology(), ctx.drills_around([*incidents, *recent])
    pools = role_pools.with_pools(graph)
    return {
        "as_of": serialization.instant(now),
        "monitoring": monitoring(ctx, newest),
        "services": services_json(ctx, now, incidents),
        "incidents": [
            entity_location.incident_json(item, graph, lang, drills) for item in _most_urgent(incidents)[:_INCIDENTS]
        ],
        "incidents_open": len(incidents),
        "incidents_resolved": [
            entity_location.incident_json(item, graph, lang, drills) for item in recent if item.resolved_at
        ][:5],
        "alerts_firing": _counts(ctx),
        "plan": [
            {**serialization.recommendation(item), **capacity_summary.document(item, incidents, pools, lang)}
            for item in plan.recommendations
        ],
        "actions": [
            serialization.action(item, lang) for item in ctx.state.actions(since=now - slo_status.DAY, limit=_ACTIONS)
        ],
        "pending": [serialization.action(item, lang) for item in ctx.state.actions(statuses=_PENDING, limit=_ACTIONS)],
        "fleet": _fleet(graph),
    }


@router.get("/services")
def services(ctx: Ctx) -> list[dict[str, Any]]:
    """Every service with its indicators, verdict and plan."""
    return services_json(ctx, ctx.as_of(), fleet_state.open_incidents(ctx.state))


@router.get("/services/{name}")
def service(name: str, ctx: Ctx) -> dict[str, Any]:
    """One service by name, or by ``cluster/service/namespace/name`` if names are not unique."""
    for row in services(ctx):
        key = EntityRef(
            row["service"]["cluster"], EntityKind.SERVICE, row["service"]["namespace"], row["service"]["name"]
        ).key
        if name in (row["service"]["name"], key):
            return row
    raise NotFoundError(f"no service is named {name!r}", hint="GET /api/v1/services lists them")


def services_json(ctx: Context, now: datetime, incidents: tuple[Incident, ...]) -> list[dict[str, Any]]:
    """Every service of the topology or the store. Indicators over 24 h are read at most once a minute."""
    wanted, slo_defaults = _known_services(ctx), ctx.settings.slo_defaults
    minute = int(now.timestamp() // slo_status.SLOT.total_seconds())
    days = ctx.result_cache.get(("day", minute), lambda: slo_status.measure_day(ctx.metrics, wanted, now, slo_defaults))
    recent = ctx.result_cache.get(("now", now), lambda: slo_status.measure_now(ctx.metrics, wanted, now, slo_defaults))
    plans = {item.service: serialization.recommendation(item) for item in ctx.state.plan().recommendations}
    slos_of = slos.by_service(ctx, wanted, now)
    levels = degrade_levels.current(ctx.state.actions(since=now - _LEVELS_SPAN, limit=fleet_state.UNLIMITED))
    rows = []
    for service in wanted:
        concerning = [incident for incident in incidents if incident.concerns(service)]
        row = slo_status.as_json(service, recent.get(service), days.get(service), concerning, slo_defaults)
        rows.append(
            {
                **row,
                "slos": slos_of.get(service, []),
                "plan": plans.get(service),
                "degrade": _degrade_json(levels.get(service)),
            }
        )
    order = [
        slo_status.HealthStatus.BROKEN,
        slo_status.HealthStatus.AT_RISK,
        slo_status.HealthStatus.UNKNOWN,
        slo_status.HealthStatus.OK,
    ]
    return sorted(rows, key=lambda row: (order.index(row["status"]), row["service"]["name"]))


def _degrade_json(period: LevelPeriod | None) -> dict[str, Any] | None:
    """The present degrade level of a service; None at level 0."""
    if period is None:
        return None
    since = serialization.instant(period.since)
    return {"level": period.level, "name": period.name, "since": since, "incident": period.because}


def monitoring(ctx: Context, newest: CycleRecord | None) -> dict[str, Any]:
    """Status of the monitoring itself: without it no other answer is reliable."""
    fresh = ctx.watch.is_fresh(newest)
    if newest is None:
        status, reason = slo_status.HealthStatus.UNKNOWN, "no_cycle"
    elif not fresh:
        status, reason = slo_status.HealthStatus.BROKEN, "no_new_cycle"
    elif newest.targets and newest.targets_up * 2 < newest.targets:
        status, reason = slo_status.HealthStatus.BROKEN, "most_targets_down"
    elif newest.targets_up < newest.targets:
        status, reason = slo_status.HealthStatus.AT_RISK, "targets_down"
    else:
        status, reason = slo_status.HealthStatus.OK, "all_targets_up"
    return {
        "status": status.value,
        "reason": reason,
        "fresh": fresh,
        "targets": newest.targets if newest else 0,
        "targets_up": newest.targets_up if newest else 0,
        "cycle": serialization.cycle(newest) if newest else None,
        "interval_seconds": ctx.settings.interval.total_seconds(),
        "remediation_paused": ctx.state.paused(),
        "remediation": remediation_state(ctx),
    }


def _known_services(ctx: Context) -> list[EntityRef]:
    """Services of the topology, or of the store while there is no topology."""
    return list(ctx.topology().of_kind(EntityKind.SERVICE) or ctx.metrics.entities(EntityKind.SERVICE))


def _most_urgent(incidents: tuple[Incident, ...]) -> list[Incident]:
    return sorted(incidents, key=lambda incident: (incident.priority.rank, -incident.opened_at.timestamp()))


def _counts(ctx: Context) -> dict[str, Any]:
    firing = ctx.state.alerts(states=[AlertState.FIRING], limit=_ALERTS)
    counted = Counter(alert.priority.value for alert in firing)
    return {
        "total": len(firing),
        "at_least": len(firing) >= _ALERTS,
        "by_priority": {priority: counted.get(priority, 0) for priority in ("P0", "P1", "P2", "P3")},
    }


def _fleet(topology: Topology) -> dict[str, int]:
    counted = Counter(entity.kind for entity in topology.entities)
    kinds = (EntityKind.NODE, EntityKind.GPU, EntityKind.REPLICA, EntityKind.SERVICE)
    return {kind.value: counted.get(kind, 0) for kind in kinds}
