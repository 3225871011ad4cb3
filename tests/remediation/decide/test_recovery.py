"""The end of a session: what is cancelled, and what is undone again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from outrider.model import ActionKind, ActionStatus


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
