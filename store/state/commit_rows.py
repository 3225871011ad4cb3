"""Rows of a cycle's commit: packed before the transaction, compared inside it, written only if they differ.

A fleet with many faults has thousands of alerts that are unchanged since the last cycle. Reading them in batches and
writing only changes takes milliseconds. One statement per alert takes seconds and blocks every other writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from outrider.model import Action, Alert, AlertState, Incident
from outrider.ports import CycleCommit
from store.schema import json_codec, metadata
from store.schema.column_types import Key
from store.schema.metadata import micros
from store.sql.backend import insert, put
from store.state import state_rows

_AT_ONCE: Final = 500  # keys per condition: SQLite allows 32,766 parameters
Row = Mapping[str, Any]
Occurrence = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CommitRows:
    """Rows of a commit by key; of two with the same key the later one wins."""

    alerts: Mapping[Occurrence, tuple[Alert, Row]]
    incidents: Mapping[str, tuple[Incident, Row]]
    actions: Mapping[str, tuple[Action, Row]]
    sessions: Sequence[Row]
    messages: Sequence[Row]

    @classmethod
    def of(cls, commit: CycleCommit) -> CommitRows:
        """Packs the rows. Takes no lock."""
        return cls(
            {
                (_fit(metadata.alert.c.fingerprint, alert.fingerprint), micros(alert.starts_at)): (
                    alert,
                    state_rows.of_alert(alert),
                )
                for alert in commit.alerts
            },
            {
                _fit(metadata.incident.c.id, incident.id): (incident, state_rows.of_incident(incident))
                for incident in commit.incidents
            },
            {
                _fit(metadata.action.c.id, action.id): (action, state_rows.of_action(action))
                for action in commit.actions
            },
            list({session.id: state_rows.of_session(session) for session in commit.sessions}.values()),
            [state_rows.of_message(message) for message in commit.messages],
        )

    def write(self, connection: sa.Connection) -> None:
        """Writes the rows that differ from the stored ones, by the merge rules of ``state_rows``."""
        _put(connection, metadata.alert, list(self._alerts(connection)))
        _put(connection, metadata.incident, list(self._incidents(connection)))
        _put(connection, metadata.session, self.sessions)
        self._write_actions(connection)
        if self.messages:
            connection.execute(insert(connection, metadata.message).on_conflict_do_nothing(), list(self.messages))

    def _alerts(self, connection: sa.Connection) -> Iterator[Row]:
        table = metadata.alert
        key = sa.tuple_(table.c.fingerprint, table.c.starts_at_us)
        query = sa.select(table.c.fingerprint, table.c.starts_at_us, table.c.state, table.c.body)
        stored = {
            (row.fingerprint, row.starts_at_us): row
            for part in _parts(self.alerts)
            for row in connection.execute(query.where(key.in_(part)))
        }
        for occurrence, (alert, row) in self.alerts.items():
            match = stored.get(occurrence)
            if match is None:
                yield row
            elif match.body != row["body"]:
                ended = match.state == AlertState.RESOLVED.value  # the others were not resolved manually
                kept = state_rows.keep_hand(json_codec.loads(Alert, match.body), alert) if ended else alert
                if kept is alert:
                    yield row

    def _incidents(self, connection: sa.Connection) -> Iterator[Row]:
        stored = _stored(connection, metadata.incident, self.incidents)
        for number, (incident, row) in self.incidents.items():
            body = stored.get(number)
            if body is None:
                yield row
            elif body != row["body"]:
                kept = state_rows.keep_acknowledgement(json_codec.loads(Incident, body), incident)
                changed = row if kept is incident else state_rows.of_incident(kept)
                if changed["body"] != body:
                    yield changed

    def _write_actions(self, connection: sa.Connection) -> None:
        table = metadata.action
        stored = _stored(connection, table, self.actions)
        new = [row for number, (_, row) in self.actions.items() if number not in stored]
        if new:
            connection.execute(sa.insert(table), new)
        for number, body in stored.items():
            action, row = self.actions[number]
            if body != row["body"] and state_rows.cancels(json_codec.loads(Action, body), action):
                connection.execute(sa.update(table).where(table.c.id == number).values(row))


def _stored(connection: sa.Connection, table: sa.Table, ids: Iterable[str]) -> dict[str, str]:
    query = sa.select(table.c.id, table.c.body)
    return {row.id: row.body for part in _parts(ids) for row in connection.execute(query.where(table.c.id.in_(part)))}


def _fit(column: sa.Column[str], key: str) -> str:
    """The key as stored in the column."""
    return column.type.process_bind_param(key, None) or "" if isinstance(column.type, Key) else key


def _put(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        put(connection, table, *rows)


def _parts(keys: Iterable[Any]) -> Iterator[list[Any]]:
    listed = list(keys)
    for first in range(0, len(listed), _AT_ONCE):
        yield listed[first : first + _AT_ONCE]
