"""Return of a node after a hardware fault: only a passed diagnostic puts it back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, HoldReason, StepState
from remediation.decide.history import NOT_DONE, NOT_PERFORMED, STOPPED


@pytest.fixture
def repaired(make_fleet):
    """A node that is cordoned for a hardware fault and healthy by values again."""
    fleet = make_fleet(diagnostic=True)
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    return fleet


def held(fleet):
    return {hold.subject: hold.reason for hold in fleet.decide().holds}


def finish(fleet, status, detail=""):
    """Ends the diagnostic that has begun."""
    (run,) = (action for action in fleet.actions.values() if action.status is ActionStatus.CLAIMED)
    fleet.actions[run.id] = replace(run, status=status, ended_at=fleet.now, detail=detail)


def begin(fleet):
    """Decides about the diagnostic and begins it."""
    made = fleet.cycle(perform=False)
    (run,) = (action for action in made if action.kind is ActionKind.RUN_DIAGNOSTIC)
    fleet.actions[run.id] = replace(run, status=ActionStatus.CLAIMED, started_at=fleet.now)
    return run


def test_a_passed_diagnostic_returns_the_node(repaired, words):
    run = begin(repaired)
    assert run.reason is DecisionReason.RECOVERED
    assert repaired.cycle() == ()
    assert held(repaired)[f"return {repaired.nodes[0]}"] is HoldReason.DIAGNOSTIC_RUNNING
    finish(repaired, ActionStatus.DONE)
    assert words(repaired.cycle()) == [("uncordon", "node-0", "allowed", "recovered")]
    repaired.cycle()
    assert all(session.closed_at for session in repaired.sessions.values())


def test_a_failed_diagnostic_keeps_the_node_out_and_pages(repaired):
    begin(repaired)
    finish(repaired, ActionStatus.FAILED)
    decided = repaired.decide()
    assert decided.actions == ()
    assert [(step.state, step.page) for step in decided.steps] == [
        (StepState.DIAGNOSTIC_FAILED, "playbooks.diagnostic_failed")
    ]
    assert held(repaired)[f"return {repaired.nodes[0]}"] is HoldReason.DIAGNOSTIC_FAILED
    assert repaired.run(100) == [], "no second try, however long"
    assert all(session.closed_at is None for session in repaired.sessions.values())


def test_a_diagnostic_that_never_ends_pages_and_the_node_stays_out(repaired):
    begin(repaired)
    repaired.now += timedelta(minutes=31)
    decided = repaired.decide()
    assert [step.page for step in decided.steps] == ["playbooks.diagnostic_endless"]
    assert decided.actions == ()


def test_a_diagnostic_that_exceeds_its_limit_is_not_a_failed_one(repaired):
    begin(repaired)
    finish(repaired, ActionStatus.FAILED, f"{NOT_DONE} 20 min: the Job runs on node-0")
    decided = repaired.decide()
    assert [step.page for step in decided.steps] == ["playbooks.diagnostic_endless"]
    assert decided.actions == ()


@pytest.mark.parametrize("stopped", [NOT_PERFORMED, STOPPED])
def test_a_diagnostic_that_a_guard_stopped_is_repeated(repaired, words, stopped):
    """Monitoring was blind for a moment: the test may have passed, and nobody is paged about the node."""
    begin(repaired)
    finish(repaired, ActionStatus.FAILED, f"{stopped}: monitor_blind")
    blind = replace(repaired.facts_now(), blind=True)
    assert words(repaired.decide(facts=blind).actions) == [("run_diagnostic", "node-0", "refused", "monitor_blind")]
    assert [step.page for step in repaired.decide().steps] == [""]
    begin(repaired)
    finish(repaired, ActionStatus.DONE)
    assert words(repaired.cycle()) == [("uncordon", "node-0", "allowed", "recovered")]
    repaired.cycle()
    assert all(session.closed_at for session in repaired.sessions.values())


def test_a_node_that_an_operator_returned_needs_no_diagnostic(repaired, words):
    begin(repaired)
    repaired.now += timedelta(minutes=3)
    repaired.facts = replace(repaired.facts, schedulable=frozenset({repaired.nodes[0]}))
    assert words(repaired.cycle()) == [("uncordon", "node-0", "allowed", "recovered")]
    repaired.cycle()
    assert held(repaired) == {}


def test_a_diagnostic_not_yet_begun_is_cancelled_when_an_operator_returns_the_node(repaired):
    repaired.cycle(perform=False)
    repaired.now += timedelta(minutes=3)
    repaired.facts = replace(repaired.facts, schedulable=frozenset({repaired.nodes[0]}))
    made = repaired.cycle(perform=False)
    assert {(action.kind, action.status) for action in made} == {
        (ActionKind.RUN_DIAGNOSTIC, ActionStatus.CANCELLED),
        (ActionKind.UNCORDON, ActionStatus.INTENDED),
    }
    assert DecisionReason.DIAGNOSTIC_NOT_NEEDED in {action.reason for action in made}


def test_a_second_fault_makes_the_diagnostic_void(repaired, words):
    begin(repaired)
    second = repaired.break_("gpu-thermal-throttle", repaired.gpus[0], id_="second")
    finish(repaired, ActionStatus.DONE)
    made = repaired.cycle()
    assert not [action for action in made if action.kind is ActionKind.UNCORDON]
    repaired.run(3)
    repaired.mend(repaired.gpus[0], resolve=second)
    repaired.now += timedelta(minutes=5)
    again = [action for action in repaired.cycle(perform=False) if action.kind is ActionKind.RUN_DIAGNOSTIC]
    assert {action.target for action in again} == {repaired.nodes[0]}


def test_a_pause_holds_the_diagnostic(repaired):
    repaired.facts = replace(repaired.facts, paused=True)
    assert [(a.kind, a.reason) for a in repaired.cycle()] == [(ActionKind.RUN_DIAGNOSTIC, DecisionReason.PAUSED)]


def test_another_fault_than_of_the_hardware_needs_no_diagnostic(make_fleet, words):
    fleet = make_fleet(diagnostic=True)
    incident = fleet.break_("disk-full", fleet.nodes[0])
    fleet.run(2)
    fleet.mend(fleet.nodes[0], resolve=incident)
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered")]


def test_without_a_diagnostic_the_values_decide_and_the_reason_says_so(make_fleet, words):
    fleet = make_fleet()
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered_by_values")]
