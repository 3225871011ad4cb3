"""What is stored about on-call schedules: overrides, imported calendars, and the use of buttons in messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from outrider.audit import AuditRecord
from outrider.records.response import IncidentNote
from outrider.records.silences import Silence


@dataclass(frozen=True, slots=True)
class ShiftOverride:
    """A person who is on call instead of the scheduled one. Of two at the same time the later entry counts."""

    id: str
    schedule: str
    person: str
    start: datetime
    end: datetime
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredCalendar:
    """The last readable text of a schedule's calendar.

    ``error`` is that of a later attempt, empty if it succeeded. Without a readable text ``read_at`` is None.
    """

    schedule: str
    text: str
    read_at: datetime | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What a pressed button changes, with its audit. ``acknowledges`` are incidents, ``approves`` is an action."""

    nonce: str
    by: str
    at: datetime
    acknowledges: tuple[str, ...] = ()
    approves: str | None = None
    notes: tuple[IncidentNote, ...] = ()
    silences: tuple[Silence, ...] = ()
    audit: tuple[AuditRecord, ...] = ()


class PressResult(StrEnum):
    """What became of a press. Only a done one uses the button up."""

    DONE = "done"
    USED = "used"
    NOT_POSSIBLE = "not_possible"


class OnCallReader(Protocol):
    """Stored parts of on-call schedules, read side."""

    def shift_overrides(self, since: datetime) -> tuple[ShiftOverride, ...]:
        """Overrides that end after a time, by their start."""
        ...

    def calendars(self) -> tuple[StoredCalendar, ...]:
        """The calendar of each schedule that imports one, by schedule."""
        ...


class OnCallStore(OnCallReader, Protocol):
    """Stored parts of on-call schedules and buttons, write side."""

    def add_shift_override(self, override: ShiftOverride) -> None:
        """Adds an override, with audit."""
        ...

    def remove_shift_override(self, override_id: str, by: str, now: datetime) -> bool:
        """Removes an override, with audit; False if unknown."""
        ...

    def save_calendar(self, calendar: StoredCalendar) -> None:
        """Replaces the calendar of a schedule."""
        ...

    def button_used(self, nonce: str) -> bool:
        """True if a button was used."""
        ...

    def press_button(self, press: ButtonPress) -> PressResult:
        """Uses a button and makes its changes, in one transaction: all of them count, or none and it stays unused.

        NOT_POSSIBLE: none of the incidents is open, or the action does not wait for approval.
        """
        ...
