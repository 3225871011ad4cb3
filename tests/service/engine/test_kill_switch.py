"""The kill switch: on while its file exists, or while that cannot be determined."""

import os
from dataclasses import replace

import pytest

from outrider.audit import AuditEvent
from outrider.clock import ManualClock
from outrider.model import ActionStatus, OutcomeStatus
from outrider.ports import CycleCommit
from service.engine.dispatch import ACTION_RETRY, Dispatcher
from service.engine.kill_switch import KillSwitch
from store.memory import MemoryStateStore
from tests.service.engine.test_dispatch import CORDON, NOW, RECORD, Drain, Gate, RecordingActuator


@pytest.fixture
def file(tmp_path):
    return tmp_path / "stop"


def dispatcher_of(state, actuator, file, clock=None):
    return Dispatcher(state, {}, actuator, clock or ManualClock(NOW), Gate(), KillSwitch(file))


def filled(*more):
    state = MemoryStateStore()
    state.commit(CycleCommit(RECORD, actions=(CORDON, *more)))
    return state


def test_it_is_off_without_a_file(file):
    assert not KillSwitch(None).is_on()
    assert not KillSwitch(file).is_on()


def test_any_kind_of_file_turns_it_on(file):
    file.touch()
    assert KillSwitch(file).is_on()
    file.unlink()
    file.mkdir()
    assert KillSwitch(file).is_on()
    file.rmdir()
    file.symlink_to("nowhere")
    assert KillSwitch(file).is_on()


def test_it_is_on_while_its_folder_is_missing_or_is_no_folder(tmp_path):
    assert KillSwitch(tmp_path / "unmounted" / "stop").is_on()
    (tmp_path / "file").touch()
    assert KillSwitch(tmp_path / "file" / "stop").is_on()


def test_it_is_on_while_it_cannot_be_read(file, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "lstat", refuse)
    assert KillSwitch(file).is_on()


def test_nothing_is_performed_while_it_is_on_and_both_changes_are_audited(file):
    state, actuator = filled(), RecordingActuator()
    dispatcher = dispatcher_of(state, actuator, file)
    file.touch()
    dispatcher.run_once()
    dispatcher.run_once()
    assert actuator.performed == []
    assert state.actions()[0].status is ActionStatus.INTENDED
    file.unlink()
    dispatcher.run_once()
    assert actuator.performed == ["act-1"]
    events = [record.event for record in state.audit()]
    assert events == [AuditEvent.ACTION_PERFORMED, AuditEvent.KILL_SWITCH_OFF, AuditEvent.KILL_SWITCH_ON]
    assert state.audit()[-1].detail == {"path": str(file)}


class Stopping(RecordingActuator):
    """Performs, and is stopped by a person right after the first action."""

    def __init__(self, stop) -> None:
        super().__init__()
        self._stop = stop

    def perform(self, action):
        outcome = super().perform(action)
        self._stop()
        return outcome


@pytest.mark.parametrize("how", ["file", "pause"])
def test_it_also_stops_actions_that_were_claimed_already(file, how):
    state = filled(replace(CORDON, id="act-2"), replace(CORDON, id="act-3"))
    actuator = Stopping(file.touch if how == "file" else lambda: state.set_paused(True, "ann", NOW))
    clock = ManualClock(NOW)
    dispatcher = dispatcher_of(state, actuator, file, clock)
    dispatcher.run_once()
    assert actuator.performed == ["act-1"]
    assert sorted(action.status for action in state.actions()) == ["done", "intended", "intended"]
    file.unlink(missing_ok=True)
    state.set_paused(False, "ann", NOW)
    clock.advance(ACTION_RETRY)
    dispatcher.run_once()
    assert actuator.performed == ["act-1", "act-2"], "stopped again after one"


def test_a_drain_stops_between_two_attempts_and_goes_on_afterwards(file):
    state, clock = filled(), ManualClock(NOW)
    actuator = Drain((OutcomeStatus.IN_PROGRESS, "2 pods left"), (OutcomeStatus.DONE, "drained"))
    dispatcher = dispatcher_of(state, actuator, file, clock)
    dispatcher.run_once()
    file.touch()
    for _ in range(5):
        clock.advance(ACTION_RETRY)
        dispatcher.run_once()
    assert (actuator.attempts, state.actions()[0].status) == (1, ActionStatus.INTENDED)
    file.unlink()
    dispatcher.run_once()
    assert (actuator.attempts, state.actions()[0].status) == (2, ActionStatus.DONE)
