"""Actions name the objects of the cluster that they change."""

from __future__ import annotations

from outrider.model import ActionKind
from outrider.topology import Topology

WORKLOAD = {"workload": "chat-70b", "owner_kind": "Deployment"}


def labeled(fleet, labels):
    fleet.topology = Topology.build(fleet.topology.edges, labels=labels)


def of_kind(actions, kind):
    return next(action for action in actions if action.kind is kind)


def test_a_rollback_names_the_workloads_of_its_service(fleet):
    other = {"workload": "chat-canary", "owner_kind": "StatefulSet"}
    labeled(fleet, {fleet.replicas[0]: WORKLOAD, fleet.replicas[1]: WORKLOAD, fleet.replicas[2]: other})
    fleet.break_("bad-rollout", fleet.service)
    action = of_kind(fleet.run(2), ActionKind.ROLLBACK)
    assert action.params["workloads"] == ["Deployment/chat-70b", "StatefulSet/chat-canary"]


def test_a_restart_names_the_uid_of_its_pod(fleet):
    labeled(fleet, {fleet.pods[0]: {"uid": "3f6c"}})
    fleet.break_("gpu-oom", fleet.replicas[0])
    assert of_kind(fleet.run(2), ActionKind.RESTART_POD).params["uid"] == "3f6c"


def test_the_scaling_of_a_plan_names_the_workload(fleet):
    labeled(fleet, {fleet.replicas[0]: WORKLOAD})
    fleet.recommend(8, 10)
    assert of_kind(fleet.cycle(), ActionKind.SCALE).params["workloads"] == ["Deployment/chat-70b"]


def test_unknown_objects_are_not_named(fleet):
    fleet.break_("bad-rollout", fleet.service)
    assert "workloads" not in of_kind(fleet.run(2), ActionKind.ROLLBACK).params


def test_a_shift_and_its_undo_name_the_service_and_the_pods(fleet):
    incident = fleet.break_("gpu-slow-peer", fleet.gpus[0])
    shift = of_kind(fleet.run(10), ActionKind.SHIFT_TRAFFIC)
    assert (shift.target, shift.params["service"], shift.params["pods"]) == (fleet.replicas[0], "chat", ["chat-0"])
    fleet.mend(fleet.gpus[0], resolve=incident)
    restore = of_kind(fleet.run(3), ActionKind.RESTORE_TRAFFIC)
    assert (restore.params["service"], restore.params["pods"]) == ("chat", ["chat-0"])
