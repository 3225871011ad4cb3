"""A small synthetic fleet of two services and three nodes, with helpers for alerts and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from detectors.rca import correlate, fault_catalogue
from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Finding,
    Incident,
    Interval,
    Priority,
    TimeRange,
)
from outrider.topology import Edge, Topology
from outrider.vocabulary.faults import fault as fault_of

T0 = datetime(2026, 11, 21, 8, 5, tzinfo=UTC)
K = EntityKind


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def ref(kind: EntityKind, name: str) -> EntityRef:
    return EntityRef("c1", kind, "llm" if kind in (K.POD, K.REPLICA, K.SERVICE) else None, name)


CLUSTER = EntityRef("c1", K.CLUSTER, None, "c1")
CHAT, CODE = ref(K.SERVICE, "chat"), ref(K.SERVICE, "code")


def node(number: int) -> EntityRef:
    return ref(K.NODE, f"node-{number}")


def gpu(number: int) -> EntityRef:
    return ref(K.GPU, f"gpu-{number}")


def pod(number: int) -> EntityRef:
    return ref(K.POD, f"pod-{number}")


def replica(number: int) -> EntityRef:
    return ref(K.REPLICA, f"replica-{number}")


def edges_of(number: int, on: EntityRef, service: EntityRef) -> list[Edge]:
    return [
        (on, gpu(number)),
        (on, pod(number)),
        (gpu(number), pod(number)),
        (pod(number), replica(number)),
        (replica(number), service),
    ]


def fleet() -> Topology:
    """Replicas 0-3 are chat on nodes 0 and 1, replicas 4-5 are code on node 2."""
    edges: list[Edge] = []
    for number in range(4):
        edges += edges_of(number, node(number // 2), CHAT)
    for number in (4, 5):
        edges += edges_of(number, node(2), CODE)
    return Topology.build(edges, at=T0)


def alert(
    entity: EntityRef,
    fault: str | None = None,
    *,
    since: float = 0.0,
    rule: str | None = None,
    priority: Priority | None = None,
    state: AlertState = AlertState.FIRING,
) -> Alert:
    rule = rule or fault or "symptom"
    return Alert(
        fingerprint=f"{rule}|{entity.key}",
        rule=rule,
        priority=priority or (fault_of(fault).otherwise if fault else Priority.P1),
        entity=entity,
        state=state,
        reason=AlertReason.STILL_TRUE,
        starts_at=at(since),
        seen_at=at(since),
        fault=fault,
    )


def finding(
    entity: EntityRef,
    fault: str | None,
    *,
    score: float = 0.95,
    since: float = 0.0,
    signal: str = "engine_up",
    observed: float | None = None,
    expected: Interval | None = None,
) -> Finding:
    return Finding(
        detector="test",
        entity=entity,
        signals=(signal,),
        severity=Priority.P1,
        score=score,
        observed=observed,
        expected=expected,
        window=TimeRange(at(since), at(since + 60)),
        evidence=(Evidence(signal, observed, expected, "findings.test"),),
        fingerprint=f"test|{entity.key}|{fault or signal}",
        fault=fault,
    )


def change(entity: EntityRef, seconds: float) -> Event:
    return Event(f"change-{seconds}", EventKind.CHANGE, entity, at(seconds), "test", "rollout v2")


class Desk:
    """Keeps incidents over several calls, as the cycle does."""

    def __init__(self, topology: Topology | None = None, interval: timedelta = timedelta(seconds=15)) -> None:
        self.interval = interval
        self.topology = topology or fleet()
        self.incidents: dict[str, Incident] = {}
        self.knowledge = fault_catalogue.load()

    def step(
        self,
        seconds: float,
        alerts: Sequence[Alert] = (),
        findings: Sequence[Finding] = (),
        events: Sequence[Event] = (),
        unfinished: frozenset[str] = frozenset(),
    ) -> tuple[Incident, ...]:
        before = tuple(one for one in self.incidents.values() if one.resolved_at is None)
        known = (alerts, findings, events, self.topology, self.knowledge, at(seconds), self.interval)
        changed = correlate.correlate(before, *known, unfinished=unfinished)
        for incident in changed:
            assert self.incidents.get(incident.id, incident).resolved_at is None, "a resolved incident was touched"
            self.incidents[incident.id] = incident
        standing = tuple(one for one in self.incidents.values() if one.resolved_at is None)
        again = correlate.correlate(standing, *known, unfinished=unfinished)
        assert again == (), "the same input again changed something"
        return changed

    @property
    def open(self) -> list[Incident]:
        return [one for one in self.incidents.values() if one.resolved_at is None]

    @property
    def only(self) -> Incident:
        assert len(self.open) == 1, [(one.id, one.suspected_cause, one.alerts) for one in self.open]
        return self.open[0]

    def cause(self) -> tuple[EntityRef, str]:
        return cause_of(self.only)

    def by_cause(self, entity: EntityRef) -> Incident:
        (incident,) = (one for one in self.open if one.suspected_cause and one.suspected_cause.entity == entity)
        return incident

    def causes(self) -> set[tuple[EntityRef, str]]:
        return {cause_of(one) for one in self.open}


def cause_of(incident: Incident) -> tuple[EntityRef, str]:
    cause = incident.suspected_cause
    assert cause is not None
    return cause.entity, cause.fault


def resolved(one: Alert) -> Alert:
    return replace(one, state=AlertState.RESOLVED)
