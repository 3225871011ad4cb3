"""Inputs of one round of decisions, and its topology queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from outrider import placement
from outrider.clock import parse_rfc3339
from outrider.model import (
    ActionKind,
    Alert,
    AlertState,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Plan,
    Recommendation,
)
from outrider.topology import Topology
from remediation.decide.guards import CapacityBudget
from remediation.decide.history import History
from remediation.decide.limits import FleetFacts, Policy
from remediation.playbooks.model import Playbook
from remediation.playbooks.selectors import Selector
from remediation.procedures.bundle import NONE, Procedures

STARTS_WITHIN = timedelta(minutes=15)  # new replicas that are missing by then will not start
_OF_WORKLOADS = frozenset({ActionKind.SCALE, ActionKind.ROLLBACK, ActionKind.PAUSE_ROLLOUT, ActionKind.RESUME_ROLLOUT})
SCORE_RULE = "anomaly"
_OF_TRAFFIC = frozenset({ActionKind.SHIFT_TRAFFIC, ActionKind.RESTORE_TRAFFIC})
_OF_ENGINES = frozenset(
    {
        ActionKind.WAKE_ENGINE,
        ActionKind.SLEEP_ENGINE,
        ActionKind.DRAIN_ENGINE,
        ActionKind.RESUME_ENGINE,
        ActionKind.RESET_PREFIX_CACHE,
    }
)
_OF_HOOKS = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC})
_BLINDING = frozenset({"exporter-down", "stale-metrics"})  # their entities must not be acted on


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """One round. ``history`` and ``budget`` are shared by all its decisions.

    ``suspect`` are all entities of active alerts, ``faulty`` those of alerts that name a fault; ``kept_cordoned`` are
    nodes held by an active session, ``kept_diverted`` replicas with the active sessions that divert them.
    """

    policy: Policy
    facts: FleetFacts
    topology: Topology
    history: History
    budget: CapacityBudget
    plan: Plan
    playbooks: Mapping[str, Playbook]
    suspect: frozenset[EntityRef]
    now: datetime
    faulty: frozenset[EntityRef] = frozenset()
    kept_cordoned: frozenset[EntityRef] = frozenset()
    kept_diverted: Mapping[EntityRef, frozenset[str]] = field(default_factory=dict)
    procedures: Procedures = NONE

    def has_alert(self, entity: EntityRef) -> bool:
        """True while an alert on this entity is active."""
        return entity in self.suspect

    def diverted_elsewhere(self, replica: EntityRef, session: str) -> bool:
        """True if another active session keeps the replica out of rotation."""
        return bool(self.kept_diverted.get(replica, frozenset()) - {session})

    def node_healthy(self, node: EntityRef) -> bool:
        """True if the node is healthy and no device in it has an alert."""
        devices = [device for device in self.topology.holds_up(node) if device.kind is EntityKind.GPU]
        return node in self.facts.healthy and not any(self.has_alert(entity) for entity in (node, *devices))

    def recovered(self, incident: Incident | None) -> bool:
        """True if the incident is over, or its cause and everything that rests on it are healthy.

        Services are excluded: their windows of some minutes still contain the fault. Of an ended cause only symptoms
        are left, so nothing that rests on it may have a fault.
        """
        if incident is None or incident.resolved_at is not None:
            return True
        cause = incident.suspected_cause
        if cause is None:
            return False
        reached = self.topology.affected_by(cause.entity)
        if incident.cause_ended_at is not None:
            return self.faulty.isdisjoint(reached)
        if cause.entity not in self.facts.healthy:
            return False
        return not any(self.has_alert(entity) for entity in reached if entity.kind is not EntityKind.SERVICE)

    def targets(self, cause: EntityRef, selector: Selector) -> tuple[EntityRef, ...]:
        """The components of a step, relative to the cause."""
        if selector == "self":
            return (cause,)
        if selector == "node":
            return self._self_or(cause, EntityKind.NODE) or self.topology.below(cause, EntityKind.NODE)
        if selector == "services":
            return self._self_or(cause, EntityKind.SERVICE) or self.topology.above(cause, EntityKind.SERVICE)
        if selector == "changed_replicas":
            return tuple(replica for replica in self.served_by(cause) if self._runs_last_change(replica))
        replicas = self.replicas(cause)
        if selector == "replicas":
            return replicas
        if cause.kind is EntityKind.POD:
            return (cause,)
        pods = [self.topology.below(replica, EntityKind.POD) or (replica,) for replica in replicas]
        return tuple(dict.fromkeys(pod for group in pods for pod in group))

    def replicas(self, entity: EntityRef) -> tuple[EntityRef, ...]:
        """The replicas that rest on an entity; a replica is its own."""
        return (entity,) if entity.kind is EntityKind.REPLICA else self.topology.above(entity, EntityKind.REPLICA)

    def takes(self, target: EntityRef, cause: EntityRef, playbook: Playbook) -> dict[EntityRef, int]:
        """Serving replicas that each service would lose without the target.

        A replica stopped by the fault is not a loss, unless it still counts as healthy. Nor is one whose traffic is
        already diverted, or one that ``ready_replicas`` does not count, such as one whose pod was just replaced.
        """
        broken = frozenset() if playbook.serving else self.topology.affected_by(cause)
        diverted, healthy, serving = self.history.diverted(), self.facts.healthy, self.facts.serving
        lost: dict[EntityRef, int] = {}
        for replica in self.served_by(target):
            counts = replica in healthy or (replica not in broken and (serving is None or replica in serving))
            serves = replica not in diverted and counts
            for service in self.topology.above(replica, EntityKind.SERVICE):
                lost[service] = lost.get(service, 0) + serves
        return lost

    def served_by(self, target: EntityRef) -> tuple[EntityRef, ...]:
        """The replicas that an action on the target reaches; for a service all of its own."""
        return replicas_reached(self.topology, target)

    def objects(self, kind: ActionKind, target: EntityRef) -> dict[str, Any]:
        """The cluster objects that an action changes, as far as discovery knows them.

        ``workloads`` of a service as ``Kind/name``, ``service`` and ``pods`` of a replica for its traffic, and the
        ``uid`` of a pod: a pod of the same name may replace it. ``diverts`` is False for an outlier detection.
        ``engines`` of a replica are origins by adapter, empty without a known address. ``node`` and ``gpus`` (UUIDs)
        are the hardware of a hook, ``endpoints`` the origins of the engines on it.
        """
        if kind in _OF_TRAFFIC and target.kind is not EntityKind.SERVICE:
            services = self.topology.above(target, EntityKind.SERVICE)
            pods = [pod.name for pod in self.topology.below(target, EntityKind.POD)]
            ejects = kind is ActionKind.SHIFT_TRAFFIC and any(self.policy.ejects(service) for service in services)
            return {
                **({"service": services[0].name} if services else {}),
                **({"pods": pods} if pods else {}),
                **({"diverts": False} if ejects else {}),
            }
        if kind in _OF_ENGINES:
            return {"engines": self._engines(self.replicas(target)[:1])}
        if kind in _OF_HOOKS:
            return self._hardware(target)
        if target.kind is EntityKind.POD:
            uid = self.topology.label(target, "uid")
            return {"uid": uid} if uid else {}
        if kind not in _OF_WORKLOADS:
            return {}
        replicas = self.topology.below(target, EntityKind.REPLICA)
        named = {
            (self.topology.label(replica, "owner_kind"), self.topology.label(replica, "workload"))
            for replica in replicas
        }
        workloads = sorted(f"{owner}/{name}" for owner, name in named if owner and name)
        return {"workloads": workloads} if workloads else {}

    def created_at(self, pod: EntityRef) -> datetime | None:
        """Creation of a pod, or the start of the replica of this name; None if neither is known."""
        since = self.topology.label(replace(pod, kind=EntityKind.POD), "since")
        if since:
            return parse_rfc3339(since)
        return self.facts.started_at.get(replace(pod, kind=EntityKind.REPLICA))

    def _runs_last_change(self, replica: EntityRef) -> bool:
        """True if its process started after the last change of its service."""
        started, changed = self.facts.started_at.get(replica), self.facts.changed_at
        services = self.topology.above(replica, EntityKind.SERVICE)
        return started is not None and any(service in changed and started >= changed[service] for service in services)

    def _engines(self, replicas: Iterable[EntityRef]) -> dict[str, str]:
        """Origins of the targets that watch these replicas, by adapter."""
        keys = {replica.key for replica in replicas}
        watchers = (facts for facts in self.topology.labels.values() if facts.get("stands_for") in keys)
        return {facts["adapter"]: facts.get("origin", "") for facts in watchers if "adapter" in facts}

    def _hardware(self, target: EntityRef) -> dict[str, Any]:
        """Node, devices and engine addresses of the target of a hook."""
        nodes = self._self_or(target, EntityKind.NODE) or self.topology.below(target, EntityKind.NODE)
        result: dict[str, Any] = {"node": nodes[0].name} if nodes else {}
        if target.kind is EntityKind.GPU:
            result["gpus"] = [target.name]
        keys = {replica.key for replica in self.replicas(target)}
        origins = {
            facts.get("origin", "") for facts in self.topology.labels.values() if facts.get("stands_for") in keys
        }
        endpoints = sorted(origin for origin in origins if origin)
        return {**result, "endpoints": endpoints} if endpoints else result

    def recommendation(self, service: EntityRef) -> Recommendation | None:
        """The plan's recommendation for a service."""
        entries = (entry for entry in self.plan.recommendations if isinstance(entry, Recommendation))
        return next((entry for entry in entries if entry.service == service), None)

    def replicas_within_limits(self, service: EntityRef, wanted: int) -> int:
        """``wanted`` within the limits of the plan.

        Without a plan they are the ceiling of the service and, where no node joins, the GPUs of its cluster.
        """
        planned = self.recommendation(service)
        if planned is not None:
            return min(wanted, planned.most_replicas)
        most = self.policy.within_ceiling(service, wanted)
        if not self.policy.fixed_nodes:
            return most
        replicas = self.topology.below(service, EntityKind.REPLICA)
        gpus = max((self.topology.below(replica, EntityKind.GPU) for replica in replicas), key=len, default=())
        if not gpus:
            return most  # no replica shows its GPUs
        free = placement.free_gpus(self.topology, self.facts.unschedulable | self.facts.not_ready)
        gpu_type = self.topology.label(gpus[0], "gpu_type")
        placeable = placement.most_replicas(service, self.topology, free, gpu_type, len(gpus))
        return most if placeable is None else min(most, placeable)

    def current_replicas(self, service: EntityRef) -> int:
        """Replicas ordered for the service now, ready or not.

        A number that we set after the plan replaces the plan's. The larger of that and the topology's counts, because
        a pod lost with its node is still ordered, and a starting one may not be visible yet. One replica too many is
        harmless; growth to less than the ordered number would be a scale-in. Only after our own scale-in may leaving
        pods still be visible, so the set number is used as it is.
        """
        planned, action = self.recommendation(service), self.history.last_scaled(service)
        known = planned.current_replicas if planned else 0
        in_topology = len(self.topology.below(service, EntityKind.REPLICA))
        if action is None:
            return max(in_topology, known)
        count, at = int(action.params["replicas"]), action.ended_at or action.decided_at
        settling = self.now - at <= STARTS_WITHIN
        newer = planned is None or at >= planned.made_at
        if newer and settling and count < int(action.params.get("current", 0)):
            return count
        if newer and planned is not None:
            return max(in_topology, count)
        return max(in_topology, known, count if settling else 0)

    @staticmethod
    def _self_or(entity: EntityRef, kind: EntityKind) -> tuple[EntityRef, ...]:
        return (entity,) if entity.kind is kind else ()


def replicas_reached(topology: Topology, target: EntityRef) -> tuple[EntityRef, ...]:
    """The replicas that an action on the target reaches; for a service all of its own."""
    if target.kind is EntityKind.SERVICE:
        return topology.below(target, EntityKind.REPLICA)
    return (target,) if target.kind is EntityKind.REPLICA else topology.above(target, EntityKind.REPLICA)


def out_of_rotation(history: History, topology: Topology, facts: FleetFacts) -> frozenset[EntityRef]:
    """Replicas that count as ready and whose traffic we divert or are about to."""
    diverting = {
        replica
        for action in history.in_flight((ActionKind.SHIFT_TRAFFIC, ActionKind.RESTART_POD, ActionKind.DRAIN))
        for replica in (action.target, *topology.above(action.target, EntityKind.REPLICA))
    }
    counted = facts.healthy if facts.serving is None else facts.serving
    return (history.diverted() | diverting) & counted


def diverted_replicas(history: History, topology: Topology, facts: FleetFacts) -> dict[EntityRef, int]:
    """Number of replicas of each service that are out of rotation because of us."""
    result: dict[EntityRef, int] = {}
    for replica in out_of_rotation(history, topology, facts):
        for service in topology.above(replica, EntityKind.SERVICE):
            result[service] = result.get(service, 0) + 1
    return result


def suspects(alerts: tuple[Alert, ...]) -> frozenset[EntityRef]:
    """All entities of active alerts, without those that prove no harm: an idle replica is always unusual."""
    return frozenset(
        alert.entity for alert in alerts if alert.state is not AlertState.RESOLVED and not proves_no_harm(alert)
    )


def faulty(alerts: tuple[Alert, ...]) -> frozenset[EntityRef]:
    """All entities of active alerts that name a fault."""
    return frozenset(alert.entity for alert in alerts if alert.state is not AlertState.RESOLVED and alert.fault)


def proves_no_harm(alert: Alert) -> bool:
    """True for an alert without a fault that is a statistical score, or that only another monitor reports."""
    return alert.fault is None and (alert.rule == SCORE_RULE or alert.is_received)


def reported_only(incidents: Iterable[Incident], alerts: Iterable[Alert]) -> frozenset[str]:
    """Ids of open incidents whose suspected cause only other monitors report."""
    own: set[tuple[EntityRef, str]] = set()
    received: set[tuple[EntityRef, str]] = set()
    for alert in alerts:
        if alert.state is not AlertState.RESOLVED and alert.fault is not None:
            (received if alert.is_received else own).add((alert.entity, alert.fault))
    causes = {incident.id: cause for incident in incidents if (cause := cause_of(incident)) is not None}
    pairs = {number: (cause.entity, cause.fault) for number, cause in causes.items()}
    return frozenset(number for number, pair in pairs.items() if pair in received and pair not in own)


def unobserved(alerts: tuple[Alert, ...]) -> frozenset[EntityRef]:
    """Components whose exporter is down or whose values are frozen."""
    return frozenset(
        alert.entity for alert in alerts if alert.state is not AlertState.RESOLVED and alert.fault in _BLINDING
    )


def blind_clusters(alerts: tuple[Alert, ...]) -> frozenset[str]:
    """The clusters of alerts that report lost monitoring."""
    return frozenset(
        alert.entity.cluster for alert in alerts if alert.state is AlertState.FIRING and alert.fault == "monitor-blind"
    )


def cause_of(incident: Incident) -> Hypothesis | None:
    """The suspected cause of an open incident."""
    return incident.suspected_cause if incident.resolved_at is None else None
