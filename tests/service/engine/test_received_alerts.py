"""From a webhook to an incident: received alerts take part in correlation, pages and guard rails."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from collectors.receive.alert_formats import alertmanager
from collectors.receive.alert_formats.record import AlertRules
from outrider.clock import ManualClock
from outrider.model import ActionStatus, AlertState, DecisionReason, EntityKind, EntityRef, MuteReason
from outrider.ports import Collected
from outrider.topology import Topology
from service.config.settings import Settings
from service.wiring import platform

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)


def entity(kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
    return EntityRef("default", kind, namespace, name)


def fleet() -> Topology:
    """Two nodes with two pods each; the replicas serve one service per node."""
    edges = []
    for number in range(2):
        node = entity(EntityKind.NODE, f"n{number}")
        for index in range(2):
            pod = entity(EntityKind.POD, f"chat{number}-{index}", "llm")
            replica = entity(EntityKind.REPLICA, f"chat{number}-{index}", "llm")
            edges += [(node, pod), (pod, replica), (replica, entity(EntityKind.SERVICE, f"chat{number}", "llm"))]
    return Topology.build(edges)


class FleetSource:
    """A source that brings a topology and no values."""

    def __init__(self) -> None:
        self.topology = fleet()

    async def collect(self, at: datetime) -> Collected:
        return Collected(topology=self.topology)

    async def close(self) -> None:
        """Nothing to release."""


class World:
    """The cycle on a store in memory, with deliveries of an Alertmanager."""

    def __init__(self, **settings) -> None:
        self.clock, self.source = ManualClock(START), FleetSource()
        self.cycle = platform.cycle_in_memory(Settings(**settings), self.source, self.clock, interval=STEP)
        self.state = self.cycle.parts.state

    def deliver(self, *alerts: dict, status: str = "firing") -> None:
        entries = [
            {
                "status": status,
                "labels": labels,
                "fingerprint": repr(sorted(labels.items())),
                "annotations": {"summary": "s"},
            }
            for labels in alerts
        ]
        document = {"version": "4", "groupKey": "g", "alerts": entries}
        decoded = alertmanager.decode("alertmanager", json.dumps(document).encode(), AlertRules(), self.clock.now())
        self.state.receive_alerts(decoded.alerts, 10_000)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            now = self.clock.advance(STEP)
            self.cycle.run_stages(now, Collected(topology=self.source.topology))

    def firing(self):
        return self.state.alerts(states=[AlertState.FIRING])


NODE_DOWN = {"alertname": "KubeNodeNotReady", "node": "n0", "severity": "critical"}
PODS_DOWN = [
    {"alertname": "KubePodNotReady", "namespace": "llm", "pod": f"chat0-{index}", "severity": "warning"}
    for index in range(2)
]


def test_received_symptoms_are_grouped_under_a_received_cause_and_page_once():
    world = World()
    world.deliver(NODE_DOWN, *PODS_DOWN)
    world.step()
    (incident,) = world.state.incidents(open_only=True)
    assert incident.suspected_cause is not None
    assert (incident.suspected_cause.fault, incident.suspected_cause.entity.name) == ("node-lost", "n0")
    assert len(incident.alerts) == 3
    pages = [message for message in world.state.messages() if message.is_page]
    assert len(pages) == 1
    assert "KubeNodeNotReady (alertmanager): s" in pages[0].body


def test_symptoms_that_arrive_before_their_cause_end_up_with_it():
    world = World()
    world.deliver(*PODS_DOWN)
    world.step()
    world.deliver(NODE_DOWN)
    world.step(2)
    (incident,) = world.state.incidents(open_only=True)
    assert incident.suspected_cause is not None
    assert len(incident.alerts) == 3


def test_alerts_of_other_nodes_stay_apart():
    world = World()
    world.deliver(NODE_DOWN, {**NODE_DOWN, "node": "n1"})
    world.step()
    causes = {incident.suspected_cause.entity.name for incident in world.state.incidents(open_only=True)}
    assert causes == {"n0", "n1"}


def test_an_alert_about_an_unknown_entity_is_an_incident_of_its_own():
    world = World()
    world.deliver({"alertname": "MailDown", "instance": "mail:25"}, {"alertname": "DiskOld", "instance": "nas:9"})
    world.step()
    incidents = world.state.incidents(open_only=True)
    assert len(incidents) == 2
    assert {alert.entity.name for alert in world.firing()} == {"mail:25", "nas:9"}


def test_the_end_at_the_source_ends_the_incident():
    world = World()
    world.deliver(NODE_DOWN)
    world.step()
    world.deliver(NODE_DOWN, status="resolved")
    world.step(20)
    assert not world.firing()
    assert not world.state.incidents(open_only=True)


def test_an_info_alert_is_visible_and_opens_no_incident():
    world = World()
    world.deliver({"alertname": "InfoInhibitor", "namespace": "llm", "severity": "none"})
    world.step()
    assert [alert.rule for alert in world.firing()] == ["alertmanager:InfoInhibitor"]
    assert not world.state.incidents()


def test_alerts_of_a_node_in_maintenance_and_below_it_page_nobody_and_page_once_it_is_over():
    window = {"name": "patch", "match": ["node=n0"], "start": "2026-03-01 12:00", "end": "2026-03-01 12:01"}
    world = World(maintenance=[window])
    world.deliver(NODE_DOWN, *PODS_DOWN)
    world.step(3)
    assert not world.state.messages()
    assert {alert.muted_by for alert in world.firing()} <= {
        MuteReason.SILENCED, MuteReason.INHIBITED, MuteReason.FOLDED,
    }  # fmt: skip
    world.step(2)
    assert any(message.is_page for message in world.state.messages())


def test_actions_on_a_cause_that_only_another_monitor_reports_need_approval():
    world = World(remediation={"autonomy": "act", "dry_run": False})
    world.deliver(NODE_DOWN)
    world.step(3)
    actions = world.state.actions()
    assert actions
    assert {action.reason for action in actions if action.status is not ActionStatus.REFUSED} <= {
        DecisionReason.REPORTED_ONLY
    }
    assert not [action for action in actions if action.status is ActionStatus.INTENDED]


def test_an_alert_resolved_by_hand_stays_resolved_until_its_source_repeats_it():
    world = World()
    world.deliver(NODE_DOWN)
    world.step()
    (alert,) = world.firing()
    assert world.state.resolve_alert(alert.fingerprint, "ann", world.clock.now())
    world.step(2)
    assert not world.firing()
    world.clock.advance(timedelta(minutes=10))
    world.deliver(NODE_DOWN)
    world.step()
    assert len(world.firing()) == 1


@pytest.mark.slow
def test_a_thousand_received_alerts_are_grouped_by_their_causes():
    world = World()
    edges = [
        (entity(EntityKind.NODE, f"m{number}"), entity(EntityKind.POD, f"p{number}-{index}", "llm"))
        for number in range(50)
        for index in range(20)
    ]
    world.source.topology = Topology.build(edges)
    for number in range(50):
        pods = [
            {"alertname": "KubePodNotReady", "namespace": "llm", "pod": f"p{number}-{index}", "severity": "warning"}
            for index in range(20)
        ]
        world.deliver({**NODE_DOWN, "node": f"m{number}"}, *pods)
    world.step(2)
    incidents = world.state.incidents(open_only=True)
    assert len(incidents) == 50
    assert {len(incident.alerts) for incident in incidents} == {21}
