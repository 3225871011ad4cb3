"""Decides, commits and dispatches on a real state store, for a fleet of ``tests/remediation``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from outrider.clock import ManualClock
from outrider.model import Action, ActionStatus, CycleRecord, DecisionReason
from outrider.ports import Actuator, CycleCommit
from remediation.decide.limits import Decisions
from remediation.decide.recheck import recheck
from remediation.playbooks.files import packaged
from service.engine import fleet_state
from service.engine.dispatch import Dispatcher
from tests.remediation.conftest import CYCLE, Fleet

OPERATOR = "an operator"


class RepairLoop:
    """The deciding and the dispatching half of an engine, in lockstep."""

    def __init__(
        self,
        fleet: Fleet,
        state: Any,
        actuator: Actuator,
        clock: ManualClock,
        *,
        approved: Callable[[str], None] = lambda action_id: None,
        observe: Callable[[], None] = lambda: None,
    ) -> None:
        """``approved`` is called with each action that was approved, ``observe`` before each cycle."""
        self.fleet, self._state, self._clock = fleet, state, clock
        self._approved, self._observe = approved, observe
        self.decisions = Decisions()
        self._dispatcher = Dispatcher(state, {}, actuator, clock, self, time_limits=fleet.policy.time_limits)

    def may_act(self) -> bool:
        """Always: the fleet is known from the start."""
        return True

    def recheck(self, action: Action, now: datetime) -> DecisionReason | None:
        """The guards at the moment of acting."""
        others, facts = self._state.actions(limit=1000), self.fleet.facts_now()
        return recheck(action, self.fleet.policy, facts, now, others=others, playbooks=packaged())

    def cycle(self) -> bool:
        """One cycle, with every approval given. True while there is something to do."""
        now, sessions, fleet = self._clock.now(), self._state.sessions(), self.fleet
        self._observe()
        fleet.now = now
        fleet.sessions = {session.id: session for session in sessions}
        stored = fleet_state.weighed_actions(self._state, sessions, now - timedelta(hours=24))
        fleet.actions = {action.id: action for action in stored}
        decisions = self.decisions = fleet.decide()
        record = CycleRecord(now.isoformat(), now, 0.1, 1, 1, 1, 0, 0, 0)
        self._state.commit(CycleCommit(record, actions=decisions.actions, sessions=decisions.sessions))
        self._approve(now)
        self._dispatcher.run_once()
        self._clock.advance(CYCLE)
        return bool(decisions.actions) or any(session.closed_at is None for session in self._state.sessions())

    def run(self, cycles: int) -> None:
        """Several cycles."""
        for _ in range(cycles):
            self.cycle()

    def actions(self) -> list[Action]:
        """Every action, oldest first."""
        return sorted(self._state.actions(limit=1000), key=lambda action: (action.decided_at, action.id))

    def _approve(self, now: datetime) -> None:
        for action in self._state.actions(limit=1000):
            if action.status is ActionStatus.WAITING_APPROVAL:
                self._state.decide_action(action.id, approve=True, by=OPERATOR, now=now)
                self._approved(action.id)
