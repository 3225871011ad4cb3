"""Responses of people and on-call schedules on SQLite and PostgreSQL: parts of the state store."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from outrider.audit import AuditEvent
from outrider.records.on_call import ButtonPress, PressResult, ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, IncidentNote
from outrider.wire.cursors import Position
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import added, put
from store.sql.database import Database
from store.state import audit_rows, keyset_pagination, operator_rows, response_rows

T = TypeVar("T")
_IDS_AT_ONCE = 500


class SqlResponseReader:
    """Reads rows of one database. Each call reads one snapshot."""

    def __init__(self, database: Database) -> None:
        """``database`` is upgraded."""
        self._database = database

    def _read(self, kind: type[T], query: sa.Select[Any]) -> tuple[T, ...]:
        """Decodes the ``body`` of every row. Rows are fetched first, to release the connection early."""
        with self._database.reading() as connection:
            bodies = [row.body for row in connection.execute(query)]
        return tuple(json_codec.loads(kind, body) for body in bodies)

    def notes(self, incidents: Collection[str]) -> tuple[IncidentNote, ...]:
        """Entries of these incidents, oldest first."""
        table, ids = metadata.incident_note, sorted(incidents)
        found: list[IncidentNote] = []
        for index in range(0, len(ids), _IDS_AT_ONCE):
            query = sa.select(table.c.body).where(table.c.incident.in_(ids[index : index + _IDS_AT_ONCE]))
            found += self._read(IncidentNote, query)
        return tuple(sorted(found, key=lambda note: (note.at, note.id)))

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
        table = metadata.follow_up
        query = sa.select(table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        if open_only:
            query = query.where(table.c.closed_at_us.is_(None))
        if incident is not None:
            query = query.where(table.c.incident == incident)
        if since is not None:
            query = query.where(table.c.closed_at_us.is_(None) | (table.c.closed_at_us >= micros(since)))
        return self._read(FollowUp, keyset_pagination.beyond(query, table.c.at_us, table.c.id, after))

    def follow_up(self, follow_up_id: str) -> FollowUp | None:
        """A follow-up; None if unknown."""
        table = metadata.follow_up
        return next(iter(self._read(FollowUp, sa.select(table.c.body).where(table.c.id == follow_up_id))), None)

    def shift_overrides(self, since: datetime) -> tuple[ShiftOverride, ...]:
        """Overrides that end after a time, by their start."""
        table = metadata.shift_override
        query = sa.select(table.c.body).where(table.c.end_us > micros(since))
        return self._read(ShiftOverride, query.order_by(table.c.start_us, table.c.id))

    def calendars(self) -> tuple[StoredCalendar, ...]:
        """The calendar of each schedule that imports one, by schedule."""
        table = metadata.calendar
        return self._read(StoredCalendar, sa.select(table.c.body).order_by(table.c.schedule))


class SqlResponseWriter:
    """Writes rows of one database in short transactions, each with its audit record."""

    _database: Database

    def add_note(self, note: IncidentNote) -> bool:
        """Adds an entry, with audit; False if its incident is unknown. An entry with a known id stays unchanged."""
        with self._database.writing() as connection:
            return operator_rows.add_note(connection, note)

    def save_follow_up(self, follow_up: FollowUp, by: str, now: datetime) -> None:
        """Writes a follow-up, or its new state, with audit."""
        table = metadata.follow_up
        with self._database.writing() as connection:
            body = connection.execute(sa.select(table.c.body).where(table.c.id == follow_up.id)).scalar()
            before = None if body is None else json_codec.loads(FollowUp, body)
            if before == follow_up:
                return
            put(connection, table, response_rows.of_follow_up(follow_up))
            audit_rows.append(connection, [response_rows.follow_up_audit(follow_up, before, by, now)])

    def add_shift_override(self, override: ShiftOverride) -> None:
        """Adds an override, with audit."""
        with self._database.writing() as connection:
            put(connection, metadata.shift_override, response_rows.of_override(override))
            event = AuditEvent.SHIFT_OVERRIDDEN
            audit_rows.append(connection, [response_rows.override_audit(override, event, override.by, override.at)])

    def remove_shift_override(self, override_id: str, by: str, now: datetime) -> bool:
        """Removes an override, with audit; False if unknown."""
        table = metadata.shift_override
        with self._database.writing() as connection:
            body = connection.execute(sa.select(table.c.body).where(table.c.id == override_id)).scalar()
            if body is None:
                return False
            connection.execute(sa.delete(table).where(table.c.id == override_id))
            override, event = json_codec.loads(ShiftOverride, body), AuditEvent.SHIFT_OVERRIDE_REMOVED
            audit_rows.append(connection, [response_rows.override_audit(override, event, by, now)])
        return True

    def save_calendar(self, calendar: StoredCalendar) -> None:
        """Replaces the calendar of a schedule."""
        with self._database.writing() as connection:
            put(connection, metadata.calendar, response_rows.of_calendar(calendar))

    def button_used(self, nonce: str) -> bool:
        """True if a button was used."""
        table = metadata.button_use
        with self._database.reading() as connection:
            return connection.execute(sa.select(table.c.nonce).where(table.c.nonce == nonce)).first() is not None

    def press_button(self, press: ButtonPress) -> PressResult:
        """Uses a button and makes its changes, in one transaction: all of them count, or none and it stays unused."""
        try:
            with self._database.writing() as connection:
                _press(connection, press)
        except _PressRefused as refused:  # rolled back
            return refused.result
        return PressResult.DONE


class _PressRefused(Exception):  # noqa: N818 - no error: it ends the transaction
    """A press that changes nothing."""

    def __init__(self, result: PressResult) -> None:
        super().__init__(result)
        self.result = result


def _press(connection: sa.Connection, press: ButtonPress) -> None:
    """Raises _PressRefused."""
    if not added(connection, metadata.button_use, {"nonce": press.nonce, "at_us": micros(press.at)}):
        raise _PressRefused(PressResult.USED)
    done = [operator_rows.acknowledge(connection, incident, press.by, press.at) for incident in press.acknowledges]
    if press.approves is not None:
        done.append(operator_rows.decide(connection, press.approves, press.by, press.at, approve=True))
    done += [operator_rows.add_note(connection, note) for note in press.notes]
    for silence in press.silences:
        operator_rows.add_silence(connection, silence)
    if not any(done) and not press.silences:
        raise _PressRefused(PressResult.NOT_POSSIBLE)
    audit_rows.append(connection, press.audit)
