"""Contract of every state store for responses of people and for on-call schedules: memory, SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError
from outrider.model import CycleRecord, EntityKind, EntityRef, Incident, Layer, Priority
from outrider.ports import CycleCommit, Silence, StateStore
from outrider.records.on_call import ButtonPress, PressResult, ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, IncidentNote, NoteKind
from outrider.wire.cursors import position_of
from store.factory import open_state, urls_of
from store.memory import MemoryStateStore
from tests.contracts.test_stores import url_of

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
GPU = EntityRef("c", EntityKind.GPU, None, "g")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    if request.param == "memory":
        yield MemoryStateStore()
        return
    store = open_state(urls_of(url_of(request, tmp_path))[0])
    yield store
    assert store.connections_in_use == 0
    store.close()


def open_incident(state: StateStore, name: str = "inc-1") -> None:
    incident = Incident(name, Layer.HARDWARE, Priority.P0, T0, (), (), (), (), T0)
    state.commit(CycleCommit(CycleRecord("c1", T0, 0.1, 1, 1, 1, 1, 1, 1), incidents=(incident,)))


def note(number: int, **fields: object) -> IncidentNote:
    made = IncidentNote(f"n{number}", "inc-1", NoteKind.COMMENT, "li", T0 + number * MINUTE, "正在处理")
    return replace(made, **fields)  # type: ignore[arg-type]


def follow_up(number: int, **fields: object) -> FollowUp:
    made = FollowUp(
        f"f{number}", "inc-1", "replace the riser", "hardware", date(2026, 3, 9), "li", T0 + number * MINUTE,
        "gpu-lost", GPU,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def override(name: str, start: datetime, end: datetime) -> ShiftOverride:
    return ShiftOverride(name, "model", "chen", start, end, "li", T0)


def events(state: StateStore) -> list[AuditEvent]:
    return [record.event for record in reversed(state.audit())]


def test_a_new_store_has_no_responses(state: StateStore) -> None:
    assert state.notes(["inc-1"]) == state.notes([]) == ()
    assert state.follow_ups() == state.shift_overrides(T0) == state.calendars() == ()
    assert state.follow_up("f1") is None


def test_notes_are_added_once_and_read_by_incident(state: StateStore) -> None:
    open_incident(state)
    assigned = note(2, kind=NoteKind.ASSIGNMENT, to="wang", text="")
    escalated = note(3, kind=NoteKind.ESCALATION)
    for entry in (assigned, note(1), escalated, replace(note(1), text="another text")):
        assert state.add_note(entry)
    assert not state.add_note(note(4, incident="inc-unknown"))
    assert state.notes(["inc-1", "inc-2"]) == (note(1), assigned, escalated)
    assert state.notes(["inc-2"]) == ()
    assert events(state) == [
        AuditEvent.INCIDENT_COMMENTED,
        AuditEvent.INCIDENT_ASSIGNED,
        AuditEvent.ESCALATION_REQUESTED,
    ]
    assert state.audit()[1].detail == {"note": "n2", "to": "wang"}


def test_notes_of_many_incidents_are_read_at_once(state: StateStore) -> None:
    open_incident(state)
    state.add_note(note(1))
    assert state.notes([f"inc-{number}" for number in range(1200)]) == (note(1),)


def test_follow_ups_are_stored_with_their_state(state: StateStore) -> None:
    for item in (follow_up(1), follow_up(2, incident="inc-2"), follow_up(1)):
        state.save_follow_up(item, "li", T0)
    assert state.follow_ups() == (follow_up(2, incident="inc-2"), follow_up(1))
    assert state.follow_ups(incident="inc-1") == (follow_up(1),)
    closed = follow_up(1, closed_at=T0 + DAY, closed_by="wang")
    state.save_follow_up(follow_up(1, due=date(2026, 3, 12)), "wang", T0)
    state.save_follow_up(closed, "wang", T0 + DAY)
    assert state.follow_up("f1") == closed
    assert state.follow_ups(open_only=True) == (follow_up(2, incident="inc-2"),)
    assert len(state.follow_ups(since=T0 + DAY)) == 2
    assert len(state.follow_ups(since=T0 + 2 * DAY)) == 1
    changes = [AuditEvent.FOLLOW_UP_ADDED] * 2 + [AuditEvent.FOLLOW_UP_CHANGED, AuditEvent.FOLLOW_UP_CLOSED]
    assert events(state) == changes
    assert state.audit()[0].by == "wang"


def test_follow_ups_are_read_in_pages(state: StateStore) -> None:
    for number in range(5):
        state.save_follow_up(follow_up(number), "li", T0)
    first = state.follow_ups(limit=2)
    assert [item.id for item in first] == ["f4", "f3"]
    assert [item.id for item in state.follow_ups(limit=9, after=position_of(first[-1]))] == ["f2", "f1", "f0"]


def test_overrides_end_and_can_be_removed(state: StateStore) -> None:
    late = override("late", T0 + DAY, T0 + 2 * DAY)
    soon = override("soon", T0, T0 + DAY)
    state.add_shift_override(late)
    state.add_shift_override(soon)
    assert state.shift_overrides(T0) == (soon, late)
    assert state.shift_overrides(T0 + DAY) == (late,)
    assert state.remove_shift_override("late", "wang", T0)
    assert not state.remove_shift_override("late", "wang", T0)
    assert state.shift_overrides(T0) == (soon,)
    assert events(state)[-1] is AuditEvent.SHIFT_OVERRIDE_REMOVED
    assert state.audit()[0].detail["person"] == "chen"


def test_the_calendar_of_a_schedule_is_replaced(state: StateStore) -> None:
    state.save_calendar(StoredCalendar("model", "BEGIN:VCALENDAR", T0))
    failed = StoredCalendar("model", "BEGIN:VCALENDAR", T0, "status 404")
    state.save_calendar(failed)
    never = StoredCalendar("hardware", "", None, "the server did not respond")
    state.save_calendar(never)
    assert state.calendars() == (never, failed)


def press(nonce: str, *incidents: str, **fields: Any) -> ButtonPress:
    used = AuditRecord(T0, AuditEvent.BUTTON_USED, "inc-1", "acknowledge", by="li")
    return ButtonPress(nonce, "li", T0, incidents, audit=(used,), **fields)


def test_a_button_acts_once_whoever_comes_first(state: StateStore) -> None:
    open_incident(state)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: state.press_button(press("n1", "inc-1")), range(8)))
    assert sorted(results) == [PressResult.DONE] + [PressResult.USED] * 7
    assert events(state) == [AuditEvent.ACKNOWLEDGED, AuditEvent.BUTTON_USED]
    assert state.press_button(press("n2", "inc-1")) is PressResult.DONE


def test_a_press_that_is_not_possible_changes_nothing_and_leaves_the_button_unused(state: StateStore) -> None:
    assert state.press_button(press("n1", "inc-1")) is PressResult.NOT_POSSIBLE
    assert state.press_button(press("n1", approves="a1")) is PressResult.NOT_POSSIBLE
    assert state.press_button(press("n1")) is PressResult.NOT_POSSIBLE
    assert events(state) == []
    open_incident(state)
    assert state.press_button(press("n1", "unknown", "inc-1")) is PressResult.DONE


def test_all_changes_of_a_press_count_together(state: StateStore) -> None:
    open_incident(state)
    silence = Silence("s1", "gpu-lost", GPU, T0 + DAY, "li", "inc-1")
    request = note(0, kind=NoteKind.ESCALATION)
    assert not state.button_used("n1")
    assert state.press_button(press("n1", notes=(request,), silences=(silence,))) is PressResult.DONE
    assert state.button_used("n1")
    assert state.notes(["inc-1"]) == (request,)
    assert state.silences(T0) == (silence,)
    assert events(state) == [AuditEvent.ESCALATION_REQUESTED, AuditEvent.BUTTON_USED]


@pytest.mark.parametrize("table", ["silence", "audit"])
def test_a_press_that_fails_half_way_leaves_the_button_unused(tmp_path: Path, table: str) -> None:
    """The file refuses a row of the press, as a full disk does, and accepts it later."""
    url = urls_of(f"sqlite:///{tmp_path}/o.db")[0]
    silence = Silence("s1", "gpu-lost", GPU, T0 + DAY, "li", "inc-1")
    with closing(open_state(url)) as state, closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        open_incident(state)
        file.execute(f"CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        with pytest.raises(StoreError):
            state.press_button(press("n1", "inc-1", silences=(silence,)))
        found = state.incident("inc-1")
        assert found is not None
        assert found.acknowledged_at is None
        file.execute("DROP TRIGGER full")
        assert state.press_button(press("n1", "inc-1", silences=(silence,))) is PressResult.DONE
