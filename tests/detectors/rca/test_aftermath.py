"""Symptoms that began inside an incident stay its own while they decay; a new fault does not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    CODE,
    Desk,
    alert,
    at,
    replica,
    resolved,
)

from outrider.model import Alert, AlertReason, AlertState, Priority

HUNG = alert(replica(0), "engine-hung")


def waiting(entity=CHAT, since: float = 60.0, **more) -> Alert:
    """A pending P99 alert."""
    return late(entity, since, state=AlertState.PENDING, **more)


def late(entity=CHAT, since: float = 60.0, **more) -> Alert:
    """A P99 alert that fires."""
    return alert(entity, None, since=since, rule="ttft-p99-high", **more)


def desk_after_hang(*symptoms: Alert) -> Desk:
    """A hang from 0 to 180 s with these symptoms beside it, and 15 s after its end."""
    desk = Desk()
    desk.step(30, [HUNG])
    desk.step(180, [replace(HUNG, seen_at=at(180)), *symptoms])
    desk.step(195, [replace(resolved(HUNG), seen_at=at(180)), *symptoms])
    return desk


def test_a_pending_symptom_of_an_ended_cause_fires_into_its_incident():
    desk = desk_after_hang(waiting())
    (incident,) = desk.open
    assert [entry.what for entry in incident.timeline][-1] == "incidents.timeline.cause_over"
    desk.step(360, [late()])
    desk.step(600, [late()])
    assert desk.only.id == incident.id
    assert desk.cause() == (replica(0), "engine-hung")
    desk.step(615, [resolved(late())])
    assert desk.open == []
    assert len(desk.incidents) == 1


def test_a_symptom_that_fires_as_its_cause_resolves_joins_its_incident():
    desk = Desk()
    desk.step(180, [replace(HUNG, seen_at=at(180)), waiting()])
    desk.step(195, [resolved(HUNG), late()])
    assert desk.cause() == (replica(0), "engine-hung")
    assert len(desk.incidents) == 1


@pytest.mark.parametrize(
    "other",
    [
        waiting(CODE),
        waiting(priority=Priority.P3),
        replace(waiting(), reason=AlertReason.KEPT_WITHOUT_VALUES),
    ],
)
def test_what_the_cause_does_not_explain_keeps_no_incident_open(other):
    desk = desk_after_hang(other)
    assert desk.open == []


def test_an_incident_without_symptoms_resolves_with_its_cause():
    assert desk_after_hang().open == []


def test_the_symptom_of_a_long_outage_stays_with_it():
    desk = Desk()
    desk.step(30, [HUNG])
    desk.step(3600, [replace(HUNG, seen_at=at(3600))])
    desk.step(3630, [replace(resolved(HUNG), seen_at=at(3600)), waiting(since=3615)])
    desk.step(3960, [late(since=3615)])
    assert desk.cause() == (replica(0), "engine-hung")
    assert len(desk.incidents) == 1


def test_a_symptom_much_later_than_the_end_of_the_cause_is_an_incident_of_its_own():
    desk = desk_after_hang(late())
    later = alert(CHAT, None, since=1200, rule="availability-low", priority=Priority.P0)
    desk.step(1210, [late(), later])
    assert len(desk.open) == 2


@pytest.mark.parametrize(
    "fault", [alert(replica(1), "engine-dead", since=240), alert(CHAT, "traffic-surge", since=400)]
)
def test_a_new_fault_beside_decaying_symptoms_is_an_incident_of_its_own(fault):
    desk = desk_after_hang(waiting())
    desk.step(405, [late(), fault])
    assert desk.causes() == {(replica(0), "engine-hung"), (fault.entity, fault.fault)}
    hang = next(incident for incident in desk.open if incident.suspected_cause.fault == "engine-hung")
    assert late().fingerprint in hang.alerts, "the symptom stays with the fault in which it began"


def test_a_cause_that_returns_returns_to_its_incident():
    desk = desk_after_hang(waiting())
    again = alert(replica(0), "engine-hung", since=240)
    assert desk.only.cause_ended_at == at(180)
    desk.step(255, [waiting(), again])
    assert desk.only.cause_ended_at is None
    desk.step(300, [waiting(), resolved(again)])
    assert desk.only.cause_ended_at == at(240)
    assert desk.cause() == (replica(0), "engine-hung")
    assert len(desk.incidents) == 1


def test_a_decaying_symptom_of_higher_priority_raises_the_incident():
    desk = desk_after_hang(waiting())
    assert desk.only.priority is Priority.P1
    desk.step(360, [late(priority=Priority.P0)])
    assert desk.only.priority is Priority.P0


def test_a_symptom_that_began_inside_an_unexplained_incident_stays_its_own():
    desk = Desk()
    first = alert(CHAT, None, rule="users-wait", priority=Priority.P2)
    desk.step(15, [first])
    opened = desk.only.id
    desk.step(120, [resolved(first), waiting()])
    desk.step(360, [late()])
    assert desk.only.id == opened
    desk.step(700, [late(), alert(CODE, None, since=600, rule="users-wait", priority=Priority.P2)])
    assert len(desk.open) == 2
