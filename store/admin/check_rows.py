"""Invariants of all other rows: each can be read, and its record parsed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
import zstandard

from outrider.audit import AuditRecord
from outrider.errors import StoreDamagedError, StoreError
from outrider.model import Action, Alert, Calibration, CycleRecord, Event, Incident, Message, Plan, RemediationSession
from outrider.ports import Silence
from outrider.records.change_log import Change, ChangeEnd, Startup
from outrider.records.drill import Drill
from outrider.records.feedback import Feedback
from outrider.records.on_call import ShiftOverride, StoredCalendar
from outrider.records.received_alerts import ReceivedAlert
from outrider.records.response import FollowUp, IncidentNote
from outrider.text.i18n import fill
from store.admin import introspection
from store.schema import json_codec, metadata
from store.sql.database import Database
from store.state import state_rows

RECORDS: Final[dict[str, Any]] = {
    "alert": Alert,
    "incident": Incident,
    "action": Action,
    "session": RemediationSession,
    "message": Message,
    "audit": AuditRecord,
    "cycle": CycleRecord,
    "silence": Silence,
    "drill": Drill,
    "feedback": Feedback,
    "incident_note": IncidentNote,
    "follow_up": FollowUp,
    "shift_override": ShiftOverride,
    "calendar": StoredCalendar,
    "plan": Plan,
    "change": Change,
    "change_end": ChangeEnd,
    "received_alert": ReceivedAlert,
    "startup": Startup,
    "posted": Event,
    "event": Event,
    "baseline": Calibration,
    "load_test": Calibration,
}
"""The type of the ``body`` column of a table."""
_DOCUMENTS: Final[dict[str, Callable[[bytes], Any]]] = {
    "topology": state_rows.unpack_topology,
    "topology_at": json.loads,
    "detector": state_rows.unpack_state,
    "standings": state_rows.unpack_statuses,
    "paper": json.loads,
}
_UNREADABLE = (StoreError, ValueError, TypeError, KeyError, OSError, zstandard.ZstdError)

AddProblem = Callable[..., None]


def check(
    database: Database,
    name: metadata.Database,
    *,
    deep: bool,
    add_problem: AddProblem,
    progress: Callable[[float], None],
) -> None:
    """Reads every row of every table but the blocks and checks its record. ``deep`` parses every field.

    An unreadable table does not stop the check of the next one.
    """
    with database.reading() as connection:
        result = [table for table in introspection.of(connection, name) if table.name != "block"]
    for index, table in enumerate(result):
        try:
            with database.reading() as connection:
                _table(connection, table, add_problem, deep=deep)
        except StoreDamagedError as error:
            add_problem(f"Table {table.name}: {error.message}", error.hint)
        progress((index + 1) / len(result))


def _table(connection: sa.Connection, table: sa.Table, add_problem: AddProblem, *, deep: bool) -> None:
    keys = [column.name for column in table.primary_key]
    bad, first = 0, ""
    for part in introspection.rows(connection, table):
        for row in part:
            problem = _problem(table.name, row, deep=deep)
            if problem:
                bad += 1
                first = first or f"{', '.join(str(getattr(row, key)) for key in keys)}: {problem}"
    if bad:
        text = "Table {table}: {n} [row|rows] cannot be read, the first is {first}"
        add_problem(fill(text, table=table.name, n=bad, first=first))


def _problem(table: str, row: Any, *, deep: bool) -> str | None:
    fields = row._mapping  # noqa: SLF001 - its public name
    try:
        if "body" in fields:
            kind = RECORDS.get(table)
            if deep and kind is not None:
                json_codec.loads(kind, row.body)
            else:
                json.loads(row.body)
        elif deep and table == "document":
            _DOCUMENTS.get(row.area, bytes)(row.payload)
    except _UNREADABLE as error:
        return str(error)
    return None
