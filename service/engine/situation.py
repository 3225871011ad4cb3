"""The fleet of one cycle as the planner's triggers see it: replicas and load by service, incidents, ended actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from outrider.model import Action, ActionKind, ActionStatus, EntityKind, EntityRef, Incident
from outrider.topology import Topology
from planner.capacity import present
from remediation.decide.context import STARTS_WITHIN
from service.engine.detect import RecentValues
from service.planning import role_pools
from service.planning.replan import LOAD_FAULTS, LoadIncident, ServiceNow, Situation

NEEDS = {EntityKind.SERVICE: present.SERVICE_KEYS, EntityKind.REPLICA: present.ENGINE_KEYS}
_CHANGING = frozenset({ActionKind.SCALE, ActionKind.RESTART_POD, ActionKind.DRAIN, ActionKind.CORDON})
_OVER = frozenset({ActionStatus.DONE, ActionStatus.FAILED})
_ORDERED = frozenset({ActionStatus.INTENDED, ActionStatus.CLAIMED, ActionStatus.DONE})


def situation(
    topology: Topology,
    values: RecentValues,
    ready: Mapping[EntityRef, int],
    incidents: Sequence[Incident],
    actions: Sequence[Action],
    now: datetime,
) -> Situation:
    """Returns the situation of every planned service.

    ``topology`` has role pools as services, ``ready`` their serving replicas.
    """
    services = role_pools.planned(topology)
    members = {service: topology.below(service, EntityKind.REPLICA) for service in services}
    loads = _loads(values, members, now)
    loads |= _of_pools(loads, services, topology, values, now)
    ordered = ordered_replicas(actions, now)
    return Situation(
        now,
        {
            service: ServiceNow(
                max(len(members[service]), ordered.get(service, 0)), ready.get(service, 0), loads[service]
            )
            for service in services
        },
        _load_incidents(incidents, services, topology),
        _ended(actions, services, topology),
    )


def _loads(
    values: RecentValues, members: Mapping[EntityRef, Sequence[EntityRef]], now: datetime
) -> dict[EntityRef, present.PresentLoad]:
    services = values.window(EntityKind.SERVICE, present.SERVICE_KEYS, present.WINDOW)
    engines = values.window(EntityKind.REPLICA, present.ENGINE_KEYS, present.WINDOW)
    return present.present_loads(services, engines, members, now)


def ordered_replicas(actions: Iterable[Action], now: datetime) -> dict[EntityRef, int]:
    """Returns the replicas that the newest scale-out of a service ordered, while they may still be starting."""
    newest: dict[EntityRef, Action] = {}
    for action in sorted(actions, key=lambda action: action.decided_at):
        if action.kind is ActionKind.SCALE and action.status in _ORDERED and not action.dry_run:
            newest[action.target] = action
    return {
        service: int(action.params["replicas"])
        for service, action in newest.items()
        if now - (action.ended_at or action.decided_at) <= STARTS_WITHIN
        and action.params.get("replicas", 0) > action.params.get("current", 0)
    }


def _of_pools(
    loads: dict[EntityRef, present.PresentLoad],
    services: Sequence[EntityRef],
    topology: Topology,
    values: RecentValues,
    now: datetime,
) -> dict[EntityRef, present.PresentLoad]:
    """Returns the loads of pools: the arrivals of their service, and the queue of their own engines."""
    parents = {pool: parent for pool in services if (parent := role_pools.parent_of(pool, topology)) is not None}
    if not parents:
        return {}
    of_parents = _loads(values, dict.fromkeys(parents.values(), ()), now)
    return {pool: loads[pool].at_rate_of(of_parents[parent]) for pool, parent in parents.items()}


def _load_incidents(
    incidents: Iterable[Incident], services: Sequence[EntityRef], topology: Topology
) -> dict[str, LoadIncident]:
    result = {}
    for incident in incidents:
        cause = incident.suspected_cause
        if incident.resolved_at is None and cause is not None and cause.fault in LOAD_FAULTS:
            reached = {cause.entity, *topology.above(cause.entity, EntityKind.SERVICE)}
            named = {*incident.services, *(entity.name for entity in reached if entity.kind is EntityKind.SERVICE)}
            result[incident.id] = LoadIncident(incident.priority.rank, _named(named, services, topology))
    return result


def _named(names: Iterable[str], services: Sequence[EntityRef], topology: Topology) -> frozenset[EntityRef]:
    """Returns the services with one of these names, and the pools of such services."""
    known = frozenset(names)
    return frozenset(
        service
        for service in services
        if known
        & {service.key, str(service), service.name, topology.label(service, role_pools.POOL_OF) or service.name}
    )


def _ended(
    actions: Iterable[Action], services: Sequence[EntityRef], topology: Topology
) -> dict[str, frozenset[EntityRef]]:
    """Returns the ended actions that change which replicas serve, with the planned services that they concern."""
    planned, result = frozenset(services), {}
    for action in actions:
        if action.kind in _CHANGING and action.status in _OVER and action.ended_at is not None and not action.dry_run:
            target = action.target
            reached = {target} if target.kind is EntityKind.SERVICE else set(topology.above(target, EntityKind.SERVICE))
            result[action.id] = frozenset(reached & planned)
    return result
