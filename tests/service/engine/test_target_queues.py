"""Queues of actions by target."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Event

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityKind, EntityRef, Verdict
from service.engine.target_queues import TargetQueues
from tests.support.waiting import until

NODE = EntityRef("c", EntityKind.NODE, None, "node-1")


def cordon() -> Action:
    return Action(
        "act-1", "ses", ActionKind.CORDON, NODE, {}, "inc", False, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS,
        ActionStatus.CLAIMED, datetime(2026, 11, 25, tzinfo=UTC),
    )  # fmt: skip


def test_an_action_that_is_claimed_again_while_it_ends_is_performed_once() -> None:
    performed: list[str] = []
    may_end = Event()

    def perform(action: Action) -> None:
        performed.append(action.id)
        assert may_end.wait(30)

    with TargetQueues(perform, 2) as queues:

        def claim_again() -> list[Action]:
            """Its lease has expired; it ends between the claim and the queueing."""
            may_end.set()
            until(lambda: queues.unfinished == 0, "the action ends")
            return [cordon()]

        assert queues.submit(lambda: [cordon()]) == 1
        assert queues.submit(claim_again) == 0
        assert queues.submit(lambda: [cordon()]) == 1, "a later claim is a new attempt"
    assert performed == ["act-1", "act-1"]
