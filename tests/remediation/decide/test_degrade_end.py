"""The end of a degrade level without load values: held and paged, at once if the service is gone, or by a person."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, EntityKind, HoldReason, StepState
from outrider.topology import Topology
from remediation.decide import degrade
from remediation.decide.history import History
from remediation.decide.recheck import needs_others, recheck
from remediation.procedures import files
from tests.remediation.decide.test_degrade import CYCLE, Surge, opened


@pytest.fixture
def degraded(fleet):
    """A surge at some level, whose load nobody measures any more."""
    surge = Surge(fleet)
    opened(surge)
    assert surge.run(20, 110.0)[-1] > 0
    fleet.facts = replace(fleet.facts, load={})
    return surge


def decide(surge):
    """One round without new values, performed."""
    fleet = surge.fleet
    decisions = fleet.decide(procedures=surge.procedures)
    for action in decisions.actions:
        fleet.actions[action.id] = action
    for session in decisions.sessions:
        fleet.sessions[session.id] = session
    fleet.perform()
    fleet.now += CYCLE
    return decisions


def restore(surge, person="ann"):
    fleet = surge.fleet
    history = History(fleet.actions.values())
    actions = degrade.restored_by_hand(history, fleet.service, person, fleet.now, dry_run=False)
    fleet.actions |= {action.id: action for action in actions}
    return actions[-1]


def levels_held(decisions):
    return {hold.subject: hold.reason for hold in decisions.holds if hold.reason is HoldReason.LEVEL_UNMEASURED}


@pytest.mark.parametrize("missing", ["absent", "untrusted"])
def test_a_level_without_trusted_values_is_held_with_a_reason_and_a_page(degraded, missing):
    fleet = degraded.fleet
    if missing == "untrusted":
        degraded.cycle(110.0)
        fleet.facts = replace(fleet.facts, untrusted=frozenset({fleet.service}))
    decisions = decide(degraded)
    assert levels_held(decisions) == {f"return {fleet.service}": HoldReason.LEVEL_UNMEASURED}
    (step,) = (step for step in decisions.steps if step.state is StepState.LEVEL_UNMEASURED)
    assert (step.target, step.incident) == (fleet.service, "inc-0")
    assert step.page == degrade.UNMEASURED_TEXT
    assert step.page_after == files.ladder().unmeasured_exit, "a gap of a few cycles pages nobody"


def test_a_measured_level_is_not_held(fleet):
    surge = Surge(fleet)
    opened(surge)
    assert surge.run(20, 110.0)[-1] > 0
    assert not levels_held(decide(surge))


def test_a_service_that_is_gone_returns_to_normal_at_once(degraded):
    fleet = degraded.fleet
    kept = [edge for edge in fleet.topology.edges if fleet.service not in edge and edge[1].kind is EntityKind.GPU]
    fleet.topology = Topology.build(kept)
    decisions = decide(degraded)
    assert not levels_held(decisions)
    (restored,) = decisions.actions
    assert (restored.kind, restored.params["level"]) == (ActionKind.RESTORE_SERVICE, 0)
    fleet.mend(fleet.service, resolve="inc-0")
    decide(degraded)
    assert all(session.closed_at for session in fleet.sessions.values())


def test_an_empty_topology_ends_no_level(degraded):
    """Discovery that sees nothing at all is no proof that the service was deleted."""
    degraded.fleet.topology = Topology.build([])
    decisions = decide(degraded)
    assert not decisions.actions
    assert levels_held(decisions)


def test_a_person_restores_a_service_and_its_incident_degrades_it_no_more(degraded):
    fleet = degraded.fleet
    action = restore(degraded)
    assert (action.params["level"], action.reason) == (0, DecisionReason.RESTORED_BY_HAND)
    assert (action.approved_by, action.status) == ("ann", ActionStatus.INTENDED)
    decide(degraded)
    assert degraded.level() == 0
    degraded.waiting = 4000.0
    assert set(degraded.run(40, 110.0)) == {0}
    fleet.mend(fleet.service, resolve="inc-0")
    degraded.run(2, 60.0)
    assert all(session.closed_at for session in fleet.sessions.values())
    fleet.break_("traffic-surge", fleet.service)
    assert degraded.run(20, 110.0)[-1] > 0, "a later surge is a new incident"


def test_a_restore_by_hand_cancels_the_change_that_waits(degraded):
    fleet = degraded.fleet
    newest = degraded.changes()[-1]
    fleet.actions["deeper"] = replace(newest, id="deeper", status=ActionStatus.WAITING_APPROVAL)
    restore(degraded)
    deeper = fleet.actions["deeper"]
    assert (deeper.status, deeper.reason) == (ActionStatus.CANCELLED, DecisionReason.RESTORED_BY_HAND)


def test_a_restore_by_hand_needs_no_values_but_obeys_a_pause(degraded):
    fleet = degraded.fleet
    action = restore(degraded)
    late, blind = fleet.now + timedelta(hours=1), replace(fleet.facts, blind=True)
    assert recheck(action, fleet.policy, blind, late) is None
    assert recheck(action, fleet.policy, replace(blind, paused=True), late) is DecisionReason.PAUSED
    assert recheck(action, fleet.policy, replace(blind, killed=True), late) is DecisionReason.KILL_SWITCH


def test_a_change_that_was_decided_at_the_same_time_does_not_follow_a_restore_by_hand(degraded):
    fleet = degraded.fleet
    deeper = replace(degraded.changes()[-1], id="deeper", status=ActionStatus.CLAIMED, decided_at=fleet.now)
    higher = replace(deeper, id="higher", kind=ActionKind.RESTORE_SERVICE, reason=DecisionReason.WITHIN_LIMITS)
    action = restore(degraded)
    for late in (deeper, higher):
        assert needs_others(late)
        held = recheck(late, fleet.policy, fleet.facts, fleet.now, others=[action])
        assert held is DecisionReason.RESTORED_BY_HAND
    another = replace(deeper, because="inc-1")
    assert recheck(another, fleet.policy, fleet.facts, fleet.now, others=[action]) is None
    assert recheck(action, fleet.policy, fleet.facts, fleet.now, others=[deeper, action]) is None
