"""Facts about the fleet that the alert stage and the guard rails need, and the reads of the store behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from alerts.rules.context import ServiceContext
from alerts.rules.context import service_context as context_of
from outrider import windows
from outrider.model import (
    Action,
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Incident,
    Layer,
    Plan,
    Recommendation,
    RemediationSession,
    SignalKey,
    TrustVerdict,
)
from outrider.ports import Collected, StateReader
from outrider.topology import Topology
from outrider.vocabulary.faults import faults
from remediation.decide.policy import FleetFacts
from service.engine.detect import RecentValues

TARGETS_NAMESPACE = "targets"
UP = SignalKey("target_up")
TRUST = SignalKey("target_trust_code")
DOUBTFUL = tuple(verdict.code for verdict in TrustVerdict if verdict.is_doubtful)
UNSCHEDULABLE = SignalKey("node_unschedulable")
NODE_READY = SignalKey("node_ready")
NEEDS = {EntityKind.REPLICA: (UP,), EntityKind.WORKLOAD: (UP, TRUST), EntityKind.NODE: (UNSCHEDULABLE, NODE_READY)}
RECENT = timedelta(minutes=2)
ACTIVE = (AlertState.PENDING, AlertState.FIRING)
UNLIMITED = 1_000_000  # what is active is never a page of it: an alert that is left out would never resolve
ReplicaCounter = Callable[[EntityRef, Topology], tuple[int, int]]
NOT_SERVING = frozenset({"engine-dead", "engine-hung", "engine-core-dead", "engine-asleep"})


def active_alerts(state: StateReader) -> tuple[Alert, ...]:
    """All that are pending or firing."""
    return state.alerts(states=ACTIVE, limit=UNLIMITED)


def alerts_at(state: StateReader, at: datetime) -> tuple[Alert, ...]:
    """Those that fired at an earlier instant: begun by then, and not over."""
    known = state.alerts(limit=UNLIMITED)
    return tuple(
        alert
        for alert in known
        if alert.reason is not AlertReason.NEVER_FIRED
        and alert.starts_at <= at
        and (alert.ends_at is None or alert.ends_at > at)
    )


def open_incidents(state: StateReader) -> tuple[Incident, ...]:
    """All that are open."""
    return state.incidents(open_only=True, limit=UNLIMITED)


def actions_since(state: StateReader, since: datetime) -> tuple[Action, ...]:
    """Every action decided since an instant."""
    return state.actions(since=since, limit=UNLIMITED)


def weighed_actions(state: StateReader, sessions: Sequence[RemediationSession], since: datetime) -> tuple[Action, ...]:
    """What the guard rails weigh: every action since an instant, and older ones of these sessions."""
    found = {action.id: action for action in actions_since(state, since)}
    if sessions:
        first = min(since, *(session.opened_at for session in sessions))
        own = state.actions(sessions=[session.id for session in sessions], since=first, limit=UNLIMITED)
        found |= {action.id: action for action in own}
    return tuple(found.values())


def targets(collected: Collected) -> tuple[int, int]:
    """(targets, targets up) of one round."""
    known = up = 0
    for batch in collected.batches:
        if batch.kind is EntityKind.WORKLOAD and UP in batch.keys:
            column = batch.values[:, batch.keys.index(UP)]
            watched = [entity.namespace == TARGETS_NAMESPACE for entity in batch.entities]
            known += sum(watched)
            up += int(np.sum((column == 1) & watched))
    return known, up


def replicas(service: EntityRef, topology: Topology, values: RecentValues, alerts: Iterable[Alert]) -> tuple[int, int]:
    """(current, ready) replicas: ready ones answer their scrape and no alert says they do not serve."""
    members = set(topology.below(service, EntityKind.REPLICA))
    return len(members), len(members & _serving(values, alerts))


def ready_replicas(topology: Topology, values: RecentValues, alerts: Iterable[Alert]) -> dict[EntityRef, int]:
    """How many replicas of each service are ready."""
    serving = _serving(values, alerts)
    return {
        service: len(serving.intersection(topology.below(service, EntityKind.REPLICA)))
        for service in topology.of_kind(EntityKind.SERVICE)
    }


def _serving(values: RecentValues, alerts: Iterable[Alert]) -> set[EntityRef]:
    broken = {alert.entity for alert in alerts if alert.state is AlertState.FIRING and alert.fault in NOT_SERVING}
    return _where(values, EntityKind.REPLICA, UP, 1.0) - broken


def service_context(
    alerts: Sequence[Alert],
    plan: Plan,
    topology: Topology,
    values: RecentValues,
    ready: Mapping[EntityRef, int] | None = None,
) -> ServiceContext:
    """Which services burn their budget and which have lost their redundancy. ``ready`` when it is known already."""
    return context_of(
        alerts,
        ready_replicas=ready_replicas(topology, values, alerts) if ready is None else ready,
        needed_replicas=needed(plan),
        service_of=lambda entity: topology.above(entity, EntityKind.SERVICE),
    )


def needed(plan: Plan) -> dict[EntityRef, int]:
    """Replicas each service needs for the load it has now."""
    found = {}
    for item in plan.recommendations:
        if isinstance(item, Recommendation):
            found[item.service] = int(item.derivation.get("need_now") or item.floor)
    return found


def fleet_facts(
    incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    plan: Plan,
    topology: Topology,
    values: RecentValues,
    *,
    sessions: Sequence[RemediationSession],
    paused: bool,
) -> FleetFacts:
    """Returns the facts that the guard rails check."""
    nodes = set(topology.of_kind(EntityKind.NODE))
    cordoned = _where(values, EntityKind.NODE, UNSCHEDULABLE, 1.0) & nodes
    ours = {node for session in sessions for node in session.cordoned}
    ready = ready_replicas(topology, values, alerts)
    doubtful = untrusted(alerts, topology, values)
    return FleetFacts(
        paused=paused,
        blind=any(is_blind(incident) for incident in incidents),
        untrusted=doubtful,
        nodes_total=len(nodes),
        nodes_cordoned_by_us=frozenset(ours),
        nodes_cordoned_by_others=frozenset(cordoned - ours),
        ready_replicas=ready,
        needed_replicas=needed(plan),
        healthy=healthy(alerts, topology, values, doubtful),
        burning=service_context(alerts, plan, topology, values, ready).burning,
        not_ready=frozenset(_where(values, EntityKind.NODE, NODE_READY, 0.0) & nodes),
    )


def untrusted(alerts: Sequence[Alert], topology: Topology, values: RecentValues) -> frozenset[EntityRef]:
    """Entities whose values must not be acted on: a page about them is missing or not to be believed (safety rule 1).

    A node with a silent exporter holds its cordon, a service with a silent replica its scale-in. A silent
    replica that an alert explains (its engine is dead, its device or node is lost) is no missing page: it
    is the news. So is a page of a node without a device of which an alert says that it is lost.
    """
    down = _where(values, EntityKind.WORKLOAD, UP, 0.0)
    doubted = _where(values, EntityKind.WORKLOAD, TRUST, *DOUBTFUL)
    partial = _where(values, EntityKind.WORKLOAD, TRUST, TrustVerdict.PARTIAL.code) - down
    explained, broken = _explained(alerts, topology), _broken_nodes(alerts, topology)
    found: set[EntityRef] = set()
    for target in down | doubted:
        about = topology.label(target, "stands_for")
        if not about:
            continue
        entity = EntityRef.from_key(about)
        if entity.kind is EntityKind.REPLICA:
            found.update(() if entity in explained else topology.above(entity, EntityKind.SERVICE))
        elif target not in partial or entity not in broken:
            found.add(entity)
    return frozenset(found)


def _broken_nodes(alerts: Iterable[Alert], topology: Topology) -> set[EntityRef]:
    """Nodes that an active alert about hardware speaks of, their own or a device's."""
    found: set[EntityRef] = set()
    for alert in alerts:
        known = faults().get(alert.fault or "")
        if alert.state is not AlertState.RESOLVED and known is not None and known.layer is Layer.HARDWARE:
            found.update((alert.entity, *topology.below(alert.entity, EntityKind.NODE)))
    return found


def _explained(alerts: Sequence[Alert], topology: Topology) -> set[EntityRef]:
    """Replicas that an active alert says do not serve, or that rest on something broken."""
    found: set[EntityRef] = set()
    for alert in alerts:
        known = faults().get(alert.fault or "")
        if alert.state is AlertState.RESOLVED or known is None:
            continue
        if alert.fault in NOT_SERVING or known.layer is Layer.HARDWARE or alert.fault == "node-lost":
            found |= topology.affected_by(alert.entity)
    return found


def healthy(
    alerts: Sequence[Alert], topology: Topology, values: RecentValues, doubtful: frozenset[EntityRef]
) -> frozenset[EntityRef]:
    """Nodes and replicas that answer, are not ``doubtful``, and that no active alert speaks against."""
    bad: set[EntityRef] = set()
    for alert in alerts:
        if alert.state is AlertState.RESOLVED:
            continue
        bad.add(alert.entity)
        known = faults().get(alert.fault or "")
        if known is not None and known.layer in (Layer.HARDWARE, Layer.PLATFORM):
            bad.update(topology.below(alert.entity, EntityKind.NODE))
    nodes = set(topology.of_kind(EntityKind.NODE)) - doubtful
    answering = _where(values, EntityKind.REPLICA, UP, 1.0)
    return frozenset((nodes | answering) - bad)


def _where(values: RecentValues, kind: EntityKind, key: SignalKey, *wanted: float) -> set[EntityRef]:
    """Entities whose newest value is one of those wanted."""
    window = values.window(kind, (key,), RECENT)
    newest = windows.last_value(window, key)
    return {entity for entity, found in zip(window.entities, newest, strict=True) if found in wanted}


def is_blind(incident: Incident) -> bool:
    """True for an open incident that says that the monitoring sees nothing."""
    cause = incident.suspected_cause
    return incident.resolved_at is None and cause is not None and cause.fault == "monitor-blind"
