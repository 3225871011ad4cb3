"""Actions name the objects of the cluster that they change."""

from __future__ import annotations

import pytest

from outrider.model import ActionKind, EntityKind, EntityRef
from outrider.topology import Topology
from remediation.decide.context import DecisionContext
from remediation.decide.guards import CapacityBudget
from remediation.decide.history import History

WORKLOAD = {"workload": "chat-70b", "owner_kind": "Deployment"}


def labeled(fleet, labels):
    fleet.topology = Topology.build(fleet.topology.edges, labels=labels)


def context(fleet):
    """The inputs of a round without incidents and actions."""
    facts, history = fleet.facts_now(), History([])
    return DecisionContext(
        policy=fleet.policy,
        facts=facts,
        topology=fleet.topology,
        history=history,
        budget=CapacityBudget(facts, history, fleet.now, {}),
        plan=fleet.plan,
        playbooks={},
        suspect=frozenset(),
        now=fleet.now,
    )


def watched(replica, adapter, origin):
    """Labels of the target that watches a replica."""
    watcher = EntityRef("c1", EntityKind.WORKLOAD, "targets", f"{adapter}-{replica.name}")
    return {watcher: {"adapter": adapter, "stands_for": replica.key, "origin": origin}}


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


@pytest.mark.parametrize("target", ["replica", "pod"])
def test_an_engine_is_named_by_adapter_and_origin(fleet, target):
    replica = fleet.replicas[0]
    other = watched(fleet.replicas[1], "vllm", "http://10.0.0.2:8000")
    labeled(fleet, {**watched(replica, "vllm", "http://10.0.0.1:8000"), **watched(replica, "probe", ""), **other})
    chosen = replica if target == "replica" else fleet.pods[0]
    expected = {"engines": {"vllm": "http://10.0.0.1:8000", "probe": ""}}
    assert context(fleet).objects(ActionKind.WAKE_ENGINE, chosen) == expected


def test_an_engine_without_a_target_is_still_an_empty_name(fleet):
    assert context(fleet).objects(ActionKind.DRAIN_ENGINE, fleet.replicas[0]) == {"engines": {}}


def test_a_hook_knows_node_device_and_engines(fleet):
    labeled(fleet, watched(fleet.replicas[2], "vllm", "http://10.0.0.3:8000"))
    of_gpu = context(fleet).objects(ActionKind.RESET_GPU, fleet.gpus[2])
    assert of_gpu == {"node": "node-2", "gpus": ["GPU-2"], "endpoints": ["http://10.0.0.3:8000"]}
    assert context(fleet).objects(ActionKind.RUN_DIAGNOSTIC, fleet.nodes[1]) == {"node": "node-1"}
