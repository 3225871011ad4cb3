"""Observation of a platform's decisions in a drill: the incident of an alert, pages and notifications."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Incident,
    Layer,
    Message,
    NotifyReason,
    Priority,
    TimelineEntry,
)
from outrider.ports import CycleCommit
from outrider.topology import Topology
from service.drills import observation
from simulator.faults.base import Truth
from simulator.scoring.run import FiredAlert
from store.memory import MemoryStateStore

START = datetime(2026, 11, 18, 10, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
REPLICA = EntityRef("c", EntityKind.REPLICA, "serving", "chat-0")
TARGET = EntityRef("c", EntityKind.WORKLOAD, "targets", "chat-0")


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def alert(begun: float, ended: float | None = None, entity: EntityRef = CHAT, **more) -> Alert:
    state = AlertState.FIRING if ended is None else AlertState.RESOLVED
    values = {"reason": AlertReason.STILL_TRUE, "ends_at": None if ended is None else at(ended)} | more
    return Alert(
        f"slow|{entity.key}", "slow", Priority.P1, entity, state, starts_at=at(begun), seen_at=at(begun), **values
    )


def incident(name: str, opened: float, resolved: float | None, *alerts: Alert) -> Incident:
    return Incident(
        id=name,
        layer=Layer.BUSINESS,
        priority=Priority.P1,
        opened_at=at(opened),
        hypotheses=(),
        rejected=(),
        alerts=tuple(alert.fingerprint for alert in alerts),
        timeline=(),
        updated_at=at(opened),
        resolved_at=None if resolved is None else at(resolved),
    )


def test_each_period_of_an_alert_belongs_to_the_incident_of_its_time():
    first, second = alert(1, 4), alert(10, 14)
    incidents = [incident("later", 11, None, second), incident("earlier", 2, 5, first)]
    fired = observation.Observer().fired([first, second], incidents)
    assert fired == (FiredAlert(CHAT, at(1), "earlier"), FiredAlert(CHAT, at(10), "later"))


def test_an_alert_that_outlasts_its_incident_belongs_to_the_first_incident():
    lasting = alert(1)
    for opened in (1, 3):  # before the first one or after it
        incidents = [incident("first", 2, 5, lasting), incident("second", opened, None, lasting)]
        assert observation.Observer().fired([lasting], incidents) == (FiredAlert(CHAT, at(1), "first"),)


def test_an_alert_of_an_absorbed_incident_belongs_to_the_absorbing_one():
    lasting = alert(1)
    moved = replace(
        incident("first", 2, 5, lasting),
        timeline=(TimelineEntry(at(5), "incidents.timeline.absorbed_into", {"incident": "second"}),),
    )
    assert observation.Observer().fired([lasting], [moved, incident("second", 3, None)])[0].incident == "second"


def test_an_alert_without_an_incident_counts_and_one_that_never_fired_does_not():
    never = alert(3, 4, REPLICA, reason=AlertReason.NEVER_FIRED)
    assert observation.Observer().fired([alert(1), never], []) == (FiredAlert(CHAT, at(1), None),)


def test_the_alert_of_a_scrape_target_counts_for_its_entity():
    observer = observation.Observer(monitored={TARGET: REPLICA})
    assert observer.fired([alert(1, entity=TARGET)], [])[0].entity == REPLICA


class CountingTopology:
    """A topology that counts its queries."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self.queries = topology, 0

    def __getattr__(self, name: str) -> object:
        self.queries += name in ("below", "of_kind", "label", "affected_by", "causes_of")
        return getattr(self._topology, name)


class NoRecovery:
    """Recovery of a fault that never recovers."""

    at = None

    def __init__(self, truth: Truth) -> None:
        self.injection = SimpleNamespace(truth=truth)

    def update(self) -> None:
        """Changes nothing."""


def test_the_topology_is_queried_again_only_if_its_graph_changes():
    labels = {TARGET: {"stands_for": REPLICA.key}}
    first = CountingTopology(Topology.build([(REPLICA, CHAT)], [TARGET], labels))
    truth = Truth("engine-dead", CHAT, at(1), at(9), (), (CHAT,))
    fault = observation.ObservedFault(NoRecovery(truth))
    observer = observation.Observer([fault])
    observer.observe(first, at(0))
    assert observer.monitored == {TARGET: REPLICA}
    assert fault.service_parts == frozenset()
    observer.observe(first, at(1))
    assert fault.service_parts == {REPLICA}
    queries = first.queries
    for minute in range(2, 6):
        observer.observe(first, at(minute))
    assert first.queries == queries
    other = replace(REPLICA, name="chat-1")
    observer.observe(Topology.build([(other, CHAT)], [TARGET], {TARGET: {"stands_for": other.key}}), at(6))
    assert observer.monitored == {TARGET: other}
    assert fault.service_parts == {REPLICA, other}


def test_a_message_about_two_incidents_is_one_page_and_notifies_of_both():
    state = MemoryStateStore()
    one, other = incident("one", 1, None), incident("other", 1, None)
    message = Message(
        "one:opened", "im", NotifyReason.OPENED, Priority.P1, "one", "t", "b", at(1), is_page=True, also=("other",)
    )
    record = CycleRecord("c", at(1), 0.1, 1, 1, 1, 0, 0, 0)
    state.commit(CycleCommit(record, incidents=(one, other), messages=(message,)))
    scored = {incident.id: incident for incident in observation.scored_incidents(state)}
    assert (scored["one"].paged_at, scored["one"].notified_at) == (at(1), at(1))
    assert (scored["other"].paged_at, scored["other"].notified_at) == (None, at(1))
    assert (scored["one"].called_at, scored["other"].called_at) == (at(1), at(1))
