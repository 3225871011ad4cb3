"""Received alerts in the state database. A delivery is merged in one transaction: it is durable when that ends.

The API process writes and the engine reads; the state database is the one place that both share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from outrider.model import AlertState
from outrider.records.received_alerts import Receipt, ReceivedAlert, ended, merge_all
from outrider.wire.cursors import Position
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import put
from store.sql.database import Database
from store.state import keyset_pagination
from store.state.state_rows import maybe_micros

_AT_ONCE: Final = 500  # keys per condition: SQLite allows 32,766 parameters
_FIRING = AlertState.FIRING.value


class SqlReceivedAlerts:
    """Implements ``outrider.records.received_alerts.ReceivedAlertStore`` for a store with a ``_database``."""

    _database: Database

    def received_alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[ReceivedAlert, ...]:
        """Received alerts with their newest occurrence, newest start first."""
        table = metadata.received_alert
        query = sa.select(table.c.body).order_by(table.c.starts_at_us.desc(), table.c.id).limit(limit)
        if states is not None:
            query = query.where(table.c.state.in_([state.value for state in states]))
        query = keyset_pagination.beyond(query, table.c.starts_at_us, table.c.id, after, rising=True)
        with self._database.reading() as connection:
            bodies = [row.body for row in connection.execute(query)]
        return tuple(json_codec.loads(ReceivedAlert, body) for body in bodies)

    def received_alert(self, received_id: str) -> ReceivedAlert | None:
        """A received alert; None if unknown."""
        with self._database.reading() as connection:
            return next(iter(_stored(connection, [received_id]).values()), None)

    def receive_alerts(self, alerts: Sequence[ReceivedAlert], most_open: int) -> Receipt:
        """Merges delivered alerts in one transaction. Stores nothing if more than ``most_open`` would be firing."""
        with self._database.writing() as connection:
            stored = _stored(connection, {alert.id for alert in alerts})
            for alert in alerts:
                if alert.resolves_group:
                    stored |= _of_group(connection, alert)
            changed, counts = merge_all(stored, alerts)
            more = sum(_is_new(stored.get(name), alert) for name, alert in changed.items())
            if more and _open(connection) + more > most_open:
                return Receipt(full=True)
            _put(connection, changed.values())
        return Receipt(counts)

    def expire_received_alerts(self, now: datetime) -> int:
        """Resolves the alerts that their source stopped repeating; returns their number."""
        table = metadata.received_alert
        query = sa.select(table.c.body).where(table.c.state == _FIRING, table.c.expires_at_us <= micros(now))
        with self._database.reading() as connection:  # mostly there is nothing to do, and no writer has to wait
            if connection.execute(query.limit(1)).first() is None:
                return 0
        with self._database.writing() as connection:
            expired = [json_codec.loads(ReceivedAlert, row.body) for row in connection.execute(query)]
            _put(connection, [ended(alert, now, alert.received_at) for alert in expired])
        return len(expired)


def resolve_by_hand(connection: sa.Connection, received_id: str, now: datetime) -> None:
    """Resolves a received alert whose alert an operator resolved; no effect if there is none."""
    alert = _stored(connection, [received_id]).get(received_id)
    if alert is not None and alert.is_firing:
        _put(connection, [ended(alert, now, now)])


def _is_new(before: ReceivedAlert | None, after: ReceivedAlert) -> bool:
    return after.is_firing and (before is None or not before.is_firing)


def _open(connection: sa.Connection) -> int:
    table = metadata.received_alert
    count = sa.select(sa.func.count()).select_from(table).where(table.c.state == _FIRING)
    return int(connection.execute(count).scalar_one())


def _stored(connection: sa.Connection, ids: Iterable[str]) -> dict[str, ReceivedAlert]:
    table = metadata.received_alert
    query = sa.select(table.c.id, table.c.body)
    rows = (row for part in _parts(ids) for row in connection.execute(query.where(table.c.id.in_(part))))
    return {row.id: json_codec.loads(ReceivedAlert, row.body) for row in rows}


def _of_group(connection: sa.Connection, end: ReceivedAlert) -> dict[str, ReceivedAlert]:
    table = metadata.received_alert
    same = (table.c.state == _FIRING, table.c.source == end.source, table.c.group_key == end.group)
    rows = connection.execute(sa.select(table.c.id, table.c.body).where(*same))
    return {row.id: json_codec.loads(ReceivedAlert, row.body) for row in rows}


def _put(connection: sa.Connection, alerts: Iterable[ReceivedAlert]) -> None:
    rows = [_row(alert) for alert in alerts]
    if rows:
        put(connection, metadata.received_alert, *rows)


def _row(alert: ReceivedAlert) -> Mapping[str, Any]:
    return {
        "id": alert.id,
        "source": alert.source,
        "name": alert.name,
        "state": alert.state.value,
        "group_key": alert.group,
        "starts_at_us": micros(alert.starts_at),
        "ends_at_us": maybe_micros(alert.ends_at),
        "received_at_us": micros(alert.received_at),
        "expires_at_us": maybe_micros(alert.expires_at),
        "body": json_codec.dumps(alert),
    }


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    listed = list(keys)
    for first in range(0, len(listed), _AT_ONCE):
        yield listed[first : first + _AT_ONCE]
