"""The end of a session: what is cancelled, and what is undone again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason
from remediation.decide.history import NOT_PERFORMED, STOPPED, History
from remediation.decide.policy import preview
from remediation.playbooks.files import packaged
from tests.remediation.decide.test_recheck import NODES, NOW, intent


def test_a_replica_that_was_shifted_again_is_restored_again(fleet):
    """Shift, restore, shift again in one session: the first restore does not count for the second shift."""
    incident = fleet.break_("kv-transfer-fail", fleet.replicas[0])
    (shift,) = [action for action in fleet.run(2) if action.kind is ActionKind.SHIFT_TRAFFIC]
    for kind, number in ((ActionKind.RESTORE_TRAFFIC, 0), (ActionKind.SHIFT_TRAFFIC, 1)):
        fleet.now += timedelta(minutes=1)
        times = {"decided_at": fleet.now, "started_at": fleet.now, "ended_at": fleet.now}
        done = replace(shift, id=f"{kind}-{number}", kind=kind, status=ActionStatus.DONE, **times)
        fleet.actions[done.id] = done
    fleet.now += timedelta(minutes=1)
    fleet.mend(fleet.replicas[0], resolve=incident)
    made = fleet.run(4)
    assert [(action.kind, action.target) for action in made] == [(ActionKind.RESTORE_TRAFFIC, fleet.replicas[0])]
    assert all(session.closed_at for session in fleet.sessions.values())


@pytest.mark.parametrize(("detail", "cordoned"), [(NOT_PERFORMED, False), (STOPPED, True), ("2 pods left", True)])
def test_a_drain_that_a_guard_stopped_before_it_began_has_cordoned_nothing(detail, cordoned):
    drain = replace(intent(ActionKind.DRAIN, NODES[0]), status=ActionStatus.FAILED, started_at=NOW, detail=detail)
    assert History([drain]).cordoned() == ({NODES[0]} if cordoned else set())


def test_a_diagnostic_that_a_step_requested_is_withdrawn_after_the_recovery(fleet):
    incident = fleet.break_("gpu-slow-peer", fleet.gpus[0])
    fleet.run(2)
    (requested,) = [action for action in fleet.actions.values() if action.kind is ActionKind.RUN_DIAGNOSTIC]
    assert requested.status is ActionStatus.WAITING_APPROVAL
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.run(6)
    assert fleet.actions[requested.id].status is ActionStatus.CANCELLED
    assert all(session.closed_at for session in fleet.sessions.values())


def test_the_preview_of_a_doubtful_cause_is_the_recommendation_that_is_recorded(make_fleet):
    fleet = make_fleet(autonomy="recommend")
    incident = fleet.break_("engine-hung", fleet.replicas[0], confidence=0.3)
    rows = preview(
        fleet.policy, fleet.incidents[incident], list(fleet.alerts.values()), None, (), fleet.topology,
        fleet.facts_now(), fleet.now, packaged(),
    )  # fmt: skip
    recorded = {action.reason for action in fleet.cycle()}
    assert recorded == {DecisionReason.AUTONOMY_RECOMMEND} == {action.reason for action, _ in rows}
