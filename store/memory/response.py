"""Responses of people and on-call schedules in memory: parts of the state store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from threading import RLock

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import Incident
from outrider.records.on_call import ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, IncidentNote
from outrider.wire.cursors import Position
from store.state import keyset_pagination, response_rows


class MemoryResponses:
    """Implements the ports of ``outrider.records.response`` and ``outrider.records.on_call``."""

    _lock: RLock
    _incidents: dict[str, Incident]
    _audit: list[AuditRecord]

    def __init__(self) -> None:
        """Starts empty."""
        self._notes: dict[str, IncidentNote] = {}
        self._follow_ups: dict[str, FollowUp] = {}
        self._overrides: dict[str, ShiftOverride] = {}
        self._calendars: dict[str, StoredCalendar] = {}
        self._buttons_used: set[str] = set()

    def _append(self, records: Sequence[AuditRecord]) -> None:
        first = len(self._audit) + 1
        self._audit.extend(replace(record, id=number) for number, record in enumerate(records, first))

    def notes(self, incidents: Collection[str]) -> tuple[IncidentNote, ...]:
        """Entries of these incidents, oldest first."""
        found = [note for note in list(self._notes.values()) if note.incident in incidents]
        return tuple(sorted(found, key=lambda note: (note.at, note.id)))

    def add_note(self, note: IncidentNote) -> bool:
        """Adds an entry, with audit; False if its incident is unknown. An entry with a known id stays unchanged."""
        with self._lock:
            if note.incident not in self._incidents:
                return False
            if note.id not in self._notes:
                self._notes[note.id] = note
                self._append([response_rows.note_audit(note)])
            return True

    def follow_ups(
        self,
        *,
        open_only: bool = False,
        incident: str | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[FollowUp, ...]:
        """Follow-ups, newest first. ``since`` keeps those open at or after that time."""
        chosen = [
            item
            for item in list(self._follow_ups.values())
            if (not open_only or item.closed_at is None)
            and (incident is None or item.incident == incident)
            and (since is None or item.closed_at is None or item.closed_at >= since)
        ]
        return keyset_pagination.page(chosen, after, limit)

    def follow_up(self, follow_up_id: str) -> FollowUp | None:
        """A follow-up; None if unknown."""
        return self._follow_ups.get(follow_up_id)

    def save_follow_up(self, follow_up: FollowUp, by: str, now: datetime) -> None:
        """Writes a follow-up, or its new state, with audit."""
        with self._lock:
            before = self._follow_ups.get(follow_up.id)
            if before != follow_up:
                self._follow_ups[follow_up.id] = follow_up
                self._append([response_rows.follow_up_audit(follow_up, before, by, now)])

    def shift_overrides(self, since: datetime) -> tuple[ShiftOverride, ...]:
        """Overrides that end after a time, by their start."""
        found = [item for item in list(self._overrides.values()) if item.end > since]
        return tuple(sorted(found, key=lambda item: (item.start, item.id)))

    def add_shift_override(self, override: ShiftOverride) -> None:
        """Adds an override, with audit."""
        with self._lock:
            self._overrides[override.id] = override
            event = AuditEvent.SHIFT_OVERRIDDEN
            self._append([response_rows.override_audit(override, event, override.by, override.at)])

    def remove_shift_override(self, override_id: str, by: str, now: datetime) -> bool:
        """Removes an override, with audit; False if unknown."""
        with self._lock:
            override = self._overrides.pop(override_id, None)
            if override is None:
                return False
            event = AuditEvent.SHIFT_OVERRIDE_REMOVED
            self._append([response_rows.override_audit(override, event, by, now)])
            return True

    def calendars(self) -> tuple[StoredCalendar, ...]:
        """The calendar of each schedule that imports one, by schedule."""
        return tuple(self._calendars[name] for name in sorted(self._calendars))

    def button_used(self, nonce: str) -> bool:
        """True if a button was used."""
        return nonce in self._buttons_used

    def save_calendar(self, calendar: StoredCalendar) -> None:
        """Replaces the calendar of a schedule."""
        with self._lock:
            self._calendars[calendar.schedule] = calendar
