"""PodDisruptionBudgets in the decision: evictions that the API server would refuse are not attempted."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, EntityKind, EntityRef, HoldReason, StepState
from outrider.topology import EVICTION_BLOCKED_BY, NOT_READY, Topology
from remediation.decide.disruption import blocking_budgets


def label(fleet, pod, **labels):
    """Sets labels of a pod, as the Kubernetes source does."""
    known = {**fleet.topology.labels, pod: labels}
    fleet.topology = Topology.build(fleet.topology.edges, labels=known)


@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.RESTART_POD])
def test_the_budgets_of_evicted_pods_are_named(fleet, kind):
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat,llm/all"})
    target = fleet.nodes[0] if kind is ActionKind.DRAIN else fleet.pods[0]
    assert blocking_budgets(kind, target, fleet.topology) == ("llm/all", "llm/chat")
    assert blocking_budgets(kind, fleet.nodes[1], fleet.topology) == ()


@pytest.mark.parametrize(
    "kind", [kind for kind in ActionKind if kind not in (ActionKind.DRAIN, ActionKind.RESTART_POD)]
)
def test_other_kinds_evict_nothing(fleet, kind):
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat"})
    for target in (fleet.nodes[0], fleet.pods[0], fleet.replicas[0], fleet.service):
        assert blocking_budgets(kind, target, fleet.topology) == ()


def test_a_pod_that_is_not_ready_can_be_restarted_but_not_drained(fleet):
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat", NOT_READY: "true"})
    assert blocking_budgets(ActionKind.RESTART_POD, fleet.replicas[0], fleet.topology) == ()
    assert blocking_budgets(ActionKind.DRAIN, fleet.nodes[0], fleet.topology) == ("llm/chat",)


def test_a_blocked_drain_is_refused_with_the_name_and_done_once_the_budget_allows_it(make_fleet, words):
    fleet = make_fleet()
    fleet.facts = replace(fleet.facts, needed_replicas={fleet.service: 2})
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat"})
    fleet.break_("gpu-lost", fleet.gpus[0])
    made = fleet.run(4)
    blocked = [action for action in made if action.reason is DecisionReason.DISRUPTION_BUDGET]
    assert {action.detail for action in blocked} == {"llm/chat"}
    assert ActionKind.DRAIN not in {action.kind for action in made if action not in blocked}
    label(fleet, fleet.pods[0])
    later = fleet.run(6)
    assert not [action for action in later if action.reason is DecisionReason.DISRUPTION_BUDGET]
    assert later


def test_a_drain_that_a_budget_forbids_adds_a_replica_first(fleet, words):
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat", NOT_READY: "true"})
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_pods=frozenset(fleet.pods))  # the check of the restart holds
    made = words(fleet.run(6))
    assert made[-2:] == [
        ("scale", "chat", "allowed", "within_limits"), ("drain", "node-0", "refused", "disruption_budget"),
    ]  # fmt: skip
    scale = next(action for action in fleet.actions.values() if action.kind is ActionKind.SCALE)
    assert scale.params["replicas"] == 9
    assert fleet.run(4) == [], "one replica is ordered once, and the drain waits for it"
    label(fleet, fleet.pods[0])
    assert words(fleet.cycle()) == [("drain", "node-0", "ask", "needs_approval")]


def test_a_restart_that_a_budget_forbids_adds_nothing(fleet, words):
    label(fleet, fleet.pods[0], **{EVICTION_BLOCKED_BY: "llm/chat"})
    fleet.break_("gpu-xid-application", fleet.pods[0])
    assert words(fleet.run(6)) == [("restart_pod", "chat-0", "refused", "disruption_budget")]


def drained_but_for(fleet, **labels):
    """Breaks a GPU and repairs it up to the drain. Its node also runs the only pod of another service."""
    router = EntityRef("c1", EntityKind.POD, "web", "router")
    fleet.topology = Topology.build((*fleet.topology.edges, (fleet.nodes[0], router)), labels=fleet.topology.labels)
    label(fleet, router, **labels)
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_pods=frozenset(fleet.pods))  # the check of the restart holds
    return router


def test_the_budget_of_another_service_orders_no_replica(fleet, words):
    drained_but_for(fleet, **{EVICTION_BLOCKED_BY: "web/router"})
    made = words(fleet.run(6))
    assert made[-1] == ("drain", "node-0", "refused", "disruption_budget")
    assert ActionKind.SCALE not in {action.kind for action in fleet.actions.values()}


def test_a_budget_that_never_yields_is_named_and_pages_after_the_time_of_the_drain(fleet, words):
    router = drained_but_for(fleet, **{EVICTION_BLOCKED_BY: "web/router"})
    fleet.run(6)
    held = fleet.decide()
    assert (held.holds[0].reason, held.holds[0].objection.detail) == (HoldReason.HELD_BY_GUARD, "web/router")
    assert StepState.FAILED not in {step.state for step in held.steps}
    fleet.now += timedelta(minutes=20)
    failed = fleet.decide()
    (drain,) = [step for step in failed.steps if step.kind is ActionKind.DRAIN]
    assert (drain.state, drain.objection.detail) == (StepState.FAILED, "web/router")
    assert drain.page == "playbooks.step_held"
    assert failed.holds[0].reason is HoldReason.STEP_FAILED
    label(fleet, router)
    assert [(action.kind, action.status) for action in fleet.cycle()] == [
        (ActionKind.DRAIN, ActionStatus.WAITING_APPROVAL)
    ]
