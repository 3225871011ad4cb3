"""Requests for approval: two people, expiry, and requests by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, Verdict
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from store.state import state_rows


@pytest.fixture
def waiting(make_fleet):
    """A fleet with one request for approval."""
    fleet = make_fleet(autonomy="approve")
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (request,) = fleet.cycle()
    return fleet, request


def test_a_request_expires_once_and_is_not_repeated(waiting):
    fleet, request = waiting
    fleet.now = request.decided_at + fleet.policy.approval_expires - timedelta(seconds=1)
    assert fleet.decide().actions == ()
    fleet.now += timedelta(seconds=1)
    (expired,) = fleet.decide().actions
    assert (expired.id, expired.status, expired.decision) == (request.id, ActionStatus.REFUSED, Verdict.REFUSED)
    assert (expired.reason, expired.ended_at) == (DecisionReason.EXPIRED, fleet.now)
    fleet.actions[expired.id] = expired
    assert fleet.run(200) == []


def test_a_recommendation_expires_too(make_fleet):
    fleet = make_fleet(autonomy="recommend", approval_expires=timedelta(minutes=5))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.cycle()
    fleet.now += timedelta(minutes=5)
    assert [(a.status, a.reason) for a in fleet.decide().actions] == [(ActionStatus.REFUSED, DecisionReason.EXPIRED)]


def test_after_an_expiry_an_allowed_action_is_performed(waiting):
    fleet, request = waiting
    fleet.actions[request.id] = replace(request, status=ActionStatus.REFUSED, reason=DecisionReason.EXPIRED)
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(Autonomy.ACT))
    assert [action.status for action in fleet.cycle()] == [ActionStatus.INTENDED]


def test_a_changed_proposal_is_requested_again_after_an_expiry(make_fleet):
    fleet = make_fleet(autonomy="approve")
    fleet.recommend(8, 10)
    (request,) = fleet.cycle()
    fleet.now += fleet.policy.approval_expires
    (expired,) = fleet.decide().actions
    fleet.actions[expired.id] = expired
    assert fleet.cycle() == ()
    fleet.recommend(8, 12)
    (again,) = fleet.cycle()
    assert (again.status, again.params["replicas"]) == (ActionStatus.WAITING_APPROVAL, 12)
    assert again.id != request.id


def test_kinds_of_two_people_need_two_approvals_at_every_level(fleet):
    fleet.policy = replace(fleet.policy, two_person=frozenset({ActionKind.CORDON}))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (request,) = fleet.cycle()
    assert (request.status, request.reason) == (ActionStatus.WAITING_APPROVAL, DecisionReason.NEEDS_APPROVAL)
    assert request.approvals_needed == 2
    first = state_rows.decided(request, "Ann", fleet.now, approve=True)
    assert (first.status, first.reason) == (ActionStatus.WAITING_APPROVAL, DecisionReason.NEEDS_SECOND_APPROVAL)
    fleet.actions[request.id] = first
    assert fleet.run(5) == [], "one approval changes nothing"
    assert state_rows.decided(first, "ann", fleet.now, approve=True) == first, "the same person counts once"
    second = state_rows.decided(first, "bo", fleet.now, approve=True)
    assert (second.status, second.approvals, second.approved_by) == (ActionStatus.INTENDED, ("Ann", "bo"), "Ann, bo")
    assert (first.approved_at, second.approved_at) == (None, fleet.now)


def test_one_of_two_may_still_reject(fleet):
    fleet.policy = replace(fleet.policy, two_person=frozenset({ActionKind.CORDON}))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (request,) = fleet.cycle()
    first = state_rows.decided(request, "ann", fleet.now, approve=True)
    rejected = state_rows.decided(first, "ann", fleet.now, approve=False)
    assert (rejected.status, rejected.reason) == (ActionStatus.REFUSED, DecisionReason.REJECTED_BY_HAND)


def test_an_undo_needs_no_approval(fleet, words):
    fleet.policy = replace(fleet.policy, two_person=frozenset({ActionKind.UNCORDON}))
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    (undo,) = fleet.cycle()
    assert (undo.kind, undo.decision, undo.approvals_needed) == (ActionKind.UNCORDON, Verdict.ALLOWED, 1)


def test_who_requests_by_hand_is_none_of_the_two(make_fleet):
    fleet = make_fleet(autonomy="recommend", two_person=frozenset({ActionKind.CORDON}))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (proposed,) = fleet.cycle()
    request = state_rows.requested(proposed, None, "ann", fleet.now)
    assert request is not None
    assert (request.status, request.requested_by) == (ActionStatus.WAITING_APPROVAL, "ann")
    fleet.actions[request.id] = request
    assert fleet.run(5) == [], "the level does not withdraw what a person requested"
    assert state_rows.decided(request, "ANN", fleet.now, approve=True) == request
    first = state_rows.decided(request, "bo", fleet.now, approve=True)
    assert first.status is ActionStatus.WAITING_APPROVAL
    assert state_rows.decided(first, "cy", fleet.now, approve=True).status is ActionStatus.INTENDED


def test_who_requests_by_hand_may_approve_where_one_suffices(make_fleet):
    fleet = make_fleet(autonomy="recommend")
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (proposed,) = fleet.cycle()
    request = state_rows.requested(proposed, None, "ann", fleet.now)
    assert request is not None
    assert state_rows.decided(request, "ann", fleet.now, approve=True).status is ActionStatus.INTENDED


@pytest.mark.parametrize("status", [s for s in ActionStatus if s is not ActionStatus.PROPOSED])
def test_only_a_recommendation_or_an_expired_request_can_be_requested(waiting, status):
    fleet, request = waiting
    assert state_rows.requested(replace(request, status=status), None, "ann", fleet.now) is None
    expired = replace(request, status=ActionStatus.REFUSED, reason=DecisionReason.EXPIRED)
    assert state_rows.requested(expired, None, "ann", fleet.now) is not None


def test_the_name_of_an_objection_is_not_taken_for_a_begun_attempt(waiting):
    """The detail of an approved action would otherwise let it begin outside its maintenance window."""
    _, request = waiting
    waits = replace(request, detail="cluster-autoscaler.kubernetes.io/safe-to-evict=false of chat-0")
    approved = state_rows.decided(waits, "ann", request.decided_at, approve=True)
    assert (approved.status, approved.detail, approved.objections) == (ActionStatus.INTENDED, "", request.objections)
