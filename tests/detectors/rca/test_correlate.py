from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    CLUSTER,
    CODE,
    Desk,
    alert,
    at,
    cause_of,
    change,
    edges_of,
    finding,
    fleet,
    gpu,
    node,
    pod,
    ref,
    replica,
    resolved,
)

from outrider.model import AlertReason, AlertState, EntityKind, Hypothesis, Layer, Priority
from outrider.topology import Topology

STORE = ref(EntityKind.STORAGE, "models")


def with_storage() -> Topology:
    """The fleet, with one storage for the weights of all pods."""
    return Topology.build([*fleet().edges, *((STORE, pod(number)) for number in range(6))], at=at(0))


def whats(incident):
    return [entry.what.rsplit(".", 1)[-1] for entry in incident.timeline]


def whys(incident):
    return {item.fault: item.why.rsplit(".", 1)[-1] for item in incident.rejected}


def test_one_dead_engine_is_one_incident():
    desk = Desk()
    desk.step(30, [alert(replica(0), "engine-dead")], [finding(replica(0), "engine-dead")])
    incident = desk.only
    assert desk.cause() == (replica(0), "engine-dead")
    assert incident.layer is Layer.ENGINE
    assert incident.services == ("chat",)
    assert incident.opened_at == at(30)
    assert incident.id.startswith("inc-20261121T0805-")
    assert incident.hypotheses[0].confidence >= 0.8
    assert whys(incident) == {
        "exporter-down": "health_gone_too",
        "node-lost": "other_targets_answer",
        "engine-starting": "it_served_before",
    }


def test_ids_are_deterministic():
    one, other = Desk(), Desk()
    for desk in (one, other):
        desk.step(30, [alert(replica(0), "engine-dead")])
    assert one.only.id == other.only.id


def test_a_hung_engine_rejects_idle_saturated_and_asleep():
    desk = Desk()
    desk.step(30, [alert(replica(0), "engine-hung")])
    assert whys(desk.only) == {
        "engine-idle": "work_is_waiting",
        "engine-saturated": "tokens_stand_still",
        "engine-asleep": "engine_is_awake",
        "nccl-timeout": "one_card_has_no_collectives",
    }


def test_symptoms_fold_under_the_cause_on_their_path():
    desk = Desk()
    desk.step(
        60,
        [
            alert(replica(0), "engine-dead"),
            alert(CHAT, None, since=30, rule="ttft-p99"),
            alert(CHAT, None, since=45, rule="availability", priority=Priority.P0),
        ],
    )
    assert desk.cause() == (replica(0), "engine-dead")
    assert len(desk.only.alerts) == 3
    assert desk.only.priority is Priority.P0


def test_load_on_the_peers_of_a_dead_replica_is_its_symptom():
    desk = Desk()
    desk.step(
        90,
        [
            alert(replica(0), "engine-dead"),
            alert(replica(1), "kv-pressure", since=45),
            alert(replica(2), "kv-pressure", since=60),
            alert(CHAT, "traffic-surge", since=60),
        ],
    )
    assert desk.cause() == (replica(0), "engine-dead")
    assert len(desk.only.alerts) == 4


def test_load_on_another_service_is_not_its_symptom():
    desk = Desk()
    desk.step(90, [alert(replica(0), "engine-dead"), alert(CODE, "traffic-surge", since=60)])
    assert desk.causes() == {(replica(0), "engine-dead"), (CODE, "traffic-surge")}


def test_a_surge_long_before_an_engine_death_is_a_separate_incident():
    desk = Desk()
    surge = alert(CHAT, "traffic-surge")
    desk.step(60, [surge])
    desk.step(900, [surge, alert(replica(0), "engine-dead", since=890)])
    assert desk.causes() == {(CHAT, "traffic-surge"), (replica(0), "engine-dead")}


def test_a_surge_folds_its_pressure_on_the_replicas():
    desk = Desk()
    desk.step(
        60,
        [
            alert(replica(0), "kv-pressure"),
            alert(replica(1), "kv-pressure", since=10),
            alert(CHAT, "traffic-surge", since=15),
        ],
    )
    assert desk.cause() == (CHAT, "traffic-surge")


@pytest.mark.parametrize("first", [0, 1])
def test_independent_faults_on_separate_paths_stay_apart(first):
    desk = Desk()
    alerts = [alert(replica(first), "engine-dead"), alert(gpu(2), "gpu-lost"), alert(replica(4), "engine-hung")]
    desk.step(30, alerts)
    assert desk.causes() == {(replica(first), "engine-dead"), (gpu(2), "gpu-lost"), (replica(4), "engine-hung")}
    desk.step(45, [*alerts, alert(CHAT, None, since=40), alert(CODE, None, since=40)])
    assert len(desk.open) == 3


def test_a_late_cause_takes_over_its_incident():
    desk = Desk()
    dead = alert(replica(0), "engine-dead")
    desk.step(30, [dead])
    opened = desk.only.id
    desk.step(150, [dead, alert(gpu(0), "gpu-lost", since=140, priority=Priority.P1)])
    incident = desk.only
    assert incident.id == opened
    assert cause_of(incident) == (gpu(0), "gpu-lost")
    assert incident.layer is Layer.HARDWARE
    assert "cause_changed" in whats(incident)
    assert whys(incident) == {"exporter-down": "exporter_page_came", "node-lost": "other_targets_answer"}
    assert [one.fault for one in incident.hypotheses[:2]] == ["gpu-lost", "engine-dead"]


def test_a_cause_takes_over_the_incident_of_its_symptom():
    desk = Desk()
    symptom = alert(CHAT, None, rule="ttft-p99")
    desk.step(15, [symptom])
    assert desk.only.suspected_cause is None
    assert desk.only.layer is Layer.BUSINESS
    desk.step(60, [symptom, alert(replica(3), "engine-hung", since=50)])
    assert desk.cause() == (replica(3), "engine-hung")
    assert "cause_named" in whats(desk.only)


def test_symptoms_of_one_service_are_one_incident():
    desk = Desk()
    desk.step(15, [alert(CHAT, None, rule="ttft-p99"), alert(replica(1), None, rule="queue"), alert(CODE, None)])
    assert sorted(len(one.alerts) for one in desk.open) == [1, 2]


def test_a_second_fault_leaves_the_symptoms_of_the_first():
    desk = Desk()
    first = [alert(replica(0), "engine-dead"), alert(CHAT, None, since=10)]
    desk.step(30, first)
    opened = desk.only.id
    desk.step(300, [*first, alert(replica(3), "engine-hung", since=290)])
    assert len(desk.open) == 2
    assert len(desk.incidents[opened].alerts) == 2
    assert cause_of(desk.incidents[opened]) == (replica(0), "engine-dead")


def test_a_lost_node_absorbs_everything_on_it():
    desk = Desk()
    desk.step(
        30,
        [
            alert(node(0), "node-lost"),
            alert(node(0), "exporter-down"),
            alert(gpu(0), "gpu-lost"),
            alert(gpu(1), "gpu-lost"),
            alert(replica(0), "engine-dead"),
            alert(replica(1), "engine-dead"),
            alert(CHAT, None, since=10),
            alert(replica(2), "kv-pressure", since=20),
        ],
    )
    assert desk.cause() == (node(0), "node-lost")
    assert len(desk.only.alerts) == 8
    assert desk.only.hypotheses[0].confidence >= 0.6


def test_a_lost_node_detected_late_merges_open_incidents():
    desk = Desk()
    dead = [alert(replica(0), "engine-dead"), alert(replica(1), "engine-dead")]
    desk.step(15, dead)
    assert len(desk.open) == 2
    desk.step(45, [*dead, alert(node(0), "node-lost", since=30)])
    assert desk.cause() == (node(0), "node-lost")
    assert len(desk.only.alerts) == 3
    (gone,) = (one for one in desk.incidents.values() if one.resolved_at)
    assert whats(gone)[-1] == "absorbed_into"
    assert gone.timeline[-1].arguments["incident"] == desk.only.id
    assert gone.alerts == ()


def test_a_finding_without_an_alert_yet_joins_its_symptoms():
    desk = Desk()
    dead = [alert(replica(0), "engine-dead"), alert(replica(1), "engine-dead")]
    desk.step(15, dead, [finding(node(0), "node-lost")])
    assert desk.cause() == (node(0), "node-lost")


def test_monitor_blind_absorbs_faults_that_began_with_it():
    desk = Desk()
    dark = [
        alert(node(0), "exporter-down"),
        alert(node(1), "exporter-down", since=5),
        alert(node(2), "node-lost", since=5),
        alert(replica(0), "engine-dead", since=10),
        alert(replica(4), "engine-dead", since=10),
    ]
    blind = alert(CLUSTER, "monitor-blind", since=5)
    desk.step(15, [*dark, blind])
    assert desk.cause() == (CLUSTER, "monitor-blind")
    assert desk.only.services == ("chat", "code")
    assert desk.only.layer is Layer.MONITORING


def test_an_engine_still_dead_after_monitor_blind_is_a_separate_incident():
    desk = Desk()
    blind, dead = alert(CLUSTER, "monitor-blind"), alert(replica(0), "engine-dead", since=5)
    other = alert(replica(4), "engine-dead", since=5)
    desk.step(15, [blind, dead, other])
    desk.step(300, [resolved(blind), dead, resolved(other)])
    assert desk.cause() == (CLUSTER, "monitor-blind")
    desk.step(400, [dead])
    assert len(desk.open) == 1
    desk.step(500, [dead])
    assert desk.cause() == (replica(0), "engine-dead")
    (gone,) = (one for one in desk.incidents.values() if one.resolved_at)
    assert dead.fingerprint not in gone.alerts


def test_an_engine_that_died_before_monitor_blind_is_a_separate_incident():
    desk = Desk()
    dead = alert(replica(0), "engine-dead")
    desk.step(15, [dead])
    desk.step(600, [dead, alert(CLUSTER, "monitor-blind", since=590)])
    assert desk.causes() == {(replica(0), "engine-dead"), (CLUSTER, "monitor-blind")}


def test_a_symptom_belongs_to_the_earlier_cause_and_not_to_a_deeper_later_one():
    desk = Desk()
    card, host = alert(gpu(0), "gpu-lost"), alert(node(1), "node-lost", since=120)
    desk.step(15, [card])
    desk.step(135, [card, host])
    slow = alert(CHAT, None, since=30)
    desk.step(330, [card, host, slow])
    assert slow.fingerprint in desk.by_cause(gpu(0)).alerts
    assert slow.fingerprint not in desk.by_cause(node(1)).alerts


def test_the_deeper_of_two_earlier_causes_gets_the_symptom():
    desk = Desk()
    card, host = alert(gpu(0), "gpu-lost"), alert(node(1), "node-lost", since=20)
    desk.step(35, [card, host])
    slow = alert(CHAT, None)  # seen within two scrapes of both: the order is unknown
    desk.step(330, [card, host, slow])
    assert slow.fingerprint in desk.by_cause(node(1)).alerts


@pytest.mark.parametrize(("seconds", "place"), [(15, gpu(0)), (60, node(1))])
def test_onset_order_tolerates_one_scrape_at_any_interval(seconds, place):
    desk = Desk(interval=timedelta(seconds=seconds))
    card, host = alert(gpu(0), "gpu-lost"), alert(node(1), "node-lost", since=60)
    desk.step(75, [card, host])
    slow = alert(CHAT, None)
    desk.step(330, [card, host, slow])
    assert slow.fingerprint in desk.by_cause(place).alerts


@pytest.mark.parametrize(("since", "holder"), [(85, 0), (150, 1)])
def test_a_symptom_stays_with_the_cause_before_it(since, holder):
    desk = Desk()
    causes = [alert(gpu(0), "gpu-lost"), alert(node(1), "node-lost", since=120)]
    desk.step(135, causes)
    queue = alert(CHAT, None, since=since, rule="probe-failing", priority=Priority.P3)
    desk.step(180, [*causes, queue])
    held = [queue.fingerprint in desk.by_cause(entity).alerts for entity in (gpu(0), node(1))]
    assert held == [holder == 0, holder == 1]


def test_a_refiring_alert_keeps_the_onset_of_its_incident():
    desk = Desk(with_storage())
    slow, waits = alert(STORE, "storage-slow"), alert(CHAT, None, since=10)
    starts = alert(replica(0), "slow-start", since=5)
    desk.step(15, [slow, starts])
    desk.step(60, [slow, starts, waits])
    desk.step(200, [resolved(slow), starts, waits])
    again = replace(alert(STORE, "storage-slow", since=300), fingerprint=slow.fingerprint)
    late = alert(CODE, None, since=100)
    desk.step(420, [again, starts, waits, late])
    assert desk.cause() == (STORE, "storage-slow")
    assert late.fingerprint in desk.only.alerts


def test_a_prefix_cache_drop_during_failed_transfers_joins_their_incident():
    desk = Desk()
    failing = alert(replica(0), "kv-transfer-fail")
    desk.step(15, [failing])
    desk.step(45, [failing, alert(CHAT, "prefix-cache-collapse", since=30)])
    assert desk.cause() == (replica(0), "kv-transfer-fail")


def test_a_lost_exporter_does_not_blame_the_gpu():
    desk = Desk()
    desk.step(30, [alert(node(0), "exporter-down")])
    assert desk.cause() == (node(0), "exporter-down")
    assert whys(desk.only)["gpu-lost"] == "only_the_page_is_gone"
    assert all(hypothesis.fault != "gpu-lost" for hypothesis in desk.only.hypotheses)


def test_look_alikes_not_ruled_out_stay_as_weak_hypotheses():
    desk = Desk()
    desk.step(
        30,
        [alert(gpu(0), "gpu-thermal-throttle"), alert(CODE, None)],
        [finding(gpu(0), "gpu-power-throttle", score=0.5)],
    )
    incident = next(one for one in desk.open if one.suspected_cause)
    assert cause_of(incident) == (gpu(0), "gpu-thermal-throttle")
    assert any(one.fault == "gpu-power-throttle" for one in incident.hypotheses[1:])
    assert "gpu-power-throttle" not in whys(incident)


def test_an_incident_resolves_with_its_last_alert_and_stays_so():
    desk = Desk()
    dead, symptom = alert(replica(0), "engine-dead"), alert(CHAT, None, since=5)
    desk.step(15, [dead, symptom])
    desk.step(30, [resolved(dead), symptom])
    assert desk.cause() == (replica(0), "engine-dead"), "the cause stays the cause while its symptom lasts"
    desk.step(45, [resolved(symptom)])
    assert desk.open == []
    (first,) = desk.incidents.values()
    assert first.resolved_at == at(45)
    desk.step(60, [alert(replica(0), "engine-dead", since=60)])
    assert desk.only.id != first.id
    assert len(desk.incidents) == 2


def test_an_unfinished_incident_stays_open_without_an_alert_and_takes_its_symptoms():
    desk = Desk()
    surge = alert(CHAT, "traffic-surge")
    desk.step(15, [surge])
    incident = desk.only
    shed = frozenset({incident.id})
    desk.step(120, [resolved(surge)], unfinished=shed)
    assert (desk.only.id, desk.cause(), whats(desk.only)[-1]) == (incident.id, (CHAT, "traffic-surge"), "cause_over")
    late = alert(CHAT, None, since=30, rule="ttft-p99-high", priority=Priority.P1)
    desk.step(330, [late], unfinished=shed)
    assert (desk.only.id, desk.only.priority, desk.cause()) == (incident.id, Priority.P1, (CHAT, "traffic-surge"))
    elsewhere = alert(replica(5), "engine-dead", since=340)
    desk.step(345, [late, elsewhere], unfinished=shed)
    assert len(desk.open) == 2, "another fault is another incident"
    desk.step(360, [elsewhere])
    assert incident.id not in {one.id for one in desk.open}


def test_a_missing_alert_counts_as_resolved():
    desk = Desk()
    desk.step(15, [alert(replica(0), "engine-dead")])
    desk.step(30, [])
    assert desk.open == []


def test_a_higher_priority_raises_the_incident():
    desk = Desk()
    dead = alert(replica(0), "engine-dead", priority=Priority.P1)
    desk.step(15, [dead])
    desk.step(30, [dead, alert(CHAT, None, since=20, rule="availability", priority=Priority.P0)])
    assert desk.only.priority is Priority.P0
    (entry,) = (entry for entry in desk.only.timeline if entry.what.endswith("priority_raised"))
    assert entry.arguments == {"old": "P1", "new": "P0"}
    desk.step(45, [dead])
    assert desk.only.priority is Priority.P0, "it is never lowered"


def test_pending_and_statistical_alerts_open_no_incident():
    desk = Desk()
    pending = alert(replica(0), "engine-dead", state=AlertState.PENDING)
    desk.step(15, [pending, alert(CHAT, None, priority=Priority.P3)])
    assert desk.incidents == {}


def test_any_priority_opens_when_a_fault_is_named():
    desk = Desk()
    desk.step(15, [alert(node(0), "exporter-down", priority=Priority.P3)])
    assert desk.only.priority is Priority.P3


def test_a_change_becomes_the_cause_once_two_components_fail_after_it():
    desk = Desk()
    events = [change(CHAT, -300)]
    first = alert(replica(0), "engine-dead")
    desk.step(15, [first], [finding(replica(0), "engine-dead")], events)
    assert desk.cause() == (replica(0), "engine-dead")
    assert any(one.fault == "bad-rollout" for one in desk.only.hypotheses)
    both = [first, alert(replica(2), "engine-dead", since=30)]
    desk.step(45, both, [finding(one.entity, "engine-dead") for one in both], events)
    assert desk.cause() == (CHAT, "bad-rollout")


def test_a_change_alone_yields_to_a_detected_fault():
    desk = Desk()
    events = [change(CHAT, -1200)]
    symptom = alert(CHAT, None)
    desk.step(15, [symptom], events=events)
    assert desk.cause() == (CHAT, "bad-rollout")
    assert desk.only.hypotheses[0].confidence < 0.6
    desk.step(60, [symptom, alert(replica(1), "engine-hung", since=45)], events=events)
    assert desk.cause() == (replica(1), "engine-hung")
    assert len(desk.incidents) == 1


def test_an_old_change_explains_nothing():
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[change(CHAT, -3600)])
    assert desk.only.suspected_cause is None


@pytest.mark.parametrize("entity", [replica(0), CHAT, CLUSTER])
def test_a_fault_missing_from_the_vocabulary_keeps_its_incident(entity):
    gone = "fault-of-an-older-release"
    desk = Desk()
    symptom = alert(CHAT, None)
    desk.step(15, [symptom, alert(replica(0), "engine-hung")])
    held = replace(desk.only, hypotheses=(Hypothesis(entity, gone, 0.7),))
    desk.incidents = {held.id: held}
    named = replace(alert(replica(0), "engine-hung", since=10), fault=gone)
    desk.step(30, [symptom, named], [finding(entity, gone)])
    assert desk.cause() == (entity, gone)
    desk.step(45, [symptom, named, alert(replica(1), "engine-dead", since=40)])
    assert desk.cause() == (replica(1), "engine-dead")
    desk.step(60, [])
    assert desk.open == []


def test_two_faults_of_one_engine_are_one_incident():
    desk = Desk()
    hung = alert(replica(0), "engine-hung")
    desk.step(15, [hung], [finding(replica(0), "engine-hung", score=0.8)])
    both = [finding(replica(0), "engine-hung", score=0.8), finding(replica(0), "engine-core-dead", score=0.95)]
    desk.step(30, [hung, alert(replica(0), "engine-core-dead", since=20)], both)
    assert desk.cause() == (replica(0), "engine-core-dead")
    assert [one.fault for one in desk.only.hypotheses][:2] == ["engine-core-dead", "engine-hung"]


def test_cycles_in_the_topology_terminate():
    edges = edges_of(0, node(0), CHAT)
    desk = Desk(Topology.build([*edges, (CHAT, node(0)), (replica(0), pod(0))]))
    desk.step(15, [alert(replica(0), "engine-dead"), alert(gpu(0), "gpu-lost"), alert(CHAT, None)])
    assert desk.cause() == (gpu(0), "gpu-lost")


def test_missing_topology_links_give_separate_incidents():
    desk = Desk(Topology.build([]))
    desk.step(15, [alert(replica(0), "engine-dead"), alert(gpu(0), "gpu-lost"), alert(CHAT, None)])
    assert len(desk.open) == 3
    assert all(one.services == (("chat",) if one.layer is Layer.BUSINESS else ()) for one in desk.open)


def test_a_gpu_with_an_unknown_pod_reaches_its_node():
    links = [(node(0), gpu(0)), (node(0), pod(0)), (pod(0), replica(0)), (replica(0), CHAT)]
    desk = Desk(Topology.build(links))
    desk.step(15, [alert(replica(0), "engine-dead"), alert(gpu(0), "gpu-lost")])
    assert desk.cause() == (gpu(0), "gpu-lost")


def test_an_acknowledgement_and_its_notifications_survive():
    desk = Desk()
    dead = alert(replica(0), "engine-dead")
    desk.step(15, [dead])
    held = replace(desk.only, acknowledged_by="ann", acknowledged_at=at(20), pages=1)
    desk.incidents[held.id] = held
    desk.step(30, [dead, alert(CHAT, None, since=25)])
    assert desk.only.acknowledged_by == "ann"
    assert desk.only.pages == 1
    assert desk.only.updated_at == at(30)


def test_a_symptom_is_only_recorded_in_its_incident():
    desk = Desk()
    mere = alert(pod(0), None, since=40, rule="pod-not-ready", priority=Priority.P3)
    other = alert(pod(4), None, since=40, rule="pod-not-ready", priority=Priority.P3)
    desk.step(45, [mere, other])
    assert desk.open == []
    lost = alert(node(0), "node-lost")
    desk.step(60, [lost, mere, other])
    assert desk.only.alerts == (lost.fingerprint, mere.fingerprint)
    assert desk.only.priority is lost.priority
    desk.step(75, [mere, other])
    assert desk.open == []


@pytest.mark.parametrize("fault", ["ib-link-down", "node-lost"])
def test_a_port_link_loss_is_recorded_with_its_cause(fault):
    port = ref(EntityKind.PORT, "node-0/mlx5_0/1")
    edges = [(node(0), port), *edges_of(0, node(0), CHAT)]
    desk = Desk(Topology.build(edges, at=at(0)))
    down = alert(port, None, since=20, rule="link-down", priority=Priority.P3)
    cause = alert(node(0), fault)
    desk.step(45, [cause, down])
    assert desk.only.alerts == (cause.fingerprint, down.fingerprint)


def test_the_load_that_follows_a_surge_is_an_incident_of_its_own():
    desk = Desk()
    late = alert(CHAT, None, since=60, rule="ttft-p99-high")
    desk.step(90, [alert(CHAT, "traffic-surge"), late])
    desk.step(600, [late])
    desk.step(620, [late, alert(CHAT, "long-prompt-burst", since=610)])
    assert desk.causes() == {(CHAT, "traffic-surge"), (CHAT, "long-prompt-burst")}


def test_a_queue_with_a_new_fault_keeps_its_incident():
    desk = Desk()
    desk.step(90, [alert(CHAT, "traffic-surge")])
    desk.step(120, [alert(CHAT, "long-prompt-burst", since=60)])
    assert desk.cause() == (CHAT, "long-prompt-burst")


def test_the_gpus_of_a_slow_group_are_hypotheses_too():
    edges = [(node(0), gpu(number)) for number in range(2)]
    edges += [(gpu(number), pod(0)) for number in range(2)] + [(pod(0), replica(0)), (replica(0), CHAT)]
    desk = Desk(Topology.build(edges))
    desk.step(60, [alert(replica(0), "gpu-slow-peer")])
    named = [(one.entity, one.fault) for one in desk.only.hypotheses[:3]]
    assert named == [(part, "gpu-slow-peer") for part in (replica(0), gpu(0), gpu(1))]
    assert desk.only.hypotheses[0].confidence >= 0.6


def test_a_hung_group_may_be_a_collective_timeout():
    edges = [(gpu(number), pod(0)) for number in range(2)] + [(pod(0), replica(0)), (replica(0), CHAT)]
    desk = Desk(Topology.build(edges))
    desk.step(60, [alert(replica(0), "engine-hung")])
    assert [one.fault for one in desk.only.hypotheses] == ["engine-hung", "nccl-timeout"]


def clearing(one, last):
    """An alert whose condition was last true at ``last`` and that waits for its clear time."""
    return replace(one, reason=AlertReason.CONDITION_GONE, seen_at=at(last))


def test_a_resolved_cause_explains_no_new_symptom():
    desk = Desk()
    link = alert(node(0), "ib-link-down")
    desk.step(30, [link])
    lossy = alert(node(0), "network-loss", since=600)
    desk.step(610, [clearing(link, 420), lossy])
    assert desk.causes() == {(node(0), "ib-link-down"), (node(0), "network-loss")}
    desk.step(640, [clearing(link, 420), lossy, alert(CHAT, None, since=630, priority=Priority.P0)])
    loud = next(one for one in desk.open if one.priority is Priority.P0)
    assert cause_of(loud) == (node(0), "network-loss")


@pytest.mark.parametrize("last", [600, 500])
def test_an_ongoing_or_just_resolved_cause_explains_later_symptoms(last):
    desk = Desk()
    link = alert(node(0), "ib-link-down")
    desk.step(30, [link])
    desk.step(610, [clearing(link, last), alert(node(0), "network-loss", since=600)])
    assert desk.cause() == (node(0), "ib-link-down")


def test_a_queue_outlasts_its_cause():
    desk = Desk()
    slow = alert(replica(0), "engine-hung")
    desk.step(30, [slow])
    desk.step(400, [clearing(slow, 200), alert(CHAT, None, since=390)])
    assert desk.cause() == (replica(0), "engine-hung")


def test_load_after_a_surge_outlasts_the_surge():
    desk = Desk()
    surge = alert(CHAT, "traffic-surge")
    desk.step(30, [surge])
    desk.step(610, [clearing(surge, 420), alert(replica(0), "kv-pressure", since=600)])
    assert desk.cause() == (CHAT, "traffic-surge")


def test_a_replica_takes_over_the_fault_of_its_service():
    desk = Desk()
    whole = alert(CHAT, "garbled-output")
    desk.step(60, [whole], [finding(CHAT, "garbled-output", score=0.9)])
    opened = desk.only.id
    part = alert(replica(2), "garbled-output", since=60)
    desk.step(
        180,
        [whole, part],
        [finding(CHAT, "garbled-output", score=0.9), finding(replica(2), "garbled-output", score=0.9)],
    )
    assert desk.only.id == opened
    assert desk.cause() == (replica(2), "garbled-output")


@pytest.mark.parametrize(("score", "named"), [(0.9, "garbled-output"), (0.5, "kpi-drop")])
def test_a_kpi_drop_is_separate_if_output_is_valid(score, named):
    desk = Desk()
    findings = [finding(CHAT, "garbled-output", score=score), finding(CHAT, "kpi-drop", score=0.8, since=60)]
    desk.step(120, [alert(CHAT, "garbled-output"), alert(CHAT, "kpi-drop", since=60)], findings)
    assert desk.cause() == (CHAT, named)


def test_a_clearing_alert_takes_over_no_incident():
    desk = Desk()
    findings = [finding(CHAT, "garbled-output", score=0.5), finding(CHAT, "kpi-drop", score=0.8, since=60)]
    answers, figure = alert(CHAT, "garbled-output"), alert(CHAT, "kpi-drop", since=60)
    desk.step(120, [answers, figure], findings)
    desk.step(400, [clearing(answers, 390), figure], findings[1:])
    assert desk.cause() == (CHAT, "kpi-drop")
    desk.step(415, [answers, figure], [finding(CHAT, "garbled-output", score=0.9), findings[1]])
    assert desk.cause() == (CHAT, "garbled-output")


@pytest.mark.parametrize("clears_first", [True, False])
def test_a_cause_with_one_firing_alert_takes_over_the_incident(clears_first):
    desk = Desk()
    findings = [finding(CHAT, "garbled-output", score=0.5), finding(CHAT, "kpi-drop", score=0.8, since=60)]
    rules = [alert(CHAT, "garbled-output", rule=name) for name in ("a", "b")]
    figure = alert(CHAT, "kpi-drop", since=60)
    desk.step(120, [*rules, figure], findings)
    assert desk.cause() == (CHAT, "kpi-drop")
    surer = [finding(CHAT, "garbled-output", score=0.9), findings[1]]
    if clears_first:
        desk.step(400, [clearing(rules[0], 390), rules[1], figure], surer)
    else:
        desk.step(400, [rules[0], clearing(rules[1], 390), figure], surer)
    assert desk.cause() == (CHAT, "garbled-output")


def test_a_resolved_cause_takes_no_late_symptom():
    desk = Desk()
    lost, felt = alert(node(0), "node-lost"), alert(CHAT, None, since=20)
    desk.step(30, [lost, felt])
    desk.step(600, [felt])
    late = alert(pod(0), None, since=1800, rule="pod-not-ready", priority=Priority.P3)
    desk.step(1830, [felt, late])
    assert desk.cause() == (node(0), "node-lost")
    assert late.fingerprint not in desk.only.alerts
    desk.step(1860, [lost, felt, late])
    assert late.fingerprint in desk.only.alerts, "while it holds it explains what comes after it"
    assert desk.only.updated_at == at(1860)


def test_a_joining_symptom_updates_its_incident():
    desk = Desk()
    lost = alert(node(0), "node-lost")
    desk.step(30, [lost])
    desk.step(90, [lost, alert(pod(0), None, since=40, rule="pod-not-ready", priority=Priority.P3)])
    assert len(desk.only.alerts) == 2
    assert desk.only.updated_at == at(90)
