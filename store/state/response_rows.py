"""Responses of people and parts of on-call schedules as rows, with the audit records of their changes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import rfc3339
from outrider.records.on_call import ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, IncidentNote, NoteKind
from store.schema import json_codec
from store.schema.metadata import micros
from store.state.state_rows import maybe_micros

_NOTE_EVENTS = {
    NoteKind.COMMENT: AuditEvent.INCIDENT_COMMENTED,
    NoteKind.ASSIGNMENT: AuditEvent.INCIDENT_ASSIGNED,
    NoteKind.ESCALATION: AuditEvent.ESCALATION_REQUESTED,
}


def of_note(note: IncidentNote) -> dict[str, Any]:
    """Columns of table ``incident_note``."""
    return {
        "id": note.id,
        "incident": note.incident,
        "kind": note.kind.value,
        "at_us": micros(note.at),
        "by": note.by,
        "body": json_codec.dumps(note),
    }


def of_follow_up(follow_up: FollowUp) -> dict[str, Any]:
    """Columns of table ``follow_up``."""
    return {
        "id": follow_up.id,
        "incident": follow_up.incident,
        "owner": follow_up.owner,
        "due": follow_up.due.isoformat(),
        "at_us": micros(follow_up.at),
        "closed_at_us": maybe_micros(follow_up.closed_at),
        "fault": follow_up.fault,
        "entity": follow_up.entity.key if follow_up.entity else None,
        "body": json_codec.dumps(follow_up),
    }


def of_override(override: ShiftOverride) -> dict[str, Any]:
    """Columns of table ``shift_override``."""
    return {
        "id": override.id,
        "schedule": override.schedule,
        "person": override.person,
        "start_us": micros(override.start),
        "end_us": micros(override.end),
        "body": json_codec.dumps(override),
    }


def of_calendar(calendar: StoredCalendar) -> dict[str, Any]:
    """Columns of table ``calendar``."""
    return {
        "schedule": calendar.schedule,
        "read_at_us": maybe_micros(calendar.read_at),
        "error": calendar.error,
        "body": json_codec.dumps(calendar),
    }


def note_audit(note: IncidentNote) -> AuditRecord:
    """The audit record of an entry; the text itself is in the entry."""
    detail = {"note": note.id, **({"to": note.to} if note.to else {})}
    event = _NOTE_EVENTS[note.kind]
    return AuditRecord(note.at, event, note.incident, event.value, by=note.by, detail=detail)


def follow_up_audit(follow_up: FollowUp, before: FollowUp | None, by: str, now: datetime) -> AuditRecord:
    """The audit record of a new, changed or closed follow-up."""
    if before is None:
        event = AuditEvent.FOLLOW_UP_ADDED
    elif before.closed_at is None and follow_up.closed_at is not None:
        event = AuditEvent.FOLLOW_UP_CLOSED
    else:
        event = AuditEvent.FOLLOW_UP_CHANGED
    detail = {"incident": follow_up.incident, "owner": follow_up.owner, "due": follow_up.due.isoformat()}
    return AuditRecord(now, event, follow_up.id, event.value, by=by, detail=detail)


def override_audit(override: ShiftOverride, event: AuditEvent, by: str, now: datetime) -> AuditRecord:
    """The audit record of a new or removed override."""
    detail = {
        "schedule": override.schedule,
        "person": override.person,
        "from": rfc3339(override.start),
        "to": rfc3339(override.end),
    }
    return AuditRecord(now, event, override.id, event.value, by=by, detail=detail)
