"""Dispatchers: at least once, one claim per row, failures recorded and retried, no actions while paused."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import ManualClock
from outrider.errors import ActuationError, DeliveryError, StoreError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Message,
    NotifyReason,
    Outcome,
    OutcomeStatus,
    Priority,
    Receipt,
    Verdict,
)
from outrider.ports import CycleCommit
from remediation.decide.limits import ACTION_TIME_LIMIT
from service.engine.dispatch import ACTION_RETRY, LEASE, Dispatcher
from store.memory import MemoryStateStore

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
NODE = EntityRef("c", EntityKind.NODE, None, "node-0")
RECORD = CycleRecord("cycle", NOW, 0.1, 1, 1, 1, 0, 0, 0)
CORDON = Action(
    id="act-1", session="s", kind=ActionKind.CORDON, target=NODE, params={}, because="inc-1", dry_run=False,
    decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.INTENDED, decided_at=NOW,
)  # fmt: skip
PAGE = Message("m-1", "oncall", NotifyReason.OPENED, Priority.P0, "inc-1", "t", "b", NOW, is_page=True)


class RecordingActuator:
    def __init__(self, fault=None) -> None:
        self.performed, self.fault = [], fault

    def perform(self, action):
        if self.fault:
            raise self.fault
        self.performed.append(action.id)
        return Outcome(action.id, OutcomeStatus.DONE, "cordoned", NOW, NOW)


class Gate:
    """A gate that is open, closed, or refuses with a reason."""

    def __init__(self, objection=None, *, ready=True) -> None:
        self.objection, self.ready = objection, ready

    def may_act(self):
        return self.ready

    def recheck(self, action, now):
        return self.objection


class Inbox:
    def __init__(self, *faults) -> None:
        self.sent, self.faults = [], list(faults)

    def send(self, message):
        if self.faults:
            raise self.faults.pop(0)
        self.sent.append(message.id)
        return Receipt(f"receipt of {message.id}")


def platform(actuator=None, inbox=None, gate=None):
    state, clock = MemoryStateStore(), ManualClock(NOW)
    state.commit(CycleCommit(RECORD, actions=(CORDON,), messages=(PAGE,)))
    actuator, inbox = actuator or RecordingActuator(), inbox or Inbox()
    return state, clock, actuator, inbox, Dispatcher(state, {"oncall": inbox}, actuator, clock, gate or Gate())


def test_each_row_is_processed_once():
    state, _, actuator, inbox, dispatcher = platform()
    assert dispatcher.run_once() == 2
    assert dispatcher.run_once() == 0
    assert (actuator.performed, inbox.sent) == (["act-1"], ["m-1"])
    assert state.actions()[0].status is ActionStatus.DONE


def test_an_unexpected_error_is_the_failure_of_its_action_only():
    state, _, _, inbox, dispatcher = platform(RecordingActuator(KeyError("level")))
    dispatcher.run_once()
    (action,) = state.actions()
    assert action.status is ActionStatus.FAILED
    assert "internal error (KeyError)" in action.detail
    assert inbox.sent == ["m-1"]
    assert dispatcher.run_once() == 0


def test_two_dispatchers_share_the_rows():
    state, clock, actuator, inbox, first = platform()
    second = Dispatcher(state, {"oncall": inbox}, actuator, clock, Gate())
    first.run_once()
    second.run_once()
    assert (actuator.performed, inbox.sent) == (["act-1"], ["m-1"])


def test_nothing_is_performed_while_paused_but_messages_are_sent():
    state, clock, actuator, inbox, dispatcher = platform()
    state.set_paused(paused=True, by="ann", now=clock.now())
    dispatcher.run_once()
    assert (actuator.performed, inbox.sent) == ([], ["m-1"])
    state.set_paused(paused=False, by="ann", now=clock.now())
    dispatcher.run_once()
    assert actuator.performed == ["act-1"]


def test_intents_from_before_a_restart_wait_for_the_first_cycle():
    gate = Gate(ready=False)
    _, _, actuator, _, dispatcher = platform(gate=gate)
    dispatcher.run_once()
    assert actuator.performed == []
    gate.ready = True
    dispatcher.run_once()
    assert actuator.performed == ["act-1"]


def test_the_guard_rails_are_checked_again_before_an_action():
    state, _, actuator, _, dispatcher = platform(gate=Gate(DecisionReason.MONITOR_BLIND))
    dispatcher.run_once()
    assert actuator.performed == []
    action = state.actions()[0]
    assert (action.status, action.detail) == (ActionStatus.FAILED, "not performed: monitor_blind")


def test_an_action_that_the_guards_stop_between_two_attempts_is_not_reported_as_untouched():
    gate = Gate()
    state, clock, _, _, dispatcher = platform(RecordingActuator(ActuationError("429", retryable=True)), gate=gate)
    dispatcher.run_once()
    gate.objection = DecisionReason.FREEZE
    clock.advance(ACTION_RETRY)
    dispatcher.run_once()
    action = state.actions()[0]
    assert (action.status, action.detail) == (ActionStatus.FAILED, "stopped after it began: freeze")


def test_a_failed_action_is_recorded_with_its_reason():
    state, _, _, _, dispatcher = platform(actuator=RecordingActuator(ActuationError("no such node", retryable=False)))
    dispatcher.run_once()
    action = state.actions()[0]
    assert action.status is ActionStatus.FAILED
    assert "no such node" in action.detail
    assert any(record.reason == "failed" for record in state.audit())


class Together(RecordingActuator):
    """An actuator that returns only once two actions are in progress, and records their order."""

    def __init__(self, parties) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties, timeout=10)

    def perform(self, action):
        if action.target != NODE:
            self.barrier.wait()
        return super().perform(action)


def test_actions_on_several_targets_run_at_once_and_those_on_one_target_in_order():
    others = [EntityRef("c", EntityKind.NODE, None, f"node-{number}") for number in range(1, 4)]
    own = [replace(CORDON, id=f"act-1{number}", decided_at=NOW + timedelta(seconds=number)) for number in range(3)]
    actions = [*own, *(replace(CORDON, id=f"act-2{number}", target=node) for number, node in enumerate(others))]
    state, clock, actuator = MemoryStateStore(), ManualClock(NOW), Together(3)
    state.commit(CycleCommit(RECORD, actions=tuple(actions)))
    dispatcher = Dispatcher(state, {}, actuator, clock, Gate(), workers=4)
    assert dispatcher.perform_actions() == 6
    assert [action for action in actuator.performed if action.startswith("act-1")] == ["act-10", "act-11", "act-12"]
    assert {action.status for action in state.actions()} == {ActionStatus.DONE}
    assert dispatcher.perform_actions() == 0


def test_more_actions_than_one_claim_are_performed_in_one_run():
    nodes = [EntityRef("c", EntityKind.NODE, None, f"node-{number}") for number in range(50)]
    state, clock, actuator = MemoryStateStore(), ManualClock(NOW), RecordingActuator()
    state.commit(
        CycleCommit(RECORD, actions=tuple(replace(CORDON, id=f"act-{node.name}", target=node) for node in nodes))
    )
    assert Dispatcher(state, {}, actuator, clock, Gate(), workers=8).perform_actions() == 50
    assert len(set(actuator.performed)) == 50


class SlowHook(RecordingActuator):
    """An actuator whose first action ends only once another target's later action is done."""

    def __init__(self, later) -> None:
        super().__init__()
        self.later, self.done = later, threading.Event()

    def perform(self, action):
        if action.target == NODE:
            self.later()
            assert self.done.wait(10), "the slow action delays the others"
        result = super().perform(action)
        if action.target != NODE:
            self.done.set()
        return result


def test_a_slow_action_does_not_delay_later_decisions_about_other_targets():
    state, clock = MemoryStateStore(), ManualClock(NOW)
    other = EntityRef("c", EntityKind.NODE, None, "node-1")
    behind = replace(CORDON, id="act-2", decided_at=NOW + timedelta(seconds=1))

    def decide_another():
        """The next cycle, while the slow action is in progress."""
        later = replace(CORDON, id="act-3", target=other, decided_at=NOW + timedelta(seconds=2))
        state.commit(CycleCommit(RECORD, actions=(later,)))

    actuator = SlowHook(decide_another)
    state.commit(CycleCommit(RECORD, actions=(CORDON, behind)))
    assert Dispatcher(state, {}, actuator, clock, Gate(), workers=4).perform_actions() == 3
    assert actuator.performed == ["act-3", "act-1", "act-2"], "those on one target keep their order"


def test_an_action_whose_lease_expires_while_it_is_performed_is_not_performed_twice():
    state, clock = MemoryStateStore(), ManualClock(NOW)
    other = EntityRef("c", EntityKind.NODE, None, "node-1")

    def expire():
        clock.advance(2 * LEASE)
        state.commit(CycleCommit(RECORD, actions=(replace(CORDON, id="act-3", target=other),)))

    actuator = SlowHook(expire)
    state.commit(CycleCommit(RECORD, actions=(CORDON,)))
    assert Dispatcher(state, {}, actuator, clock, Gate(), workers=4).perform_actions() == 2
    assert actuator.performed == ["act-3", "act-1"]


def test_an_error_of_the_store_ends_the_run_and_is_raised():
    class BrokenStore(MemoryStateStore):
        def finish_action(self, outcome):
            raise StoreError("disk full")

    state, clock, actuator = BrokenStore(), ManualClock(NOW), RecordingActuator()
    state.commit(CycleCommit(RECORD, actions=(CORDON, replace(CORDON, id="act-2"))))
    with pytest.raises(StoreError, match="disk full"):
        Dispatcher(state, {}, actuator, clock, Gate(), workers=4).perform_actions()
    assert actuator.performed == ["act-1"]


class Drain:
    """An actuator that needs several attempts, with these results in turn; the last one repeats."""

    def __init__(self, *results) -> None:
        self.results, self.attempts = list(results), 0

    def perform(self, action):
        self.attempts += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, ActuationError):
            raise result
        status, detail = result
        return Outcome(action.id, status, detail, NOW, NOW)


def test_an_action_in_progress_continues_until_it_is_done():
    waits, done = (OutcomeStatus.IN_PROGRESS, "2 pods are evicted"), (OutcomeStatus.DONE, "drained")
    state, clock, actuator, _, dispatcher = platform(Drain(waits, waits, done))
    dispatcher.run_once()
    dispatcher.run_once()
    assert actuator.attempts == 1, "not before the wait is over"
    for _ in range(2):
        clock.advance(ACTION_RETRY)
        dispatcher.run_once()
    (action,) = state.actions()
    assert (action.status, action.detail, action.started_at) == (ActionStatus.DONE, "drained", NOW)
    performed = [record.reason for record in state.audit() if record.event == "action_performed"]
    assert performed == ["done", "in_progress"], "an equal detail is audited once"


def test_a_retryable_error_is_tried_again_and_finally_fails():
    away = ActuationError("the API server cannot be reached", retryable=True)
    state, clock, _, _, dispatcher = platform(Drain(away))
    attempts = 0
    while state.actions()[0].status is not ActionStatus.FAILED:
        attempts += 1
        assert attempts < 1_000
        dispatcher.run_once()
        clock.advance(ACTION_RETRY)
    assert clock.now() - NOW >= ACTION_TIME_LIMIT
    assert state.actions()[0].detail == "not done after 10 min: the API server cannot be reached"


def test_a_guard_rail_also_stops_an_action_in_progress():
    gate = Gate()
    state, clock, actuator, _, dispatcher = platform(Drain((OutcomeStatus.IN_PROGRESS, "evicts")), gate=gate)
    dispatcher.run_once()
    gate.objection = DecisionReason.MONITOR_BLIND
    clock.advance(ACTION_RETRY)
    dispatcher.run_once()
    assert actuator.attempts == 1
    assert state.actions()[0].status is ActionStatus.FAILED


def test_a_refused_message_is_tried_again_later_and_arrives_once():
    fault = DeliveryError("away", retryable=True)
    _, clock, _, inbox, dispatcher = platform(inbox=Inbox(fault, fault))
    for _ in range(60):
        dispatcher.run_once()
        clock.advance(timedelta(seconds=5))
    assert inbox.sent == ["m-1"]


@pytest.mark.parametrize("fault", [DeliveryError("gone", retryable=False, reason="http_status")])
def test_a_final_failure_is_not_retried(fault):
    state, clock, _, inbox, dispatcher = platform(inbox=Inbox(fault))
    for _ in range(10):
        dispatcher.run_once()
        clock.advance(timedelta(minutes=1))
    assert inbox.sent == []
    assert [record.reason for record in state.audit() if record.event == "message_failed"] == ["http_status"]


def test_a_removed_channel_fails_without_retry():
    state, clock, actuator, _, _ = platform()
    Dispatcher(state, {}, actuator, clock, Gate()).run_once()
    assert [record.reason for record in state.audit() if record.event == "message_failed"] == ["no_channel"]


def test_outcomes_have_the_time_of_the_platform_clock():
    state, clock, _, _, dispatcher = platform()
    clock.set(NOW + timedelta(days=3))
    dispatcher.run_once()
    assert state.actions()[0].ended_at == NOW + timedelta(days=3)


class BusyActuator:
    """An actuator whose endpoint asks for a longer pause, and never ends."""

    def __init__(self) -> None:
        self.attempts = []

    def perform(self, action):
        self.attempts.append(action.id)
        raise ActuationError("429", retryable=True, status=429, retry_after=timedelta(seconds=40))


def test_the_wait_that_an_endpoint_requests_is_kept():
    actuator = BusyActuator()
    _, clock, _, _, dispatcher = platform(actuator)
    for seconds in (0, 10, 35, 41):
        clock.set(NOW + timedelta(seconds=seconds))
        dispatcher.run_once()
    assert len(actuator.attempts) == 2


def test_an_action_kind_may_have_its_own_time_limit():
    actuator, limit = BusyActuator(), timedelta(minutes=30)
    state, clock, _, inbox, _ = platform(actuator)
    dispatcher = Dispatcher(state, {"oncall": inbox}, actuator, clock, Gate(), time_limits={ActionKind.CORDON: limit})
    dispatcher.run_once()
    clock.set(NOW + ACTION_TIME_LIMIT + timedelta(minutes=1))
    dispatcher.run_once()
    assert state.actions()[0].status is ActionStatus.INTENDED
    clock.set(NOW + limit)
    dispatcher.run_once()
    (action,) = state.actions()
    assert (action.status, action.detail) == (ActionStatus.FAILED, "not done after 30 min: 429")
