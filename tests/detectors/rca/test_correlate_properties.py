"""Invariants of correlation: every alert has one incident, and resolved incidents do not change."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    CLUSTER,
    CODE,
    Desk,
    alert,
    cause_of,
    change,
    edges_of,
    finding,
    gpu,
    node,
    pod,
    ref,
    replica,
)

from detectors.rca import correlate, fault_catalogue
from detectors.rca.evidence_index import opens_incident
from outrider.model import AlertState, EntityKind, Priority
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

EVERYTHING = [
    CHAT,
    CODE,
    CLUSTER,
    *(node(number) for number in range(3)),
    *(make(number) for number in range(6) for make in (gpu, pod, replica)),
]
BY_KIND: dict[EntityKind, list[str]] = {}
for fault_id, fault in faults().items():
    BY_KIND.setdefault(fault.entity, []).append(fault_id)

one_alert = st.sampled_from(EVERYTHING).flatmap(
    lambda entity: st.builds(
        alert,
        st.just(entity),
        st.one_of(st.none(), st.sampled_from(BY_KIND.get(entity.kind, ["engine-dead"]))),
        since=st.integers(-600, 0).map(float),
        rule=st.sampled_from(["a", "b", "c"]),
        priority=st.sampled_from(list(Priority)),
        state=st.sampled_from(list(AlertState)),
    )
)
steps = st.lists(st.lists(one_alert, max_size=8, unique_by=lambda one: one.fingerprint), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps, st.booleans())
def test_every_firing_alert_is_in_exactly_one_open_incident(story, changed):
    desk = Desk()
    resolved = {}
    for number, alerts in enumerate(story):
        seconds = number * 240.0
        moved = [replace(one, starts_at=one.starts_at) for one in alerts]
        suggested = [finding(one.entity, one.fault, since=seconds - 60) for one in moved if one.fault]
        desk.step(seconds, moved, suggested, [change(CHAT, -60.0)] if changed else [])
        homes = Counter(fingerprint for incident in desk.open for fingerprint in incident.alerts)
        for one in moved:
            if opens_incident(one):
                assert homes[one.fingerprint] == 1, one
        for incident in desk.incidents.values():
            if incident.resolved_at is not None:
                assert resolved.setdefault(incident.id, incident) == incident, "a resolved incident changed"
            else:
                firing = {one.fingerprint for one in moved if opens_incident(one)}
                waits = any(one.state is AlertState.PENDING and one.fault is None for one in moved)
                assert waits or set(incident.alerts) & firing
                assert all(0 < hypothesis.confidence < 1 for hypothesis in incident.hypotheses)
                named = [(hypothesis.entity, hypothesis.fault) for hypothesis in incident.hypotheses]
                assert len(set(named)) == len(named) <= 5


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(one_alert, max_size=10, unique_by=lambda one: one.fingerprint), st.randoms(use_true_random=False))
def test_the_order_of_alerts_does_not_matter(alerts, random):
    shuffled = list(alerts)
    random.shuffle(shuffled)
    one, other = Desk(), Desk()
    one.step(0, alerts)
    other.step(0, shuffled)
    assert {frozenset(incident.alerts) for incident in one.open} == {
        frozenset(incident.alerts) for incident in other.open
    }
    assert {incident.id for incident in one.open} == {incident.id for incident in other.open}


def test_a_storm_over_ten_thousand_entities_becomes_a_handful_of_incidents():
    services = [ref(EntityKind.SERVICE, f"service-{number}") for number in range(20)]
    edges = []
    for number in range(3300):
        edges += edges_of(number, node(number // 8), services[number // 8 % 20])
    topology = Topology.build(edges)
    assert len(topology.entities) >= 10_000
    lost = [alert(node(number), "node-lost", since=number) for number in range(0, 400, 20)]
    alerts = list(lost)
    for number in range(0, 400, 20):
        for place in range(8):
            alerts.append(alert(gpu(number * 8 + place), "gpu-lost", since=number + 5))
            alerts.append(alert(replica(number * 8 + place), "engine-dead", since=number + 5))
            alerts.append(alert(pod(number * 8 + place), "crash-loop", since=number + 60))
    assert len(alerts) == 500
    incidents = correlate.correlate([], alerts, [], [], topology, fault_catalogue.load(), at_end())
    assert len(incidents) == 20
    assert {cause_of(incident) for incident in incidents} == {(one.entity, "node-lost") for one in lost}
    assert all(len(incident.alerts) == 25 for incident in incidents)


def at_end():
    from fleet_for_correlation import at  # type: ignore[import-not-found]

    return at(600)


def test_a_fault_that_two_rules_report_began_with_the_earliest():
    """One of the two began within reach of an older symptom, the other did not: their order must not decide."""
    begins = {"a": -1.0, "b": 0.0}
    lost = [alert(CLUSTER, "cluster-lost", since=since, rule=rule) for rule, since in begins.items()]
    symptoms = [alert(CHAT, None, since=0.0, rule="b"), alert(CODE, None, since=-121.0, rule="a")]
    pending = [replace(one, state=AlertState.PENDING) for one in lost]
    one, other = Desk(), Desk()
    one.step(0, [*pending, *symptoms])
    other.step(0, [*reversed(pending), *symptoms])
    assert [set(incident.alerts) for incident in one.open] == [{one.fingerprint for one in symptoms}]
    assert one.open == other.open
