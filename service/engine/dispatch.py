"""Dispatches the decisions of the cycle: claims action intents, performs them, records the outcome.

At least once, with one duplicate at most per kill: a claim is a conditional UPDATE with a lease, and
actions and receivers deduplicate by id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Protocol

from alerts.routing.buttons import Sign
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ChannelPolicy, DecisionReason, Outcome, OutcomeStatus
from outrider.ports import Actuator, Notifier, StateStore
from remediation.decide.history import NOT_DONE, NOT_PERFORMED, STOPPED
from remediation.decide.limits import ACTION_TIME_LIMIT
from service.engine.delivery import LEASE, MessageDelivery
from service.engine.kill_switch import KillSwitch
from service.engine.target_queues import TargetQueues

_log = log.get("dispatch")
WORKERS = 8  # actions at once: an API server that takes a second for each still serves 5 nodes/s
CLAIMED = 10  # actions per claim, at least
CLAIM_AGAIN = 1.0  # seconds, while others are in progress
ACTION_RETRY = timedelta(seconds=5)  # a drain is continued this often


class Gate(Protocol):
    """The guard rails at the moment of acting."""

    def may_act(self) -> bool:
        """False before the first cycle."""
        ...

    def recheck(self, action: Action, now: datetime) -> DecisionReason | None:
        """Returns the reason not to perform an action now, None if it may be performed."""
        ...


class Dispatcher:
    """Works off the two queues of one store. Several may run; each row is claimed by one."""

    def __init__(
        self,
        state: StateStore,
        notifiers: Mapping[str, Notifier],
        actuator: Actuator,
        clock: Clock,
        gate: Gate,
        kill_switch: KillSwitch | None = None,
        time_limits: Mapping[ActionKind, timedelta] | None = None,
        *,
        workers: int = 1,
        policies: Mapping[str, ChannelPolicy] | None = None,
        sign: Sign | None = None,
    ) -> None:
        """``notifiers`` and ``policies`` by channel name; ``gate`` and ``kill_switch`` are checked before every action.

        ``time_limits`` replace ``ACTION_TIME_LIMIT`` for some kinds. ``workers`` is the number of actions performed
        at once, each on another target. ``sign`` makes the links of buttons.
        """
        self._workers = workers
        self._stopping = Lock()
        self._gate = gate
        self._kill_switch = kill_switch or KillSwitch(None)
        self._killed = False
        self._time_limits = time_limits or {}
        self._state = state
        self._actuator = actuator
        self._clock = clock
        self._owner = f"{os.uname().nodename}:{os.getpid()}"
        self._delivery = MessageDelivery(state, notifiers, clock, self._owner, policies, sign=sign)

    def limit(self, kill_switch: KillSwitch, time_limits: Mapping[ActionKind, timedelta]) -> None:
        """Replaces the kill switch and the time limits."""
        self._kill_switch, self._time_limits = kill_switch, time_limits

    def run_once(self) -> int:
        """Processes both queues once. Returns the number of rows processed."""
        return self._perform_claimed() + self._delivery.run_once()

    def perform_actions(self) -> int:
        """Performs actions until none is due. Returns their number.

        While some are in progress it goes on to claim others: a slow one delays none on another target.
        """
        if self._workers == 1:
            return _until_none(self._perform_claimed)
        performed = 0
        with TargetQueues(self._perform_unless_stopped, self._workers) as queues:
            while not queues.failed:
                new = queues.submit(lambda: self._claim(queues.unfinished))
                performed += new
                if not new and not queues.unfinished:
                    break
                queues.wait(CLAIM_AGAIN)
        return performed

    def deliver_messages(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Delivers messages until none is due or the process stops. Returns their number."""
        return self._delivery.run(stopping)

    def wake_delivery(self) -> None:
        """Makes a delivery in progress look for new messages now."""
        self._delivery.wake()

    def _perform_claimed(self) -> int:
        """Performs the oldest due actions: several at once, but those on one target one after another."""
        actions = self._claim()
        if self._workers == 1:
            for action in actions:
                self._perform_unless_stopped(action)
        else:
            with TargetQueues(self._perform_unless_stopped, self._workers) as queues:
                queues.submit(lambda: actions)
        return len(actions)

    def _claim(self, unfinished: int = 0) -> Sequence[Action]:
        """Claims due actions besides the unfinished ones. A pause and the kill switch also stop earlier decisions."""
        limit = max(CLAIMED, 2 * self._workers) - unfinished
        if limit <= 0 or self._is_stopped(self._clock.now()) or not self._gate.may_act():
            return ()
        return self._state.claim_actions(self._owner, self._clock.now(), LEASE, limit)

    def _perform_unless_stopped(self, action: Action) -> None:
        if self._is_stopped(self._clock.now()):  # since the claim
            self._state.defer_action(action.id, action.detail, self._clock.now() + ACTION_RETRY)
        else:
            self._perform(action)

    def _is_stopped(self, now: datetime) -> bool:
        """True while the kill switch is on or remediation is paused. A change of the switch is audited."""
        killed = self._kill_switch.is_on()
        with self._stopping:
            changed, self._killed = killed is not self._killed, killed
        if changed:
            event = AuditEvent.KILL_SWITCH_ON if killed else AuditEvent.KILL_SWITCH_OFF
            detail = {"path": str(self._kill_switch.file)}
            self._state.append_audit([AuditRecord(now, event, "remediation", event.value, detail=detail)])
            _log.warning(event.value, path=str(self._kill_switch.file))
        return killed or self._state.paused()

    def _perform(self, action: Action) -> None:
        started, wait = self._clock.now(), ACTION_RETRY
        try:
            held = self._gate.recheck(action, started)
            if held is not None:
                stopped = STOPPED if action.detail else NOT_PERFORMED  # a detail is that of an earlier attempt
                outcome = Outcome(action.id, OutcomeStatus.FAILED, f"{stopped}: {held}", started, started)
            else:
                outcome = self._attempt(action, started)
        except ActuationError as error:
            detail = f"{error.message}; {error.hint}" if error.hint else error.message
            status = OutcomeStatus.IN_PROGRESS if error.retryable else OutcomeStatus.FAILED
            outcome = Outcome(action.id, status, detail, started, started)
            wait = max(wait, error.retry_after or wait)
        if outcome.status is OutcomeStatus.IN_PROGRESS:
            limit = self._time_limits.get(action.kind, ACTION_TIME_LIMIT)
            if started - (action.started_at or started) < limit:
                self._defer(action, outcome.detail, started, wait)
                return
            minutes = limit.total_seconds() / 60
            detail = f"{NOT_DONE} {minutes:g} min: {outcome.detail}"
            outcome = replace(outcome, status=OutcomeStatus.FAILED, detail=detail)
        self._finish(action, outcome, started)

    def _attempt(self, action: Action, started: datetime) -> Outcome:
        """Performs the action. An unexpected error is its failure: repeated, it would block the queue for good."""
        try:
            return self._actuator.perform(action)
        except ActuationError:
            raise
        except Exception as error:  # noqa: BLE001 one action must not stop the others
            _log.exception("action_crashed", action=action.id, kind=action.kind, target=str(action.target))
            detail = f"internal error ({type(error).__name__}); report it with the engine's log"
            return Outcome(action.id, OutcomeStatus.FAILED, detail, started, started)

    def _defer(self, action: Action, detail: str, now: datetime, wait: timedelta) -> None:
        """Performs the action again after ``wait``. A new detail is audited, a repeated one is not."""
        self._state.defer_action(action.id, detail, now + wait)
        if detail != action.detail:
            self._state.append_audit([_performed(action, now, OutcomeStatus.IN_PROGRESS, detail)])
            _log.info("action_continues", action=action.id, kind=action.kind, target=str(action.target), detail=detail)

    def _finish(self, action: Action, outcome: Outcome, started: datetime) -> None:
        # times are those of the platform clock, which a simulation sets
        outcome = replace(outcome, started_at=started, ended_at=self._clock.now())
        self._state.finish_action(outcome)
        self._state.append_audit([_performed(action, outcome.ended_at, outcome.status, outcome.detail)])
        _log.info(
            "action_performed", action=action.id, kind=action.kind, target=str(action.target), status=outcome.status
        )


def _until_none(work: Callable[[], int]) -> int:
    total = 0
    while done := work():
        total += done
    return total


def _performed(action: Action, at: datetime, status: OutcomeStatus, detail: str) -> AuditRecord:
    return AuditRecord(
        at=at,
        event=AuditEvent.ACTION_PERFORMED,
        subject=f"{action.kind} {action.target}",
        reason=status,
        by=action.approved_by or "outrider",
        detail={"action": action.id, "said": detail, "dry_run": str(action.dry_run)},
    )
