"""A small fleet: 8 nodes with one GPU, pod and replica each, and one service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import rfc3339
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
)
from outrider.topology import DELETED, Topology
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.limits import FleetFacts, HalfOpen, Policy
from remediation.decide.policy import decide
from remediation.playbooks.files import packaged
from remediation.playbooks.model import time_limits

T0 = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
CYCLE = timedelta(seconds=15)
SERVICE = EntityRef("c1", EntityKind.SERVICE, "llm", "chat")


class Fleet:
    """Surroundings of ``decide``: stores decisions as the store does."""

    def __init__(self, nodes: int = 8, *, autonomy: str = "act", dry_run: bool = False, **limits: object) -> None:
        limits.setdefault("half_open", HalfOpen(weights=()))  # its own tests set weights
        limits.setdefault("time_limits", time_limits(packaged()))
        self.policy = Policy(autonomy=AutonomyLevels(Autonomy(autonomy)), dry_run=dry_run, **limits)  # type: ignore[arg-type]
        self.nodes = [EntityRef("c1", EntityKind.NODE, None, f"node-{n}") for n in range(nodes)]
        self.gpus = [EntityRef("c1", EntityKind.GPU, None, f"GPU-{n}") for n in range(nodes)]
        self.pods = [EntityRef("c1", EntityKind.POD, "llm", f"chat-{n}") for n in range(nodes)]
        self.replicas = [EntityRef("c1", EntityKind.REPLICA, "llm", f"chat-{n}") for n in range(nodes)]
        self.service = SERVICE
        edges = []
        for node, gpu, pod, replica in zip(self.nodes, self.gpus, self.pods, self.replicas, strict=True):
            edges += [(node, gpu), (gpu, pod), (node, pod), (pod, replica), (replica, SERVICE)]
        self.topology = Topology.build(edges)
        self.sick: set[EntityRef] = set()
        self.facts = FleetFacts(
            nodes_total=nodes, ready_replicas={SERVICE: nodes}, needed_replicas={SERVICE: max(1, nodes // 2)}
        )
        self.incidents: dict[str, Incident] = {}
        self.alerts: dict[EntityRef, Alert] = {}
        self.plan = Plan()
        self.actions: dict[str, Action] = {}
        self.sessions: dict[str, object] = {}
        self.now = T0

    # --- fleet ---

    def break_(self, fault, entity, *, confidence=0.9, priority=Priority.P1, id_=None, alert=True):
        id_ = id_ or f"inc-{len(self.incidents)}"
        cause = Hypothesis(entity, fault, confidence)
        self.incidents[id_] = Incident(
            id_, Layer.ENGINE, priority, self.now, (cause,), (), (), (), self.now, services=("chat",)
        )
        self.sick.add(entity)
        if alert:
            self.raise_alert(fault, entity, priority=priority)
        return id_

    def replace_pod(self, number, *, ready=True, labelled=False, to=None):
        """The pod is deleted; another one takes its place under another name, also on another node ``to``.

        Returns the old and the new replica.
        """
        old, gone = self.replicas[number], self.pods[number]
        new = replace(old, name=f"{old.name}-next")
        names = {old: new, gone: replace(gone, name=new.name)}
        stays = [edge for edge in self.topology.edges if to is None or edge[1] != gone]
        edges = [(names.get(lower, lower), names.get(upper, upper)) for lower, upper in stays]
        edges += [] if to is None else [(self.nodes[to], names[gone]), (self.gpus[to], names[gone])]
        labels = {entity: facts for entity, facts in self.topology.labels.items() if entity not in names}
        labels |= {names[gone]: {"since": rfc3339(self.now)}}
        labels |= {gone: {DELETED: "true"}} if labelled else {}
        self.topology = Topology.build(edges, labels, labels)
        self.replicas[number], self.pods[number] = names[old], names[gone]
        self.sick = {names.get(entity, entity) for entity in self.sick - {old}} | (set() if ready else {new})
        return old, new

    def remove_pod(self, number):
        """The pod is deleted, without a replacement so far."""
        self._remove(self.replicas[number], self.pods[number])

    def remove_node(self, number):
        """The node is deleted, with its device and the pods on it."""
        node, gpu = self.nodes[number], self.gpus[number]
        pods = {upper for lower, upper in self.topology.edges if lower in (node, gpu) and upper in self.pods}
        replicas = {upper for lower, upper in self.topology.edges if lower in pods}
        self._remove(node, gpu, *pods, *replicas)
        self.facts = replace(self.facts, nodes_total=self.facts.nodes_total - 1)

    def _remove(self, *entities):
        left = [edge for edge in self.topology.edges if not set(edge) & set(entities)]
        labels = {entity: facts for entity, facts in self.topology.labels.items() if entity not in entities}
        self.topology = Topology.build(left, labels, labels)

    def raise_alert(self, fault, entity, *, priority=Priority.P1):
        print_, reason = f"{fault}-{entity.name}", AlertReason.STILL_TRUE
        self.alerts[entity] = Alert(print_, fault, priority, entity, AlertState.FIRING, reason, T0, T0, fault=fault)

    def mend(self, entity, *, resolve=None):
        self.sick.discard(entity)
        self.alerts.pop(entity, None)
        if resolve is not None:
            self.incidents[resolve] = replace(self.incidents[resolve], resolved_at=self.now)

    def recommend(
        self, current, target, *, needed_by=None, ceiling=20, need_now=None, most=None,
        reason=PlanReason.FORECAST_PEAK, made_at=None,
    ):  # fmt: skip
        if need_now is not None:
            self.facts = replace(self.facts, needed_replicas={**self.facts.needed_replicas, SERVICE: need_now})
        derivation = {} if most is None else {"most": {"replicas": most}}
        self.plan = Plan(
            recommendations=(
                Recommendation(
                    SERVICE, "H100", current, target, target * 4, 1, ceiling, "peak", None, needed_by,
                    timedelta(minutes=5), None, "USD", derivation, reason, made_at or self.now,
                ),
            )
        )  # fmt: skip

    # --- the loop ---

    def facts_now(self):
        ours = {node for session in self.sessions.values() if session.closed_at is None for node in session.cordoned}
        deleted = ours - self.topology.entities
        known = {*self.nodes, *self.replicas} & self.topology.entities
        healthy = frozenset(known - self.sick - set(self.alerts))
        alerted = self.facts.alerted | {(alert.entity, alert.fault) for alert in self.alerts.values() if alert.fault}
        serving = {pod.cluster for pod in self.pods if self.topology.above(pod, EntityKind.SERVICE)}
        return replace(
            self.facts,
            alerted=alerted,
            listed_clusters=self.facts.listed_clusters | serving,
            healthy=healthy,
            nodes_cordoned_by_us=frozenset(ours - deleted),
            deleted_nodes=frozenset(deleted),
        )

    def decide(self, **changed):
        given = {
            "policy": self.policy,
            "incidents": list(self.incidents.values()),
            "alerts": list(self.alerts.values()),
            "plan": self.plan,
            "actions_recent": list(self.actions.values()),
            "sessions": [session for session in self.sessions.values() if session.closed_at is None],
            "topology": self.topology,
            "facts": self.facts_now(),
            "now": self.now,
            "playbooks": packaged(),
        }
        return decide(**{**given, **changed})

    def cycle(self, *, perform=True, after=CYCLE):
        """Decide, commit as the store does, perform, move the clock. Returns what was decided."""
        decisions = self.decide()
        for action in decisions.actions:
            known = self.actions.get(action.id)
            if known is None or action.status is ActionStatus.CANCELLED:
                self.actions[action.id] = action
        for session in decisions.sessions:
            self.sessions[session.id] = session
        if perform:
            self.perform()
        self.now += after
        return decisions.actions

    def perform(self, *, status=ActionStatus.DONE):
        done = []
        for action in list(self.actions.values()):
            if action.status is ActionStatus.INTENDED:
                final = ActionStatus.DRY_RUN if action.dry_run else status
                self.actions[action.id] = replace(action, status=final, started_at=self.now, ended_at=self.now)
                done.append(self.actions[action.id])
        return done

    def run(self, cycles):
        return [action for _ in range(cycles) for action in self.cycle()]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def make_fleet():
    return Fleet


def summaries(actions):
    """(kind, target, verdict, reason) of actions, as text."""
    return [(a.kind.value, a.target.name, a.decision.value, a.reason.value) for a in actions]


@pytest.fixture
def words():
    return summaries
