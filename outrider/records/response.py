"""How people respond to an incident: comments, assignments, requests to escalate, and follow-ups after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Protocol

from outrider.model import EntityRef
from outrider.wire.cursors import Position

MOST_TEXT = 2000  # characters of a comment or follow-up


class NoteKind(StrEnum):
    """What a person added to an incident."""

    COMMENT = "comment"
    ASSIGNMENT = "assignment"
    ESCALATION = "escalation"


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """An entry of a person. ``to`` is the person to whom an incident is assigned; empty: to nobody any more."""

    id: str
    incident: str
    kind: NoteKind
    by: str
    at: datetime
    text: str = ""
    to: str = ""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Work that remains after an incident. ``fault`` and ``entity`` are its suspected cause, None if unknown."""

    id: str
    incident: str
    text: str
    owner: str
    due: date
    by: str
    at: datetime
    fault: str | None = None
    entity: EntityRef | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None

    def overdue(self, now: datetime) -> bool:
        """True if it is open after its due date, which ends at midnight UTC."""
        return self.closed_at is None and now.date() > self.due


class ResponseReader(Protocol):
    """Responses of people, read side."""

    def notes(self, incidents: Collection[str]) -> tuple[IncidentNote, ...]:
        """Entries of these incidents, oldest first."""
        ...

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
        ...

    def follow_up(self, follow_up_id: str) -> FollowUp | None:
        """A follow-up; None if unknown."""
        ...


class ResponseStore(ResponseReader, Protocol):
    """Responses of people, write side."""

    def add_note(self, note: IncidentNote) -> bool:
        """Adds an entry, with audit; False if its incident is unknown. An entry with a known id stays unchanged."""
        ...

    def save_follow_up(self, follow_up: FollowUp, by: str, now: datetime) -> None:
        """Writes a follow-up, or its new state, with audit."""
        ...
