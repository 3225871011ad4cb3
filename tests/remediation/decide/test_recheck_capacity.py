"""Capacity at the moment of acting: an approval lifts no minimum, and other actions may have taken replicas since."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityKind, GuardAnswer, Verdict
from outrider.topology import EVICTION_BLOCKED_BY
from remediation.decide.recheck import recheck
from remediation.playbooks.files import packaged
from tests.remediation.conftest import SERVICE, T0
from tests.remediation.decide.test_recheck import intent

TAKING = [ActionKind.SHIFT_TRAFFIC, ActionKind.RESTART_POD, ActionKind.SLEEP_ENGINE, ActionKind.DRAIN_ENGINE]


def facts_of(fleet, serving, *, needed=1):
    """The fleet while only its first replicas serve."""
    able = frozenset(fleet.replicas[:serving])
    return replace(
        fleet.facts_now(), topology=fleet.topology, serving=able, healthy=able | frozenset(fleet.nodes),
        ready_replicas={SERVICE: serving}, needed_replicas={SERVICE: needed}, carrying_replicas={SERVICE: needed},
    )  # fmt: skip


def approved(kind, target, *objections, **params) -> Action:
    """An action that a person approved, begun now."""
    given = tuple(GuardAnswer("headroom", Verdict.ASK, reason) for reason in objections)
    action = intent(kind, target, **params)
    return replace(action, decided_at=T0, started_at=T0, approved_by="ann", objections=given)


@pytest.mark.parametrize("kind", TAKING)
def test_an_approved_action_does_not_take_the_last_replica(fleet, kind):
    action = approved(kind, fleet.replicas[0])
    assert recheck(action, fleet.policy, facts_of(fleet, 4), T0) is None
    assert recheck(action, fleet.policy, facts_of(fleet, 1), T0) is DecisionReason.SERVICE_MINIMUM


@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.REBOOT_NODE])
def test_the_replicas_on_a_node_count(fleet, kind):
    assert recheck(approved(kind, fleet.nodes[0]), fleet.policy, facts_of(fleet, 4), T0) is None
    held = recheck(approved(kind, fleet.nodes[0]), fleet.policy, facts_of(fleet, 1), T0)
    assert held is DecisionReason.SERVICE_MINIMUM
    assert recheck(approved(kind, fleet.nodes[5]), fleet.policy, facts_of(fleet, 1), T0) is None, "nothing serves there"


def test_replicas_that_another_action_took_since_are_not_left(fleet):
    action = approved(ActionKind.RESTART_POD, fleet.pods[0])
    facts = facts_of(fleet, 2)
    shifted = replace(approved(ActionKind.SHIFT_TRAFFIC, fleet.replicas[1]), id="b", status=ActionStatus.DONE)
    assert recheck(action, fleet.policy, facts, T0, others=[action]) is None
    assert recheck(action, fleet.policy, facts, T0, others=[action, shifted]) is DecisionReason.SERVICE_MINIMUM
    own = replace(shifted, target=fleet.replicas[0])
    assert recheck(action, fleet.policy, facts_of(fleet, 1), T0, others=[own]) is None, "its load is diverted already"


def test_of_two_actions_at_once_the_first_one_goes_on(fleet):
    first = approved(ActionKind.RESTART_POD, fleet.pods[0])
    second = replace(approved(ActionKind.RESTART_POD, fleet.pods[1]), id="b")
    facts, both = facts_of(fleet, 2), [first, second]
    assert recheck(first, fleet.policy, facts, T0, others=both) is None
    assert recheck(second, fleet.policy, facts, T0, others=both) is DecisionReason.SERVICE_MINIMUM


def test_only_an_approval_that_knew_of_missing_headroom_covers_it(fleet):
    facts = facts_of(fleet, 4, needed=4)
    unaware = approved(ActionKind.RESTART_POD, fleet.pods[0])
    aware = approved(ActionKind.RESTART_POD, fleet.pods[0], DecisionReason.NO_HEADROOM)
    assert recheck(unaware, fleet.policy, facts, T0) is DecisionReason.NO_HEADROOM
    assert recheck(aware, fleet.policy, facts, T0) is None
    assert recheck(replace(aware, approved_by=None), fleet.policy, facts, T0) is DecisionReason.NO_HEADROOM


def test_a_replica_that_the_fault_stopped_may_be_restarted_while_it_is_the_only_one(fleet):
    fleet.break_("engine-hung", fleet.replicas[0], id_="i")
    facts = replace(facts_of(fleet, 1), healthy=frozenset(), incidents=fleet.incidents)
    restart = approved(ActionKind.RESTART_POD, fleet.pods[0], fault="engine-hung")
    assert recheck(restart, fleet.policy, facts, T0, playbooks=packaged()) is None
    slow = approved(ActionKind.RESTART_POD, fleet.pods[0], fault="gpu-memory-leak")
    held = recheck(slow, fleet.policy, facts, T0, playbooks=packaged())
    assert held is DecisionReason.SERVICE_MINIMUM, "its playbook says that it still serves"


@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.RESTART_POD])
def test_a_disruption_budget_holds_what_has_not_begun(fleet, kind):
    labels = {pod: {EVICTION_BLOCKED_BY: "llm/chat"} for pod in fleet.pods}
    facts = replace(facts_of(fleet, 8), topology=replace(fleet.topology, labels=labels))
    target = fleet.nodes[0] if kind is ActionKind.DRAIN else fleet.pods[0]
    assert target.kind in (EntityKind.NODE, EntityKind.POD)
    action = approved(kind, target)
    assert recheck(action, fleet.policy, facts, T0) is DecisionReason.DISRUPTION_BUDGET
    begun = replace(action, detail="1 pod is evicted")
    assert recheck(begun, fleet.policy, facts, T0 + timedelta(minutes=1)) is None


def test_a_begun_drain_keeps_to_the_minimum(fleet):
    begun = replace(approved(ActionKind.DRAIN, fleet.nodes[0]), detail="1 pod is evicted")
    assert recheck(begun, fleet.policy, facts_of(fleet, 4, needed=4), T0) is None
    assert recheck(begun, fleet.policy, facts_of(fleet, 1), T0) is DecisionReason.SERVICE_MINIMUM


def test_a_service_keeps_its_own_minimum(fleet):
    action = approved(ActionKind.RESTART_POD, fleet.pods[0])
    policy = replace(fleet.policy, service_minimums={"chat": 4})
    assert recheck(action, policy, facts_of(fleet, 4), T0) is DecisionReason.SERVICE_MINIMUM
    assert recheck(action, policy, facts_of(fleet, 5), T0) is None
