"""The breaker: opens in absolute numbers and as a share, stays open until a person resets it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    BreakerState,
    DecisionReason,
    RemediationSession,
    Verdict,
)
from remediation.decide.history import NOT_PERFORMED, STOPPED
from remediation.decide.limits import BreakerLimits
from remediation.decide.recheck import recheck


def fail(fleet, count, *, first=0):
    """Broken replicas whose restarts fail."""
    for number in range(first, first + count):
        fleet.break_("engine-hung", fleet.replicas[number], id_=f"inc-{number}")
    for _ in range(2):  # the traffic is shifted, then the pod is restarted
        for action in fleet.cycle(perform=False):
            status = ActionStatus.FAILED if action.kind is ActionKind.RESTART_POD else ActionStatus.DONE
            if action.status is ActionStatus.INTENDED:
                fleet.actions[action.id] = replace(action, status=status, started_at=fleet.now, ended_at=fleet.now)


@pytest.fixture
def patient(make_fleet):
    """A fleet whose breaker opens at the third failure, if that is more than a quarter of the actions."""
    return make_fleet(breaker=BreakerLimits(max_unsuccessful=2, max_unsuccessful_ratio=0.25), max_actions_per_hour=100)


def test_it_opens_above_both_limits_and_reports_the_numbers(patient):
    fail(patient, 2)
    assert patient.decide().breaker is None
    fail(patient, 1, first=2)
    opened = patient.decide().breaker
    assert opened is not None
    assert (opened.opened_at, opened.unsuccessful, opened.performed) == (patient.now, 3, 6)


def test_it_stays_closed_while_most_actions_help(patient):
    patient.policy = replace(patient.policy, breaker=replace(patient.policy.breaker, max_unsuccessful_ratio=0.5))
    fail(patient, 3)
    assert patient.decide().breaker is None, "3 of 6 is not more than half"


def test_old_failures_and_dry_runs_do_not_count(patient):
    fail(patient, 3)
    real = dict(patient.actions)
    patient.actions = {id_: replace(action, dry_run=True) for id_, action in real.items()}
    assert patient.decide().breaker is None
    patient.actions = real
    patient.now += patient.policy.breaker.window
    assert patient.decide().breaker is None


@pytest.mark.parametrize("stopped", [NOT_PERFORMED, STOPPED])
def test_an_action_that_a_guard_stopped_is_no_failure(patient, stopped):
    fail(patient, 3)
    patient.actions = {
        id_: replace(action, detail=f"{stopped}: freeze" if action.status is ActionStatus.FAILED else "")
        for id_, action in patient.actions.items()
    }
    assert patient.decide().breaker is None


def test_a_diagnostic_that_finds_a_fault_is_no_failure(patient):
    fail(patient, 3)
    assert patient.decide().breaker is not None
    patient.actions = {id_: replace(action, kind=ActionKind.RUN_DIAGNOSTIC) for id_, action in patient.actions.items()}
    assert patient.decide().breaker is None


def test_repairs_that_did_not_help_count_after_a_while(patient):
    for number in range(3):
        patient.break_("engine-hung", patient.replicas[number])
    patient.run(2)
    assert {a.status for a in patient.actions.values()} == {ActionStatus.DONE}
    assert patient.decide().breaker is None
    patient.now += patient.policy.breaker.recovers_within
    opened = patient.decide().breaker
    assert opened is not None
    assert opened.unsuccessful == 3, "the restarts; shifting traffic away is not meant to end the fault"


def test_repairs_that_helped_do_not_count(patient):
    incidents = [patient.break_("engine-hung", patient.replicas[number]) for number in range(3)]
    patient.run(2)
    for number, incident in enumerate(incidents):
        patient.mend(patient.replicas[number], resolve=incident)
    patient.now += patient.policy.breaker.recovers_within
    assert patient.decide().breaker is None


def test_isolated_hardware_that_waits_for_a_technician_does_not_open_it(patient):
    for number in range(2):
        patient.break_("gpu-lost", patient.gpus[number])
    patient.run(4)
    patient.now += timedelta(minutes=30)
    assert patient.decide().breaker is None


def test_a_long_surge_does_not_open_it(patient):
    patient.policy = replace(patient.policy, breaker=BreakerLimits(max_unsuccessful=0, max_unsuccessful_ratio=0.0))
    patient.break_("traffic-surge", patient.service)
    (scale,) = patient.cycle()
    assert scale.kind is ActionKind.SCALE
    patient.now += timedelta(minutes=30)
    assert patient.decide().breaker is None


def test_while_it_is_open_every_step_is_refused_from_the_same_cycle_on(patient, words):
    fail(patient, 3)
    patient.break_("pcie-degraded", patient.gpus[5])
    made = patient.cycle()
    assert ("cordon", "node-5", "refused", "breaker_open") in words(made)
    assert not any(action.status is ActionStatus.INTENDED for action in made)


def test_it_never_blocks_an_uncordon(patient, words):
    incident = patient.break_("pcie-degraded", patient.gpus[5])
    patient.run(2)
    patient.facts = replace(patient.facts, breaker=BreakerState(opened_at=patient.now, unsuccessful=9, performed=9))
    patient.mend(patient.gpus[5], resolve=incident)
    assert words(patient.cycle(perform=False)) == [("uncordon", "node-5", "allowed", "recovered_by_values")]
    (undo,) = [action for action in patient.actions.values() if action.kind is ActionKind.UNCORDON]
    assert recheck(undo, patient.policy, patient.facts_now(), patient.now) is None
    cordon = replace(undo, kind=ActionKind.CORDON)
    assert recheck(cordon, patient.policy, patient.facts_now(), patient.now) is DecisionReason.BREAKER_OPEN


def test_a_reset_forgets_earlier_failures_and_counts_later_ones(patient):
    fail(patient, 3)
    opened = patient.decide().breaker
    assert opened is not None
    patient.facts = replace(patient.facts, breaker=opened)
    assert patient.decide().breaker is None, "it opens once"
    patient.facts = replace(patient.facts, breaker=BreakerState(reset_at=patient.now, reset_by="ann"))
    assert patient.decide().breaker is None
    patient.now += timedelta(minutes=1)
    fail(patient, 3, first=3)
    again = patient.decide().breaker
    assert again is not None
    assert (again.unsuccessful, again.reset_by) == (3, "ann")


def test_a_switched_cluster_that_is_still_lost_opens_no_breaker(patient):
    """Its alerts go on for as long as it is lost, while the standby serves."""
    incident = patient.break_("cluster-lost", patient.service)
    for number in range(4):
        service = replace(patient.service, name=f"chat-{number}")
        patient.raise_alert("cluster-lost", service)
        action = moved(patient, ActionKind.SWITCH_CLUSTER, service, incident)
        patient.actions[action.id] = action
    patient.sessions["s"] = RemediationSession("s", incident, patient.now)
    patient.now += patient.policy.breaker.recovers_within
    assert patient.decide().breaker is None


def moved(fleet, kind, target, incident):
    """A performed action of the session ``s``."""
    params = {"cluster": "west", "share": 1.0}
    return Action(
        f"act-{target.name}", "s", kind, target, params, incident, False, Verdict.ALLOWED,
        DecisionReason.WITHIN_LIMITS, ActionStatus.DONE, fleet.now, fleet.now, fleet.now,
    )  # fmt: skip
