"""A reboot and the reset of a device stop a node: the rules about nodes count them (safety rules 1 and 7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason
from remediation.decide.guards import CapacityBudget, Proposal, judge
from remediation.decide.history import History
from remediation.decide.recheck import recheck
from tests.remediation.conftest import T0
from tests.remediation.decide.test_recheck import intent

STOPS = [ActionKind.REBOOT_NODE, ActionKind.RESET_GPU]


def target_of(fleet, kind, number=0):
    return fleet.gpus[number] if kind is ActionKind.RESET_GPU else fleet.nodes[number]


def facts_of(fleet, **known):
    return replace(fleet.facts_now(), topology=fleet.topology, **known)


def judged(fleet, facts, *targets, earlier=()):
    """The reasons of one action after the other in one round."""
    history = History(earlier)
    budget = CapacityBudget(facts, history, T0, {})
    for kind, target in targets:
        proposal = Proposal("s", "i", kind, target)
        verdict = judge(proposal, fleet.policy, facts, history, budget, T0)
        budget.enter(proposal)
        yield verdict[1]


@pytest.mark.parametrize("kind", STOPS)
def test_the_maximum_of_nodes_counts_a_stopped_node(make_fleet, kind):
    fleet = make_fleet(max_cordoned_nodes=1)
    two = [(kind, target_of(fleet, kind, number)) for number in range(2)]
    given = list(judged(fleet, facts_of(fleet), *two))
    assert given == [DecisionReason.WITHIN_LIMITS, DecisionReason.TOO_MANY_NODES]
    running = replace(intent(*two[0]), decided_at=T0, status=ActionStatus.CLAIMED)
    cordon = (ActionKind.CORDON, fleet.nodes[1])
    assert list(judged(fleet, facts_of(fleet), cordon, earlier=[running])) == [DecisionReason.TOO_MANY_NODES]


@pytest.mark.parametrize("kind", STOPS)
def test_a_node_that_is_out_of_service_already_is_not_counted_twice(make_fleet, kind):
    fleet = make_fleet(max_cordoned_nodes=1)
    facts = replace(facts_of(fleet), nodes_cordoned_by_us=frozenset(fleet.nodes[:1]))
    assert list(judged(fleet, facts, (kind, target_of(fleet, kind)))) == [DecisionReason.WITHIN_LIMITS]
    assert recheck(intent(kind, target_of(fleet, kind)), fleet.policy, facts, T0) is None
    held = recheck(intent(kind, target_of(fleet, kind, 1)), fleet.policy, facts, T0)
    assert held is DecisionReason.TOO_MANY_NODES


@pytest.mark.parametrize("kind", STOPS)
def test_a_node_without_trusted_values_is_not_stopped(fleet, kind):
    facts = facts_of(fleet, untrusted=frozenset(fleet.nodes[:1]))
    target = target_of(fleet, kind)
    assert list(judged(fleet, facts, (kind, target))) == [DecisionReason.VALUES_NOT_TRUSTED]
    assert recheck(intent(kind, target), fleet.policy, facts, T0) is DecisionReason.VALUES_NOT_TRUSTED
    begun = replace(intent(kind, target), detail="the job runs", started_at=T0)
    assert recheck(begun, fleet.policy, facts, T0) is None, "a node that restarts has no values for a while"


def test_a_lost_device_has_no_values_and_may_be_reset(fleet):
    facts = facts_of(fleet, untrusted=frozenset(fleet.gpus[:1]))
    reset = (ActionKind.RESET_GPU, fleet.gpus[0])
    assert list(judged(fleet, facts, reset)) == [DecisionReason.WITHIN_LIMITS]
    assert recheck(intent(*reset), fleet.policy, facts, T0) is None


@pytest.mark.parametrize("kind", STOPS)
def test_a_node_that_others_cordoned_is_not_ours_to_stop(fleet, kind):
    facts = replace(facts_of(fleet), nodes_cordoned_by_others=frozenset(fleet.nodes[:1]))
    assert list(judged(fleet, facts, (kind, target_of(fleet, kind)))) == [DecisionReason.NOT_OURS]
