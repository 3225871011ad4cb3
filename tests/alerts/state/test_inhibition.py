"""Alerts below a dead node or something in maintenance are inhibited; a service only if all of it is below."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.routing.pipeline import NotificationSettings, messages
from alerts.rules.files import load_entries
from alerts.state.silence import mute
from outrider.model import RECEIVED_FROM, EntityKind, EntityRef, MuteReason, NotifyReason, Priority
from outrider.records.silences import Silence, parse_matcher
from outrider.topology import Topology
from outrider.vocabulary.faults import ALL, SYMPTOMS, faults

NODES = [EntityRef("c1", EntityKind.NODE, None, name) for name in ("node-1", "node-2")]
GPUS = [EntityRef("c1", EntityKind.GPU, None, name) for name in ("GPU-1", "GPU-2")]
REPLICAS = [EntityRef("c1", EntityKind.REPLICA, "llm", name) for name in ("chat-0", "chat-1")]
SERVICE = EntityRef("c1", EntityKind.SERVICE, "llm", "chat")
CLUSTER = EntityRef("c1", EntityKind.CLUSTER, None, "c1")
LEAF, STORAGE = (EntityRef("c1", kind, None, "shared-1") for kind in (EntityKind.SWITCH, EntityKind.STORAGE))
TOPOLOGY = Topology.build(
    [
        edge
        for node, gpu, replica in zip(NODES, GPUS, REPLICAS, strict=True)
        for edge in ((LEAF, node), (STORAGE, node), (node, gpu), (gpu, replica), (replica, SERVICE))
    ]
)


def muted(alerts, silences=(), incidents=()):
    return {alert.entity: alert.muted_by for alert in mute(alerts, incidents, silences, TOPOLOGY)}


def lost(world, node=NODES[0], incident="inc-node"):
    return replace(world.alert("node-lost", node, fault="node-lost"), incident=incident)


def maintenance(world, *matchers, dependents=True):
    conditions = tuple(parse_matcher(text) for text in matchers)
    until = world.t0 + timedelta(days=1)
    return Silence("m", None, None, until, "ann", matchers=conditions, dependents=dependents)


def test_what_rests_on_a_dead_node_is_inhibited_and_the_rest_is_not(world):
    alerts = [
        lost(world),
        world.alert("gpu-lost", GPUS[0], fault="gpu-lost"),
        world.alert("gpu-lost", GPUS[1], fault="gpu-lost"),
    ]
    assert muted(alerts) == {NODES[0]: None, GPUS[0]: MuteReason.INHIBITED, GPUS[1]: None}


def test_an_alert_in_the_incident_of_the_dead_node_is_folded_there(world):
    cause, symptom = lost(world), replace(world.alert("gpu-lost", GPUS[0], fault="gpu-lost"), incident="inc-node")
    incident = replace(world.incident(), id="inc-node", alerts=(cause.fingerprint, symptom.fingerprint))
    assert muted([cause, symptom], incidents=[incident])[GPUS[0]] is MuteReason.FOLDED


def test_a_service_is_below_only_if_all_of_its_replicas_are(world):
    burn = world.alert("availability", SERVICE, fault=None)
    assert muted([lost(world), burn])[SERVICE] is None
    assert muted([lost(world), lost(world, NODES[1]), burn])[SERVICE] is MuteReason.INHIBITED


def test_an_alert_that_is_more_urgent_than_the_dead_node_pages(world):
    node = replace(lost(world), priority=Priority.P2)
    outage = world.alert("availability", SERVICE, fault=None, priority=Priority.P0)
    equal = world.alert("gpu-lost", GPUS[0], fault="gpu-lost", priority=Priority.P2)
    both = [node, replace(lost(world, NODES[1]), priority=Priority.P2), outage, equal]
    assert muted(both) == {NODES[0]: None, NODES[1]: None, SERVICE: None, GPUS[0]: MuteReason.INHIBITED}


def cause(world, fault, entity, priority=Priority.P1):
    return replace(world.alert(fault, entity, fault=fault, priority=priority), incident="inc-cause")


def mutes(world, cause_alert, fault, entity, rule="x", priority=Priority.P2):
    alert = world.alert(rule, entity, fault=fault, priority=priority)
    return muted([cause_alert, alert])[entity] is MuteReason.INHIBITED


@pytest.mark.parametrize(
    ("fault", "entity", "explained", "other"),
    [
        ("cluster-lost", CLUSTER, ("gpu-lost", GPUS[0]), None),
        ("cluster-lost", CLUSTER, ("traffic-drop", SERVICE), None),
        ("switch-down", LEAF, ("node-lost", NODES[0]), ("gpu-lost", GPUS[0])),
        ("switch-down", LEAF, ("nccl-timeout", REPLICAS[1]), ("garbled-output", REPLICAS[1])),
        ("psu-or-fan-failed", NODES[0], ("gpu-thermal-throttle", GPUS[0]), ("gpu-thermal-throttle", GPUS[1])),
        ("storage-slow", STORAGE, ("slow-start", REPLICAS[0]), ("engine-hung", REPLICAS[0])),
        ("storage-slow", STORAGE, ("disk-slow", NODES[1]), ("disk-full", NODES[1])),
        ("monitor-blind", CLUSTER, ("exporter-down", NODES[0]), ("engine-dead", REPLICAS[0])),
        ("monitor-blind", CLUSTER, ("stale-metrics", NODES[0]), ("node-lost", NODES[1])),
        ("gateway-fault", SERVICE, ("traffic-skew", REPLICAS[0]), ("engine-dead", REPLICAS[0])),
        ("cert-or-dns", SERVICE, ("traffic-skew", REPLICAS[0]), ("gpu-lost", GPUS[0])),
    ],
)
def test_a_fault_inhibits_its_consequences_where_the_topology_puts_them(world, fault, entity, explained, other):
    above = cause(world, fault, entity)
    assert mutes(world, above, *explained)
    assert not mutes(world, above, *explained, priority=Priority.P0), "more urgent than the cause"
    assert other is None or not mutes(world, above, *other)


def test_a_blind_monitor_mutes_absent_values_but_no_burning_objective(world):
    blind = cause(world, "monitor-blind", CLUSTER, Priority.P0)
    assert mutes(world, blind, None, SERVICE, rule="sli-without-values")
    assert not mutes(world, blind, None, SERVICE, rule="availability-low")


def test_an_engine_that_serves_another_service_is_not_behind_the_lost_gateway(world):
    other = EntityRef("c1", EntityKind.SERVICE, "llm", "code")
    topology = Topology.build([*TOPOLOGY.edges, (REPLICAS[0], other)])
    skews = [world.alert("traffic-fault", replica, fault="traffic-skew", priority=Priority.P2) for replica in REPLICAS]
    alerts = mute([cause(world, "gateway-fault", SERVICE), *skews], (), (), topology)
    assert [alert.muted_by for alert in alerts] == [None, None, MuteReason.INHIBITED]


def test_a_symptom_of_an_engine_behind_a_lost_gateway_is_inhibited(world):
    assert mutes(world, cause(world, "gateway-fault", SERVICE), None, REPLICAS[0], rule="anomaly")


@pytest.mark.parametrize("entity", [GPUS[0], NODES[0]])
def test_no_fault_mutes_the_symptoms_of_hardware(world, entity):
    assert not mutes(world, cause(world, "gateway-fault", SERVICE, Priority.P0), None, entity, rule="node-not-ready")


def test_what_another_monitor_reports_without_a_fault_is_not_a_known_symptom(world):
    alert = world.alert("checkout-down", REPLICAS[0], fault=None, priority=Priority.P2)
    received = replace(alert, labels={RECEIVED_FROM: "grafana"})
    assert muted([cause(world, "gateway-fault", SERVICE), received]) == {SERVICE: None, REPLICAS[0]: None}


def test_every_consequence_is_a_fault_or_a_rule():
    names = {entry.rule.name for entry in load_entries()} | set(faults()) | {ALL, SYMPTOMS}
    for fault in faults().values():
        assert fault.inhibits.dependents | fault.inhibits.dependencies <= names, fault.id
        assert fault.id not in fault.inhibits.dependents


def test_no_two_faults_inhibit_each_other():
    """Two causes that mute each other would page nobody."""
    known = faults()
    for fault in known.values():
        for name in (fault.inhibits.dependents | fault.inhibits.dependencies) & set(known):
            listed = known[name].inhibits
            assert fault.id not in listed.dependents | listed.dependencies, (fault.id, name)


def test_maintenance_of_a_node_covers_what_rests_on_it(world):
    alerts = [world.alert("engine-dead", REPLICAS[0]), world.alert("engine-dead", REPLICAS[1])]
    result = muted(alerts, [maintenance(world, "node=node-1")])
    assert result == {REPLICAS[0]: MuteReason.INHIBITED, REPLICAS[1]: None}


def test_maintenance_of_a_cluster_covers_everything_in_it(world):
    alerts = [world.alert("engine-dead", REPLICAS[0]), lost(world), world.alert("availability", SERVICE, fault=None)]
    assert set(muted(alerts, [maintenance(world, "cluster=c1")]).values()) == {MuteReason.SILENCED}
    assert set(muted(alerts, [maintenance(world, "kind=cluster", "entity=c1")]).values()) == {MuteReason.INHIBITED}


@pytest.mark.parametrize(
    ("matcher", "pages"),
    [("service!=chat", True), ("service!~cha.*", True), ("priority!=P0", True), ("service!=code", False)],
)
@pytest.mark.parametrize("topology", [TOPOLOGY, Topology()])
def test_maintenance_mutes_nothing_that_a_negative_matcher_excludes(world, matcher, pages, topology):
    alert = world.alert("availability-low", SERVICE, fault=None, priority=Priority.P0)
    for below in ("cluster=c1", "kind=cluster"):
        (result,) = mute([alert], (), [maintenance(world, below, matcher)], topology)
        assert (result.muted_by is None) is pages, below


def test_a_negative_matcher_about_hardware_still_covers_what_rests_on_the_rest(world):
    alerts = [world.alert("engine-dead", replica) for replica in REPLICAS]
    result = muted(alerts, [maintenance(world, "kind=node", "node!=node-2")])
    assert result == {REPLICAS[0]: MuteReason.INHIBITED, REPLICAS[1]: None}


def test_a_silence_without_dependents_mutes_only_what_it_selects(world):
    alerts = [lost(world), world.alert("gpu-lost", GPUS[0], fault="gpu-lost")]
    result = muted(alerts, [maintenance(world, "node=node-1", dependents=False)])
    assert result[NODES[0]] is MuteReason.SILENCED
    assert result[GPUS[0]] is MuteReason.INHIBITED  # by the dead node, as without the silence


@pytest.mark.parametrize("reason", [MuteReason.INHIBITED, MuteReason.SILENCED])
def test_an_incident_whose_alerts_are_all_inhibited_sends_nothing(world, reason):
    alert = replace(world.alert(), muted_by=reason)
    incident = replace(world.incident(), alerts=(alert.fingerprint,), pages=0, timeline=())
    routes = NotificationSettings(routes={"im": ("chat",)})
    plan = messages([], [incident], [alert], [], routes, world.t0)
    assert not plan.messages
    assert plan.reasons == {incident.id: NotifyReason.MUTED}


def test_labels_of_the_source_select_a_received_alert(world):
    alert = world.alert("alertmanager:DiskFull", NODES[0], fault=None, priority=Priority.P2)
    alert = replace(alert, labels={**alert.labels, "received_from": "alertmanager", "label.team": "storage"})
    assert muted([alert], [maintenance(world, "team=storage")])[NODES[0]] is MuteReason.SILENCED
    assert muted([alert], [maintenance(world, "source=grafana")])[NODES[0]] is None
