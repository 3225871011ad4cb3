"""Received alerts beside our own: the source decides when they start and end."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from alerts.state import machine, received
from outrider.model import AlertReason, AlertState, EntityKind, EntityRef, Priority
from outrider.records.received_alerts import ReceivedAlert
from outrider.text.i18n import translate

UNKNOWN = EntityRef("c1", EntityKind.NODE, None, "n9")


def reported(world, name="KubeNodeNotReady", **fields):
    base = ReceivedAlert(
        source="alertmanager",
        fingerprint="ab12",
        name=name,
        state=AlertState.FIRING,
        priority=Priority.P1,
        starts_at=world.t0,
        reported_at=world.t0,
        received_at=world.t0,
        labels={"node": "node-1", "routes": "phone", "services": "x", "detectors": "liveness"},
        summary="Node is <b>not</b> ready.",
        runbook="https://runbooks/node",
        fault="node-lost",
    )
    return replace(base, **fields)


def at_node(world):
    return lambda labels, fault: (world.node, True, fault)


def step(world, active, items, seconds=15, subject=None):
    context = world.context()
    return received.advance(active, items, subject or at_node(world), context, world.at(seconds))


def test_a_received_alert_fires_at_once_with_its_source_and_labels(world):
    (alert,) = step(world, [], [reported(world)])
    assert (alert.state, alert.reason, alert.rule) == (
        AlertState.FIRING,
        AlertReason.RECEIVED,
        "alertmanager:KubeNodeNotReady",
    )
    assert (alert.entity, alert.fault, alert.priority) == (world.node, "node-lost", Priority.P1)
    assert alert.is_received
    assert alert.labels["label.node"] == "node-1"


def test_labels_of_the_source_never_route_or_correlate(world):
    (alert,) = step(world, [], [reported(world)])
    assert "routes" not in alert.labels
    assert "detectors" not in alert.labels
    assert alert.labels["services"] == str(world.service)


def test_its_name_and_summary_are_its_evidence(world):
    (alert,) = step(world, [], [reported(world)])
    (evidence,) = machine.evidence_of(alert)
    text = translate(evidence.text, "en", **evidence.arguments)
    assert text == "KubeNodeNotReady (alertmanager): Node is <b>not</b> ready."
    assert alert.annotations["runbook"] == "https://runbooks/node"


def test_it_ends_with_its_source(world):
    active = step(world, [], [reported(world)])
    (over,) = step(world, active, [], 30)
    assert (over.state, over.reason, over.ends_at) == (AlertState.RESOLVED, AlertReason.ENDED_AT_SOURCE, world.at(30))


def test_an_unchanged_alert_is_the_same_record(world):
    active = step(world, [], [reported(world)])
    assert step(world, active, [reported(world)], 30) == active


def test_a_repetition_keeps_its_start_and_entity_and_never_lowers_the_priority(world):
    active = step(world, [], [reported(world)])
    repeated = reported(world, received_at=world.at(60), priority=Priority.P3, starts_at=world.at(50))
    (alert,) = step(world, active, [repeated], 75, lambda labels, fault: (UNKNOWN, True, fault))
    assert (alert.starts_at, alert.entity, alert.priority) == (world.t0, world.node, Priority.P1)
    assert alert.seen_at == world.at(60)


def test_an_unknown_entity_is_kept_and_replaced_once_it_is_known(world):
    active = step(world, [], [reported(world)], subject=lambda labels, fault: (UNKNOWN, False, fault))
    assert (active[0].entity, active[0].annotations["unknown_entity"]) == (UNKNOWN, "true")
    (alert,) = step(world, active, [reported(world)], 30)
    assert (alert.entity, "unknown_entity" in alert.annotations) == (world.node, False)


def test_two_alerts_of_one_name_on_one_entity_stay_two(world):
    both = [reported(world), reported(world, fingerprint="cd34")]
    assert len({alert.fingerprint for alert in step(world, [], both)}) == 2


def test_evidence_with_braces_and_percent_signs_is_text(world):
    (alert,) = step(world, [], [reported(world, summary="{0} %s {missing} {{")])
    (evidence,) = machine.evidence_of(alert)
    assert "{0} %s {missing} {{" in translate(evidence.text, "en", **evidence.arguments)
    assert json.loads(alert.annotations["evidence"])


def test_an_alert_that_was_interrupted_between_two_cycles_goes_on(world):
    active = step(world, [], [reported(world)])
    again = reported(world, received_at=world.at(20) + timedelta(microseconds=1), starts_at=world.at(20))
    (alert,) = step(world, active, [again], 30)
    assert (alert.state, alert.starts_at) == (AlertState.FIRING, world.t0)
