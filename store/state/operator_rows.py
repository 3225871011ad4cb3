"""What people change in the state store: acknowledgements, decisions on actions, entries and silences.

Each function works within the transaction of its caller, so that several changes count together.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from outrider.audit import AuditEvent
from outrider.model import Action, ActionStatus, Incident
from outrider.records.response import IncidentNote
from outrider.records.silences import Silence
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import added, put
from store.state import audit_rows, response_rows, state_rows

T = TypeVar("T")


def stored(connection: sa.Connection, kind: type[T], table: sa.Table, key: str) -> T | None:
    """The value with an id; None if unknown."""
    body = connection.execute(sa.select(table.c.body).where(table.c.id == key)).scalar()
    return None if body is None else json_codec.loads(kind, body)


def acknowledge(connection: sa.Connection, incident_id: str, by: str, now: datetime) -> bool:
    """Acknowledges an open incident, with audit; False if it is unknown or resolved. The first one stays."""
    incident = stored(connection, Incident, metadata.incident, incident_id)
    if incident is None or incident.resolved_at is not None:
        return False
    if incident.acknowledged_at is None:
        incident = replace(incident, acknowledged_at=now, acknowledged_by=by)
        put(connection, metadata.incident, state_rows.of_incident(incident))
        audit_rows.append(connection, [state_rows.operator_audit(AuditEvent.ACKNOWLEDGED, incident_id, by, now)])
    return True


def decide(connection: sa.Connection, action_id: str, by: str, now: datetime, *, approve: bool) -> bool:
    """Approves or rejects a WAITING_APPROVAL action, with audit; False if it is in another status."""
    table = metadata.action
    action = stored(connection, Action, table, action_id)
    if action is None or action.status is not ActionStatus.WAITING_APPROVAL:
        return False
    answer = state_rows.decided(action, by, now, approve=approve)
    if answer == action:
        return True  # the same person again
    connection.execute(sa.update(table).where(table.c.id == action_id).values(state_rows.of_action(answer)))
    event = AuditEvent.ACTION_APPROVED if approve else AuditEvent.ACTION_REJECTED
    audit_rows.append(connection, [state_rows.operator_audit(event, action_id, by, now, answer.reason.value)])
    return True


def add_note(connection: sa.Connection, note: IncidentNote) -> bool:
    """Adds an entry, with audit; False if its incident is unknown. An entry with a known id stays unchanged."""
    incident = sa.select(metadata.incident.c.id).where(metadata.incident.c.id == note.incident)
    if connection.execute(incident).first() is None:
        return False
    if added(connection, metadata.incident_note, response_rows.of_note(note)):
        audit_rows.append(connection, [response_rows.note_audit(note)])
    return True


def add_silence(connection: sa.Connection, silence: Silence) -> None:
    """Adds a silence. The caller audits it."""
    row = {"id": silence.id, "until_us": micros(silence.until), "body": json_codec.dumps(silence)}
    put(connection, metadata.silence, row)
