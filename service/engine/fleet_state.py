"""Fleet facts for alerting and the guard rails, and the store queries behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from alerts.rules.context import ServiceContext
from alerts.rules.context import service_context as context_of
from outrider import windows
from outrider.clock import from_unix
from outrider.model import (
    Action,
    Alert,
    AlertReason,
    AlertState,
    BreakerState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Incident,
    Layer,
    Plan,
    Recommendation,
    RemediationSession,
    SignalKey,
    TrustVerdict,
    Window,
)
from outrider.ports import Collected, StateReader
from outrider.topology import DELETED, Topology
from outrider.vocabulary.faults import faults
from remediation.decide.context import proves_no_harm
from remediation.decide.owners import owners_of
from remediation.decide.policy import FleetFacts
from service.engine import headroom, service_facts, traffic_weights
from service.engine.detect import RecentValues

TARGETS_NAMESPACE = "targets"
UP = SignalKey("target_up")
TRUST = SignalKey("target_trust_code")
DOUBTFUL = tuple(verdict.code for verdict in TrustVerdict if verdict.is_doubtful)
UNSCHEDULABLE = SignalKey("node_unschedulable")
NODE_READY = SignalKey("node_ready")
AWAKE = SignalKey("engine_sleep_state")  # 1 = awake
STARTED = SignalKey("engine_start_time_seconds")
POD_READY = SignalKey("pod_ready")
NEEDS = {
    EntityKind.REPLICA: tuple(dict.fromkeys((UP, AWAKE, STARTED, *headroom.LOAD, *traffic_weights.VALUES))),
    EntityKind.WORKLOAD: (UP, TRUST),
    EntityKind.NODE: (UNSCHEDULABLE, NODE_READY),
    EntityKind.POD: (POD_READY,),
    EntityKind.SERVICE: service_facts.NEEDS,
}
RECENT = timedelta(minutes=2)
DELETED_AFTER = timedelta(minutes=5)  # without a value, while other nodes of the cluster are reported
ACTIVE = (AlertState.PENDING, AlertState.FIRING)
UNLIMITED = 1_000_000  # rows; an active alert that is not read would never resolve
ReplicaCounter = Callable[[EntityRef, Topology], tuple[int, int]]
REVISION_CODES = frozenset({"deploy", "rollout", "rollback", "image", "flags", "model-revision", "configmap", "config"})
NOT_SERVING = frozenset({"engine-dead", "engine-hung", "engine-core-dead", "engine-asleep"})


def active_alerts(state: StateReader) -> tuple[Alert, ...]:
    """Returns all pending and firing alerts."""
    return state.alerts(states=ACTIVE, limit=UNLIMITED)


def alerts_at(state: StateReader, at: datetime) -> tuple[Alert, ...]:
    """Returns the alerts that were active at an earlier time, without those that never fired."""
    known = state.alerts(limit=UNLIMITED)
    return tuple(
        alert
        for alert in known
        if alert.reason is not AlertReason.NEVER_FIRED
        and alert.starts_at <= at
        and (alert.ends_at is None or alert.ends_at > at)
    )


def open_incidents(state: StateReader) -> tuple[Incident, ...]:
    """Returns all open incidents."""
    return state.incidents(open_only=True, limit=UNLIMITED)


def incidents_at(state: StateReader, at: datetime) -> tuple[Incident, ...]:
    """Returns the incidents that were open at an earlier time, as they are now."""
    known = state.incidents(since=at, limit=UNLIMITED)
    return tuple(
        incident
        for incident in known
        if incident.opened_at <= at and (incident.resolved_at is None or incident.resolved_at > at)
    )


def actions_since(state: StateReader, since: datetime) -> tuple[Action, ...]:
    """Returns every action decided since then."""
    return state.actions(since=since, limit=UNLIMITED)


def weighed_actions(state: StateReader, sessions: Sequence[RemediationSession], since: datetime) -> tuple[Action, ...]:
    """Returns the actions that the guard rails count: all since then, and older ones of these sessions."""
    actions = {action.id: action for action in actions_since(state, since)}
    if sessions:
        first = min(since, *(session.opened_at for session in sessions))
        own = state.actions(sessions=[session.id for session in sessions], since=first, limit=UNLIMITED)
        actions |= {action.id: action for action in own}
    return tuple(actions.values())


def targets(collected: Collected) -> tuple[int, int]:
    """Returns (targets, targets up) of one cycle."""
    known = up = 0
    for batch in collected.batches:
        if batch.kind is EntityKind.WORKLOAD and UP in batch.keys:
            column = batch.values[:, batch.keys.index(UP)]
            watched = [entity.namespace == TARGETS_NAMESPACE for entity in batch.entities]
            known += sum(watched)
            up += int(np.sum((column == 1) & watched))
    return known, up


def replicas(service: EntityRef, topology: Topology, values: RecentValues, alerts: Iterable[Alert]) -> tuple[int, int]:
    """Returns (current, ready) replicas. Ready: the scrape succeeds, and no alert reports that it does not serve."""
    members = set(topology.below(service, EntityKind.REPLICA))
    return len(members), len(members & _serving(values, alerts))


def ready_replicas(topology: Topology, values: RecentValues, alerts: Iterable[Alert]) -> dict[EntityRef, int]:
    """Returns the number of ready replicas of each service."""
    serving = _serving(values, alerts)
    return {
        service: len(serving.intersection(topology.below(service, EntityKind.REPLICA)))
        for service in topology.of_kind(EntityKind.SERVICE)
    }


def _serving(values: RecentValues, alerts: Iterable[Alert]) -> set[EntityRef]:
    broken = {alert.entity for alert in alerts if alert.state is AlertState.FIRING and alert.fault in NOT_SERVING}
    return _with_value(values, EntityKind.REPLICA, UP, 1.0) - broken


def service_context(
    alerts: Sequence[Alert],
    plan: Plan,
    topology: Topology,
    values: RecentValues,
    ready: Mapping[EntityRef, int] | None = None,
) -> ServiceContext:
    """Returns the services that burn their budget or lost their redundancy. ``ready`` is computed if None."""
    return context_of(
        alerts,
        ready_replicas=ready_replicas(topology, values, alerts) if ready is None else ready,
        needed_replicas=needed(plan),
        service_of=lambda entity: topology.above(entity, EntityKind.SERVICE),
    )


def needed(plan: Plan) -> dict[EntityRef, int]:
    """Returns the replicas that each service needs for its current load."""
    needed_replicas = {}
    for item in plan.recommendations:
        if isinstance(item, Recommendation):
            needed_replicas[item.service] = int(item.derivation.get("need_now") or item.floor)
    return needed_replicas


def _carrying(
    plan: Plan, topology: Topology, values: RecentValues, alerts: Sequence[Alert], well: frozenset[EntityRef]
) -> dict[EntityRef, int]:
    """Returns the replicas that carry the load: the larger of the measured number and the plan's."""
    load = values.window(EntityKind.REPLICA, headroom.LOAD, headroom.SPAN)
    result = headroom.measured(topology, load, _serving(values, alerts), well)
    for service, count in headroom.planned(plan).items():
        result[service] = max(count, result.get(service, 0))
    return result


def _started_at(values: RecentValues) -> dict[EntityRef, datetime]:
    """Returns the start of each engine process."""
    window = values.window(EntityKind.REPLICA, (STARTED,), RECENT)
    newest = windows.last_value(window, STARTED)
    return {entity: from_unix(float(at)) for entity, at in zip(window.entities, newest, strict=True) if at > 0}


def changed_at(events: Iterable[Event], topology: Topology) -> dict[EntityRef, datetime]:
    """Returns the time of the last change of each service's revision, flags or model."""
    result: dict[EntityRef, datetime] = {}
    for event in events:
        if event.kind is not EventKind.CHANGE or event.code not in REVISION_CODES:
            continue
        for entity in (event.entity, *topology.above(event.entity, EntityKind.SERVICE)):
            if entity.kind is EntityKind.SERVICE:
                result[entity] = max(result.get(entity, event.at), event.at)
    return result


def fleet_facts(
    incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    plan: Plan,
    topology: Topology,
    values: RecentValues,
    *,
    sessions: Sequence[RemediationSession],
    paused: bool,
    events: Sequence[Event] = (),
    killed: bool = False,
    breaker: BreakerState | None = None,
) -> FleetFacts:
    """Returns the facts that the guard rails check."""
    ours = {node for session in sessions for node in session.cordoned}
    owners = owners_of(topology, ours & _schedulable_throughout(values))
    leaving = {entity for entity, known in owners.items() if known.removed_by}  # no capacity any more, and not ours
    deleted_nodes = _deleted_nodes(ours, topology, values)
    ours -= leaving | deleted_nodes
    nodes = set(topology.of_kind(EntityKind.NODE)) - leaving
    cordoned = _with_value(values, EntityKind.NODE, UNSCHEDULABLE, 1.0) & nodes
    ready = ready_replicas(topology, values, alerts)
    serving = frozenset(_serving(values, alerts))
    doubtful = untrusted(alerts, topology, values)
    well = healthy(alerts, topology, values, doubtful)
    unseen, scores = blind_clusters(incidents), _scores(alerts)
    return FleetFacts(
        paused=paused,
        killed=killed,
        breaker=breaker or BreakerState(),
        incidents={incident.id: incident for incident in incidents},
        topology=topology,
        blind=bool(unseen),
        blind_clusters=unseen,
        untrusted=doubtful,
        nodes_total=len(nodes),
        nodes_cordoned_by_us=frozenset(ours),
        nodes_cordoned_by_others=frozenset(cordoned - ours),
        ready_replicas=ready,
        needed_replicas=needed(plan),
        healthy=well,
        burning=service_context(alerts, plan, topology, values, ready).burning,
        owners=owners,
        not_ready=frozenset(_with_value(values, EntityKind.NODE, NODE_READY, 0.0) & nodes),
        serving=serving,
        carrying_replicas=_carrying(plan, topology, values, alerts, well),
        unschedulable=frozenset(cordoned),
        schedulable=frozenset(_with_value(values, EntityKind.NODE, UNSCHEDULABLE, 0.0) & nodes),
        asleep=frozenset(_with_value(values, EntityKind.REPLICA, AWAKE, 0.0)),
        awake=frozenset(_with_value(values, EntityKind.REPLICA, AWAKE, 1.0)),
        ready_pods=frozenset(_with_value(values, EntityKind.POD, POD_READY, 1.0)),
        changed_at=changed_at(events, topology),
        started_at=_started_at(values),
        alerted=frozenset(scores),
        scores=scores,
        deleted_nodes=deleted_nodes,
        listed_clusters=_listed_clusters(topology, values),
        recent_services=_reported(values.window(EntityKind.SERVICE, service_facts.LOAD, DELETED_AFTER)),
        load=service_facts.loads(values),
        entries=service_facts.entries(values),
        traffic_weights=traffic_weights.weights(alerts, topology, values, serving & well),
    )


def _scores(alerts: Iterable[Alert]) -> dict[tuple[EntityRef, str], float]:
    """Returns the highest score of the active alerts of each (entity, fault)."""
    result: dict[tuple[EntityRef, str], float] = {}
    for alert in alerts:
        if alert.fault and alert.state is not AlertState.RESOLVED:
            key = (alert.entity, alert.fault)
            result[key] = max(result.get(key, 0.0), alert.score)
    return result


def deleted(topology: Topology) -> frozenset[EntityRef]:
    """Returns pods that the cluster deleted recently, and their replicas.

    Includes the scrape targets that stood for them. A pod that returns under its name, such as one of a StatefulSet,
    is not among them.
    """
    pods = {entity for entity, facts in topology.labels.items() if facts.get(DELETED)}
    if not pods:
        return frozenset()
    entities = pods | {replace(pod, kind=EntityKind.REPLICA) for pod in pods}
    keys = {entity.key for entity in entities}
    targets = {entity for entity, facts in topology.labels.items() if facts.get("stands_for") in keys}
    return frozenset(entities | targets)


def untrusted(alerts: Sequence[Alert], topology: Topology, values: RecentValues) -> frozenset[EntityRef]:
    """Returns entities that must not be acted on: a metrics page about them is missing or doubtful (safety rule 1).

    A node with a failed exporter is not cordoned, and a service with a failed replica scrape is not scaled in. A failed
    scrape is not a gap if an alert explains it (dead engine, lost device or node). Nor is a partial page of a node with
    a hardware alert.
    """
    down = _with_value(values, EntityKind.WORKLOAD, UP, 0.0)
    doubted = _with_value(values, EntityKind.WORKLOAD, TRUST, *DOUBTFUL)
    partial = _with_value(values, EntityKind.WORKLOAD, TRUST, TrustVerdict.PARTIAL.code) - down
    explained, broken = _explained(alerts, topology), _broken_nodes(alerts, topology)
    entities: set[EntityRef] = set()
    for target in (down | doubted) - deleted(topology):
        key = topology.label(target, "stands_for")
        if not key:
            continue
        entity = EntityRef.from_key(key)
        if entity.kind is EntityKind.REPLICA:
            entities.update(() if entity in explained else topology.above(entity, EntityKind.SERVICE))
        elif target not in partial or entity not in broken:
            entities.add(entity)
    return frozenset(entities)


def _broken_nodes(alerts: Iterable[Alert], topology: Topology) -> set[EntityRef]:
    """Returns nodes with an active hardware alert, of their own or of a device."""
    nodes: set[EntityRef] = set()
    for alert in alerts:
        known = faults().get(alert.fault or "")
        if alert.state is not AlertState.RESOLVED and known is not None and known.layer is Layer.HARDWARE:
            nodes.update((alert.entity, *topology.below(alert.entity, EntityKind.NODE)))
    return nodes


def _explained(alerts: Sequence[Alert], topology: Topology) -> set[EntityRef]:
    """Returns replicas that do not serve according to an active alert, or that depend on a broken component."""
    replicas_down: set[EntityRef] = set()
    for alert in alerts:
        known = faults().get(alert.fault or "")
        if alert.state is AlertState.RESOLVED or known is None:
            continue
        if alert.fault in NOT_SERVING or known.layer is Layer.HARDWARE or alert.fault == "node-lost":
            replicas_down |= topology.affected_by(alert.entity)
    return replicas_down


def healthy(
    alerts: Sequence[Alert], topology: Topology, values: RecentValues, doubtful: frozenset[EntityRef]
) -> frozenset[EntityRef]:
    """Returns nodes and replicas that respond, are not ``doubtful``, and have no active alert."""
    alerted: set[EntityRef] = set()
    for alert in alerts:
        if alert.state is AlertState.RESOLVED or proves_no_harm(alert):
            continue
        alerted.add(alert.entity)
        known = faults().get(alert.fault or "")
        if known is not None and known.layer in (Layer.HARDWARE, Layer.PLATFORM):
            alerted.update(topology.below(alert.entity, EntityKind.NODE))
    nodes = set(topology.of_kind(EntityKind.NODE)) - doubtful
    responding = _with_value(values, EntityKind.REPLICA, UP, 1.0)
    return frozenset((nodes | responding) - alerted)


def _with_value(values: RecentValues, kind: EntityKind, key: SignalKey, *accepted: float) -> set[EntityRef]:
    """Returns entities whose newest value is one of ``accepted``."""
    window = values.window(kind, (key,), RECENT)
    newest = windows.last_value(window, key)
    return {entity for entity, value in zip(window.entities, newest, strict=True) if value in accepted}


def _schedulable_throughout(values: RecentValues) -> set[EntityRef]:
    """Returns nodes that were schedulable in every recent cycle: a cordon of the last seconds may not show yet."""
    window = values.window(EntityKind.NODE, (UNSCHEDULABLE,), RECENT)
    column = window.column(UNSCHEDULABLE)
    known = ~np.isnan(column)
    throughout = known.any(axis=1) & ((column == 0) | ~known).all(axis=1)
    return {entity for entity, schedulable in zip(window.entities, throughout, strict=True) if schedulable}


def _deleted_nodes(nodes: Collection[EntityRef], topology: Topology, values: RecentValues) -> frozenset[EntityRef]:
    """Returns the nodes that the cluster no longer has.

    The topology lacks such a node, and so does the control plane, which reports others of its cluster from the first to
    the last minutes of the span. An outage of the control plane's metrics deletes none.
    """
    missing = set(nodes) - topology.entities
    window = values.window(EntityKind.NODE, (UNSCHEDULABLE, NODE_READY), DELETED_AFTER) if missing else None
    if window is None or window.times.size == 0:
        return frozenset()
    reporting = {entity.cluster for entity in _reported_throughout(window)}
    return frozenset(node for node in missing - _reported(window) if node.cluster in reporting)


def _listed_clusters(topology: Topology, values: RecentValues) -> frozenset[str]:
    """Returns the clusters with a listed service whose pods the control plane has reported throughout.

    There, a service that is not listed has ended. Nodes prove nothing about services.
    """
    window = values.window(EntityKind.POD, (POD_READY,), DELETED_AFTER)
    pods = _reported_throughout(window) if window.times.size else ()
    return frozenset(pod.cluster for pod in pods if topology.above(pod, EntityKind.SERVICE))


def _reported(window: Window) -> frozenset[EntityRef]:
    known = np.any(~np.isnan(window.values), axis=(1, 2))
    return frozenset(entity for entity, reported in zip(window.entities, known, strict=True) if reported)


def _reported_throughout(window: Window) -> list[EntityRef]:
    """Returns entities with values in the first and in the last minutes of ``DELETED_AFTER``."""
    known = np.any(~np.isnan(window.values), axis=2)
    first = window.times <= window.times[-1] - (DELETED_AFTER - RECENT).total_seconds()
    last = window.times > window.times[-1] - RECENT.total_seconds()
    throughout = np.any(known[:, first], axis=1) & np.any(known[:, last], axis=1)
    return [entity for entity, reported in zip(window.entities, throughout, strict=True) if reported]


def blind_clusters(incidents: Iterable[Incident]) -> frozenset[str]:
    """Returns the clusters of open incidents about blind monitoring."""
    causes = (incident.suspected_cause for incident in incidents if incident.resolved_at is None)
    return frozenset(cause.entity.cluster for cause in causes if cause is not None and cause.fault == "monitor-blind")
