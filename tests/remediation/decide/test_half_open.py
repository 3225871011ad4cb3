"""Return of a replica into rotation: 1 %, 10 %, all, and out again if it fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason
from remediation.decide.limits import HalfOpen

TRIAL = HalfOpen((0.01, 0.1), time=timedelta(seconds=30), hold=timedelta(0))


@pytest.fixture
def diverted(make_fleet):
    """A slow replica out of rotation that has recovered."""
    fleet = make_fleet(half_open=TRIAL)
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    fleet.run(2)
    fleet.mend(fleet.replicas[0], resolve=incident)
    return fleet


def shares(actions):
    """(kind, share) of actions."""
    return [(action.kind.value, action.params.get("weight")) for action in actions]


def test_a_replica_returns_step_by_step(diverted):
    made = diverted.run(8)
    assert shares(made) == [("shift_traffic", 0.01), ("shift_traffic", 0.1), ("restore_traffic", None)]
    assert {action.reason for action in made} == {DecisionReason.RECOVERED}
    assert [b.decided_at - a.decided_at for a, b in pairwise(made)] == [TRIAL.time] * 2


def test_a_failure_on_trial_opens_the_circuit_again(diverted):
    diverted.run(1)
    diverted.raise_alert("kv-transfer-fail", diverted.replicas[0])
    (again,) = diverted.cycle()
    assert shares([again]) == [("shift_traffic", 0.0)]
    assert again.reason is DecisionReason.FAILED_AGAIN
    diverted.mend(diverted.replicas[0])
    assert diverted.run(3) == [], "the next trial waits longer"
    assert shares(diverted.run(2)) == [("shift_traffic", 0.01)]


def test_a_replica_that_nobody_repaired_is_tried_later(make_fleet):
    fleet = make_fleet(half_open=replace(TRIAL, hold=timedelta(minutes=10)))
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    fleet.run(2)
    fleet.mend(fleet.replicas[0], resolve=incident)
    assert fleet.run(30) == []
    assert shares(fleet.run(12))[:1] == [("shift_traffic", 0.01)]


def test_a_new_process_is_tried_at_once(make_fleet):
    fleet = make_fleet(half_open=replace(TRIAL, hold=timedelta(hours=1)))
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    fleet.run(2)
    fleet.mend(fleet.replicas[0], resolve=incident)
    fleet.facts = replace(fleet.facts, started_at={fleet.replicas[0]: fleet.now})
    assert shares(fleet.run(2)) == [("shift_traffic", 0.01)]


def test_a_trial_uses_up_no_rate_limit(diverted):
    diverted.policy = replace(diverted.policy, max_actions_per_hour=1)
    assert shares(diverted.run(8))[-1] == ("restore_traffic", None)


def test_a_replica_that_another_session_holds_is_not_tried(diverted):
    diverted.break_("gpu-slow-peer", diverted.gpus[0])
    made = [action for action in diverted.run(8) if action.kind is ActionKind.SHIFT_TRAFFIC]
    assert {action.params["weight"] for action in made} == {0.0}


def test_at_most_a_share_of_the_replicas_is_out_of_rotation(make_fleet):
    fleet = make_fleet(max_ejected_ratio=0.25)
    fleet.facts = replace(fleet.facts, needed_replicas={fleet.service: 0})
    for number in range(4):
        fleet.break_("kv-transfer-fail", fleet.replicas[number])
    reasons = [action.reason for action in fleet.cycle() if action.kind is ActionKind.SHIFT_TRAFFIC]
    assert reasons.count(DecisionReason.WITHIN_LIMITS) == 2
    assert reasons.count(DecisionReason.TOO_MANY_EJECTED) == 2


def test_one_replica_may_always_be_taken_out(make_fleet):
    fleet = make_fleet(2, max_ejected_ratio=0.1)
    fleet.facts = replace(fleet.facts, needed_replicas={fleet.service: 1})
    fleet.break_("kv-transfer-fail", fleet.replicas[0])
    assert [action.reason for action in fleet.cycle()] == [DecisionReason.WITHIN_LIMITS]


@pytest.mark.parametrize("detail", ["a Service has no weights", "not performed: monitor_blind"])
def test_a_share_that_the_route_cannot_express_is_skipped(diverted, detail):
    """A Service chooses its pods by labels: without weights the replica returns at once, not never."""
    tried = []
    for _ in range(8):
        for action in diverted.cycle(perform=False):
            tried += shares([action])
            failed = action.kind is ActionKind.SHIFT_TRAFFIC
            status = ActionStatus.FAILED if failed else ActionStatus.DONE
            diverted.actions[action.id] = replace(
                action, status=status, detail=detail if failed else "", started_at=diverted.now, ended_at=diverted.now
            )
    expected = [("shift_traffic", 0.01), ("shift_traffic", 0.1), ("restore_traffic", None)]
    stopped = detail.startswith("not performed")
    assert tried == ([("shift_traffic", 0.01)] * 8 if stopped else expected)
