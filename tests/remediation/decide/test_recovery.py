"""The end of a session: what is cancelled, and what is undone again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.clock import rfc3339
from outrider.model import (
    CAUSE_OVER,
    ActionKind,
    ActionStatus,
    DecisionReason,
    HoldReason,
    Priority,
    StepState,
    TimelineEntry,
)
from outrider.topology import DELETED, Topology
from remediation.decide.history import NOT_PERFORMED, STOPPED, History
from remediation.decide.policy import preview
from remediation.decide.recheck import needs_others, recheck
from remediation.playbooks.files import packaged
from remediation.playbooks.model import Playbook, Step
from tests.remediation.decide.test_recheck import NODES, NOW, intent
from tests.remediation.decide.test_rule_actions import fire


def test_a_replica_that_was_shifted_again_is_restored_again(fleet):
    """Shift, restore, shift again in one session: the first restore does not count for the second shift."""
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    (shift,) = [action for action in fleet.run(2) if action.kind is ActionKind.SHIFT_TRAFFIC]
    for kind, number in ((ActionKind.RESTORE_TRAFFIC, 0), (ActionKind.SHIFT_TRAFFIC, 1)):
        fleet.now += timedelta(minutes=1)
        times = {"decided_at": fleet.now, "started_at": fleet.now, "ended_at": fleet.now}
        done = replace(shift, id=f"{kind}-{number}", kind=kind, status=ActionStatus.DONE, **times)
        fleet.actions[done.id] = done
    fleet.now += timedelta(minutes=1)
    fleet.mend(fleet.replicas[0], resolve=incident)
    made = fleet.run(4)
    assert [(action.kind, action.target) for action in made] == [(ActionKind.RESTORE_TRAFFIC, fleet.replicas[0])]
    assert all(session.closed_at for session in fleet.sessions.values())


@pytest.mark.parametrize(("detail", "cordoned"), [(NOT_PERFORMED, False), (STOPPED, True), ("2 pods left", True)])
def test_a_drain_that_a_guard_stopped_before_it_began_has_cordoned_nothing(detail, cordoned):
    drain = replace(intent(ActionKind.DRAIN, NODES[0]), status=ActionStatus.FAILED, started_at=NOW, detail=detail)
    assert History([drain]).cordoned() == ({NODES[0]} if cordoned else set())


def test_a_diagnostic_that_a_step_requested_is_withdrawn_after_the_recovery(fleet):
    incident = fleet.break_("gpu-slow-peer", fleet.gpus[0])
    fleet.run(2)
    (requested,) = [action for action in fleet.actions.values() if action.kind is ActionKind.RUN_DIAGNOSTIC]
    assert requested.status is ActionStatus.WAITING_APPROVAL
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.run(6)
    assert fleet.actions[requested.id].status is ActionStatus.CANCELLED
    assert all(session.closed_at for session in fleet.sessions.values())


def test_the_preview_of_a_doubtful_cause_is_the_recommendation_that_is_recorded(make_fleet):
    fleet = make_fleet(autonomy="recommend")
    incident = fleet.break_("engine-hung", fleet.replicas[0], confidence=0.3)
    rows = preview(
        fleet.policy, fleet.incidents[incident], list(fleet.alerts.values()), None, (), fleet.topology,
        fleet.facts_now(), fleet.now, packaged(),
    )  # fmt: skip
    recorded = {action.reason for action in fleet.cycle()}
    assert recorded == {DecisionReason.AUTONOMY_RECOMMEND} == {action.reason for action, _ in rows}


# --- replicas that were replaced ----------------------------------------------------------------------


@pytest.fixture
def shifted(make_fleet):
    """The first replica was hung: its traffic is shifted and its pod restarted. The incident is inc-0."""
    fleet = make_fleet()
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.run(4)
    kinds = {action.kind for action in fleet.actions.values() if action.status is ActionStatus.DONE}
    assert {ActionKind.SHIFT_TRAFFIC, ActionKind.RESTART_POD} <= kinds
    return fleet


def restores(actions):
    return [(action.target, action.params.get("service")) for action in actions]


@pytest.mark.parametrize("labelled", [False, True])
def test_the_traffic_of_a_replaced_replica_is_restored(shifted, labelled):
    """A replica of a Deployment has the name of its pod: the old one never becomes healthy again."""
    old, _ = shifted.replace_pod(0, labelled=labelled)
    shifted.mend(old, resolve="inc-0")
    made = shifted.run(8)
    assert {action.kind for action in made} == {ActionKind.RESTORE_TRAFFIC}
    assert restores(made) == [(old, "chat")], "the route is that of the shift"
    assert made[0].params["pods"] == ["chat-0"]
    assert all(session.closed_at for session in shifted.sessions.values())


def test_the_traffic_waits_until_the_replacement_serves(shifted):
    """Its backend may be the one of the old replica: without a ready pod, requests would fail."""
    old, new = shifted.replace_pod(0, ready=False)
    shifted.mend(old, resolve="inc-0")
    assert shifted.run(40) == []
    shifted.mend(new)
    assert restores(shifted.run(2)) == [(old, "chat")]


def test_the_traffic_waits_for_an_ordered_replica_that_is_not_visible_yet(shifted):
    shifted.recommend(8, 8)
    old = shifted.replicas[0]
    shifted.remove_pod(0)
    shifted.mend(old, resolve="inc-0")
    assert shifted.run(40) == []
    shifted.recommend(7, 7)
    assert restores(shifted.run(2)) == [(old, "chat")]


def test_a_pod_that_is_absent_for_a_moment_is_not_replaced(shifted):
    """A StatefulSet creates its pod again under the same name."""
    shifted.run(1)
    whole, old = shifted.topology, shifted.replicas[0]
    shifted.actions = {
        key: replace(action, ended_at=shifted.now) if action.kind is ActionKind.RESTART_POD else action
        for key, action in shifted.actions.items()
    }
    shifted.remove_pod(0)
    shifted.mend(old, resolve="inc-0")
    assert shifted.run(3) == []
    shifted.topology = whole
    assert restores(shifted.run(2)) == [(old, "chat")], "by its health"


def test_a_replica_that_was_broken_before_is_not_waited_for(shifted):
    before = min(action.decided_at for action in shifted.actions.values()) - timedelta(hours=1)
    shifted.sick.add(shifted.replicas[5])
    shifted.facts = replace(shifted.facts, started_at={shifted.replicas[5]: before})
    old, _ = shifted.replace_pod(0)
    shifted.mend(old, resolve="inc-0")
    assert restores(shifted.run(8)) == [(old, "chat")]


def without_pods(fleet, *, labelled=False):
    """The topology with nodes and devices only, and the label of a deleted pod."""
    labels = {fleet.pods[0]: {DELETED: "true"}} if labelled else {}
    return Topology.build(list(zip(fleet.nodes, fleet.gpus, strict=True)), (), labels)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_traffic_of_a_service_that_no_longer_exists_is_restored(shifted, labelled):
    """The control plane deleted its pod, or lists other services without it."""
    old = shifted.replicas[0]
    shifted.topology = without_pods(shifted, labelled=labelled)
    if not labelled:
        shifted.facts = replace(shifted.facts, listed_clusters=frozenset({"c1"}))
    shifted.mend(old, resolve="inc-0")
    assert restores(shifted.run(8)) == [(old, "chat")]
    assert all(session.closed_at for session in shifted.sessions.values())


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize("listed", [(), ("other",)])
def test_a_gap_in_the_topology_returns_no_traffic_to_a_broken_replica(fleet, resolved, listed):
    """A restart while the API server is away: nodes and devices are visible, pods and services are not."""
    incident = fleet.break_("gpu-xid-hardware", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.run(8)
    assert fleet.replicas[0] in History(fleet.actions.values()).shifted()
    fleet.topology = without_pods(fleet)
    fleet.facts = replace(fleet.facts, listed_clusters=frozenset(listed))
    if resolved:
        fleet.mend(fleet.gpus[0], resolve=incident)
    made = fleet.run(40)
    assert [action for action in made if action.kind is ActionKind.RESTORE_TRAFFIC] == []


def test_a_service_with_recent_values_has_not_ended(shifted):
    shifted.topology = without_pods(shifted)
    shifted.facts = replace(
        shifted.facts, listed_clusters=frozenset({"c1"}), recent_services=frozenset({shifted.service})
    )
    shifted.mend(shifted.replicas[0], resolve="inc-0")
    assert shifted.run(8) == []


def test_replicas_that_moved_from_a_broken_node_get_their_traffic_back_before_it_is_repaired(fleet):
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.run(4)
    old, _ = fleet.replace_pod(0, to=1)
    made = [action for action in fleet.run(8) if action.kind is ActionKind.RESTORE_TRAFFIC]
    assert restores(made) == [(old, "chat")]
    assert [session.closed_at for session in fleet.sessions.values()] == [None], "the node stays out"


def test_the_traffic_of_a_shifted_pod_is_restored_once_its_replica_serves(fleet):
    playbook = Playbook("kv-transfer-fail", (Step(ActionKind.SHIFT_TRAFFIC, "pods", undo=ActionKind.RESTORE_TRAFFIC),))
    decided = fleet.decide
    fleet.decide = lambda: decided(playbooks={"kv-transfer-fail": playbook})
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    fleet.run(2)
    fleet.mend(fleet.replicas[0], resolve=incident)
    assert restores(fleet.run(2)) == [(fleet.pods[0], "chat")]


def test_the_undo_of_a_paused_engine_ends_with_its_replacement(fleet):
    alert = fire(fleet, "mine", fleet.replicas[0], "drain_engine")
    (request,) = fleet.cycle()
    fleet.actions[request.id] = replace(request, status=ActionStatus.INTENDED, approved_by="alice")
    fleet.run(2)
    fleet.replace_pod(0, ready=False)
    fleet.mend(alert.entity, resolve="inc-0")
    (undo,) = fleet.run(8)
    assert (undo.kind, undo.params["deleted"]) == (ActionKind.RESUME_ENGINE, True)
    assert all(session.closed_at for session in fleet.sessions.values())


# --- nodes that no longer exist -----------------------------------------------------------------------


def cordon_and_remove(fleet, number, incident):
    """A node breaks, is cordoned, and is deleted, as clouds replace broken nodes."""
    fleet.break_("pcie-degraded", fleet.gpus[number], id_=incident)
    fleet.run(2)
    assert fleet.nodes[number] in {node for session in fleet.sessions.values() for node in session.cordoned}
    fleet.remove_node(number)
    fleet.mend(fleet.gpus[number])


@pytest.mark.parametrize("diagnostic", [False, True])
def test_the_session_of_a_deleted_node_ends(make_fleet, diagnostic):
    fleet = make_fleet(diagnostic=diagnostic)
    cordon_and_remove(fleet, 0, "first")
    fleet.mend(fleet.gpus[0], resolve="first")
    made = fleet.run(4)
    assert [(action.kind, action.target, action.params["deleted"]) for action in made] == [
        (ActionKind.UNCORDON, fleet.nodes[0], True)
    ]
    assert all(session.closed_at for session in fleet.sessions.values())


def test_a_deleted_node_is_not_ours_any_more_while_its_incident_is_open(fleet):
    cordon_and_remove(fleet, 0, "first")
    fleet.sick.add(fleet.gpus[0])
    made = [action for action in fleet.run(8) if action.kind is ActionKind.UNCORDON]
    assert [(action.target, action.reason) for action in made] == [(fleet.nodes[0], DecisionReason.WITHIN_LIMITS)]
    assert {node for session in fleet.sessions.values() for node in session.cordoned} == set()


def test_deleted_nodes_count_for_no_limit(make_fleet):
    """Two replaced nodes would else end the repair of nodes (the default limit is 2)."""
    fleet = make_fleet(10, cooldown=timedelta(0))
    for number in range(2):
        cordon_and_remove(fleet, number, f"inc-{number}")
    fleet.break_("pcie-degraded", fleet.gpus[5], id_="next")
    cordons = [action for action in fleet.decide().actions if action.kind is ActionKind.CORDON]
    assert [(action.target, action.reason) for action in cordons] == [(fleet.nodes[5], DecisionReason.WITHIN_LIMITS)]


def test_a_node_that_the_api_server_still_has_counts_again(make_fleet):
    """Monitoring lost it: its un-cordon is refused, and it is still out of service because of us."""
    fleet = make_fleet(10, max_cordoned_nodes=1)
    cordon_and_remove(fleet, 0, "first")
    fleet.cycle(perform=False)
    (refused,) = fleet.perform(status=ActionStatus.FAILED)
    assert refused.kind is ActionKind.UNCORDON
    fleet.break_("pcie-degraded", fleet.gpus[5], id_="next")
    cordons = [action for action in fleet.decide().actions if action.kind is ActionKind.CORDON]
    assert [action.reason for action in cordons] == [DecisionReason.TOO_MANY_NODES]


@pytest.mark.parametrize("resolved", [False, True])
def test_a_node_that_monitoring_lost_pages_a_person_once(fleet, resolved):
    """It stays cordoned until monitoring reports it, or the API server no longer has it. Its un-cordon is retried."""
    cordon_and_remove(fleet, 0, "first")
    fleet.sick.add(fleet.gpus[0])
    if resolved:
        fleet.mend(fleet.gpus[0], resolve="first")
    fleet.cycle(perform=False)
    fleet.perform(status=ActionStatus.FAILED)
    for _ in range(4 * 60 * 4):
        (step,) = (step for step in fleet.decide().steps if step.kind is ActionKind.UNCORDON)
        assert (step.state, step.page) == (StepState.NODE_NOT_REPORTED, "playbooks.node_not_reported")
        assert (f"return {fleet.nodes[0]}", HoldReason.NODE_NOT_REPORTED) in {
            (hold.subject, hold.reason) for hold in fleet.decide().holds
        }
        fleet.cycle(perform=False)
        fleet.perform(status=ActionStatus.FAILED)
    attempts = [action for action in fleet.actions.values() if action.kind is ActionKind.UNCORDON]
    assert 4 <= len(attempts) <= 9, "every 30 minutes"
    fleet.now += timedelta(minutes=30)
    fleet.cycle()
    assert [step for step in fleet.decide().steps if step.kind is ActionKind.UNCORDON] == [], "it is deleted"


def test_a_node_that_monitoring_lost_counts_at_the_moment_of_acting(make_fleet):
    fleet = make_fleet(10, max_cordoned_nodes=1)
    cordon_and_remove(fleet, 0, "first")
    fleet.cycle(perform=False)
    fleet.perform(status=ActionStatus.FAILED)
    cordon = replace(intent(ActionKind.CORDON, fleet.nodes[5]), decided_at=fleet.now)
    facts, known = replace(fleet.facts_now(), topology=fleet.topology), tuple(fleet.actions.values())
    assert needs_others(cordon)
    assert recheck(cordon, fleet.policy, facts, fleet.now, others=known) is DecisionReason.TOO_MANY_NODES


def test_a_node_whose_deletion_is_not_certain_stays_ours(fleet):
    cordon_and_remove(fleet, 0, "first")
    fleet.mend(fleet.gpus[0], resolve="first")
    uncertain = replace(fleet.facts_now(), deleted_nodes=frozenset(), nodes_cordoned_by_us=frozenset({fleet.nodes[0]}))
    assert fleet.decide(facts=uncertain).actions == ()


def test_an_undo_in_a_cluster_that_is_no_longer_reached_pages_a_person(fleet):
    """The setting of the cluster was changed while a node was cordoned and traffic shifted."""
    incident = fleet.break_("gpu-xid-hardware", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.run(8)
    kinds = (ActionKind.UNCORDON, ActionKind.RESTORE_TRAFFIC)
    reached, fleet.policy = fleet.policy, replace(fleet.policy, clusters=dict.fromkeys(kinds, "c2"))
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.sick.clear()
    made = fleet.run(40)
    assert not [action for action in made if action.kind in kinds], "it would fail each time"
    steps = fleet.decide().steps
    assert {(step.kind, step.state, step.page) for step in steps} == {
        (kind, StepState.HELD_BY_GUARD, "playbooks.undo_unreached") for kind in kinds
    }
    assert {step.objection.reason for step in steps} == {DecisionReason.OTHER_CLUSTER}
    fleet.policy = reached
    assert {action.kind for action in fleet.run(8)} == set(kinds)


def end_cause(fleet, id_):
    """The alerts of the cause resolve; the incident stays open for its symptoms."""
    incident = fleet.incidents[id_]
    cause = incident.suspected_cause
    named = {"fault": cause.fault, "entity": str(cause.entity), "last": rfc3339(fleet.now)}
    entry = TimelineEntry(fleet.now, CAUSE_OVER, named)
    fleet.incidents[id_] = replace(incident, timeline=(*incident.timeline, entry))
    fleet.mend(cause.entity)


def slow(fleet, number):
    """A latency symptom on a replica."""
    replica = fleet.replicas[number]
    fleet.raise_alert("engine-hung", replica, priority=Priority.P3)
    fleet.alerts[replica] = replace(fleet.alerts[replica], rule="replica-slow", fault=None)


def test_a_decaying_symptom_of_an_ended_cause_triggers_no_step(fleet):
    opened = fleet.break_("engine-hung", fleet.replicas[0])
    assert {action.kind for action in fleet.run(3)} >= {ActionKind.SHIFT_TRAFFIC, ActionKind.RESTART_POD}
    end_cause(fleet, opened)
    assert ActionKind.RESTORE_TRAFFIC in {action.kind for action in fleet.run(12)}
    slow(fleet, 0)  # its share of the backlog
    assert fleet.run(12) == []


def test_a_fault_that_remains_after_the_cause_keeps_its_traffic_away(fleet):
    opened = fleet.break_("engine-hung", fleet.replicas[0])
    fleet.run(3)
    end_cause(fleet, opened)
    fleet.raise_alert("engine-dead", fleet.replicas[0])
    assert ActionKind.RESTORE_TRAFFIC not in {action.kind for action in fleet.run(12)}
