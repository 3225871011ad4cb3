"""The change log, in the state database and in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from threading import RLock
from typing import Any, Final

import sqlalchemy as sa

from outrider.model import EntityKind, Event
from outrider.records.change_log import Change, ChangeEnd, Startup
from outrider.wire.cursors import Position
from store.migrations.runner import open_upgraded
from store.schema import json_codec, metadata
from store.schema.metadata import instant, micros
from store.sql.backend import added, put
from store.state import keyset_pagination

KEPT_POSTED: Final = timedelta(hours=24)
MOST_POSTED: Final = 20_000  # limit of queued events: a flood cannot fill the disk
_AREA: Final = "paper"


def with_end(change: Change, end: ChangeEnd | None) -> Change:
    """The change with its end."""
    if end is None:
        return change
    return replace(change, ended=end.ended, ended_at=end.at, ended_because=end.because)


def _of_change(change: Change) -> dict[str, Any]:
    own = change.entity.name if change.entity.kind is EntityKind.SERVICE else ""
    return {
        "id": change.id,
        "at_us": micros(change.at),
        "code": change.code,
        "entity": change.entity.key,
        "service": change.service or own,
        "source": change.source,
        "actor": change.actor,
        "body": json_codec.dumps(change),
    }


class SqlChangeLog:
    """Implements ``outrider.records.change_log.ChangeLog``. Short transactions; several processes may use one file."""

    def __init__(self, url: str) -> None:
        """Opens and upgrades the state database; raises StoreError or SchemaTooNewError."""
        self._database = open_upgraded(url, "state")

    def append_changes(self, changes: Sequence[Change]) -> int:
        """Adds changes; a change with a known id stays unchanged."""
        rows = [_of_change(change) for change in changes]
        count = 0
        if rows:
            with self._database.writing() as connection:
                for row in rows:
                    count += added(connection, metadata.change, row)
        return count

    def append_ends(self, ends: Sequence[ChangeEnd]) -> None:
        """Adds ends of changes."""
        rows = [{"change_id": end.change, "at_us": micros(end.at), "body": json_codec.dumps(end)} for end in ends]
        if rows:
            with self._database.writing() as connection:
                connection.execute(sa.insert(metadata.change_end), rows)

    def changes(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Change, ...]:
        """Changes in [since, until) with their ends, newest first."""
        table, ends = metadata.change, metadata.change_end
        query = sa.select(table.c.id, table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(table.c.at_us >= micros(since))
        if until is not None:
            query = query.where(table.c.at_us < micros(until))
        query = keyset_pagination.beyond(query, table.c.at_us, table.c.id, after)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            newest = query.with_only_columns(table.c.id).subquery()
            wanted = sa.select(ends.c.change_id, ends.c.body).where(ends.c.change_id.in_(sa.select(newest.c.id)))
            end_rows = connection.execute(wanted.order_by(ends.c.id)).all()
        end_of = {row.change_id: json_codec.loads(ChangeEnd, row.body) for row in end_rows}
        return tuple(with_end(json_codec.loads(Change, row.body), end_of.get(row.id)) for row in rows)

    def save_startups(self, startups: Sequence[Startup]) -> None:
        """Writes start-ups, replacing those with the same id."""
        rows = [
            {
                "id": startup.id,
                "began_at_us": micros(startup.began_at),
                "gone_at_us": None if startup.gone_at is None else micros(startup.gone_at),
                "body": json_codec.dumps(startup),
            }
            for startup in startups
        ]
        if not rows:
            return
        with self._database.writing() as connection:
            put(connection, metadata.startup, *rows)

    def startups(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Startup, ...]:
        """Start-ups that began at or after a time, newest first."""
        table = metadata.startup
        query = sa.select(table.c.body).order_by(table.c.began_at_us.desc(), table.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(table.c.began_at_us >= micros(since))
        query = keyset_pagination.beyond(query, table.c.began_at_us, table.c.id, after)
        return self._startups(query)

    def placed_at(self, at: datetime) -> tuple[Startup, ...]:
        """The start-ups whose pods existed at a time."""
        table = metadata.startup
        still_running = sa.or_(table.c.gone_at_us.is_(None), table.c.gone_at_us > micros(at))
        query = sa.select(table.c.body).where(table.c.began_at_us <= micros(at), still_running)
        return self._startups(query.order_by(table.c.began_at_us.desc(), table.c.id.desc()))

    def _startups(self, query: sa.Select[Any]) -> tuple[Startup, ...]:
        with self._database.reading() as connection:
            bodies = [row.body for row in connection.execute(query)]
        return tuple(json_codec.loads(Startup, body) for body in bodies)

    def post(self, events: Sequence[Event], now: datetime) -> int:
        """Queues events for the engine. Deletes those older than a day, and the oldest beyond ``MOST_POSTED``."""
        table, count = metadata.posted, 0
        with self._database.writing() as connection:
            for event in events:
                row = {"dedup_key": event.dedup_key, "came_at_us": micros(now), "body": json_codec.dumps(event)}
                count += added(connection, table, row)
            connection.execute(sa.delete(table).where(table.c.came_at_us < micros(now - KEPT_POSTED)))
            newest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
            connection.execute(sa.delete(table).where(table.c.id <= newest - MOST_POSTED))
        return count

    def posted(self, after: int, since: datetime) -> tuple[tuple[int, Event], ...]:
        """Queued events since a time with a number above ``after``, oldest first."""
        table = metadata.posted
        query = sa.select(table.c.id, table.c.body).where(table.c.id > after, table.c.came_at_us >= micros(since))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.id)).all()
        return tuple((row.id, json_codec.loads(Event, row.body)) for row in rows)

    def put_document(self, name: str, document: Mapping[str, Any], at: datetime) -> None:
        """Stores a document for other processes."""
        payload = json_codec.text_of(document).encode()
        row = {"area": _AREA, "name": name, "at_us": micros(at), "payload": payload}
        with self._database.writing() as connection:
            put(connection, metadata.document, row)

    def document(self, name: str) -> tuple[datetime, dict[str, Any]] | None:
        """A stored document with its time."""
        table = metadata.document
        query = sa.select(table.c.at_us, table.c.payload).where(table.c.area == _AREA, table.c.name == name)
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else (instant(row.at_us), json.loads(row.payload))

    @property
    def connections_in_use(self) -> int:
        """Open connections: 0 between calls."""
        return self._database.checked_out

    def close(self) -> None:
        """Releases every connection."""
        self._database.close()


class MemoryChangeLog:
    """Implements ``outrider.records.change_log.ChangeLog``. One process, any number of threads."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = RLock()
        self._changes: dict[str, Change] = {}
        self._ends: dict[str, ChangeEnd] = {}
        self._startups: dict[str, Startup] = {}
        self._posted: dict[str, tuple[int, datetime, Event]] = {}
        self._numbers = 0
        self._documents: dict[str, tuple[datetime, str]] = {}

    def append_changes(self, changes: Sequence[Change]) -> int:
        """Adds changes; a change with a known id stays unchanged."""
        with self._lock:
            before = len(self._changes)
            for change in changes:
                self._changes.setdefault(change.id, change)
            return len(self._changes) - before

    def append_ends(self, ends: Sequence[ChangeEnd]) -> None:
        """Adds ends of changes."""
        with self._lock:
            self._ends.update({end.change: end for end in ends})

    def changes(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Change, ...]:
        """Changes in [since, until) with their ends, newest first."""
        with self._lock:
            match = [
                with_end(change, self._ends.get(change.id))
                for change in self._changes.values()
                if (since is None or change.at >= since) and (until is None or change.at < until)
            ]
        return keyset_pagination.page(match, after, limit)

    def save_startups(self, startups: Sequence[Startup]) -> None:
        """Writes start-ups, replacing those with the same id."""
        with self._lock:
            self._startups.update({startup.id: startup for startup in startups})

    def startups(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Startup, ...]:
        """Start-ups that began at or after a time, newest first."""
        with self._lock:
            result = [startup for startup in self._startups.values() if since is None or startup.began_at >= since]
        return keyset_pagination.page(result, after, limit)

    def placed_at(self, at: datetime) -> tuple[Startup, ...]:
        """The start-ups whose pods existed at a time."""
        with self._lock:
            startups = list(self._startups.values())
        return _newest(
            [
                startup
                for startup in startups
                if startup.began_at <= at and (startup.gone_at is None or startup.gone_at > at)
            ]
        )

    def post(self, events: Sequence[Event], now: datetime) -> int:
        """Queues events for the engine."""
        with self._lock:
            added = 0
            for event in events:
                if event.dedup_key not in self._posted:
                    self._numbers, added = self._numbers + 1, added + 1
                    self._posted[event.dedup_key] = (self._numbers, now, event)
            kept = {
                key: result
                for key, result in self._posted.items()
                if result[1] >= now - KEPT_POSTED and result[0] > self._numbers - MOST_POSTED
            }
            self._posted = kept
            return added

    def posted(self, after: int, since: datetime) -> tuple[tuple[int, Event], ...]:
        """Queued events since a time with a number above ``after``, oldest first."""
        with self._lock:
            result = [(number, event) for number, posted_at, event in self._posted.values() if posted_at >= since]
        return tuple(sorted((item for item in result if item[0] > after), key=lambda item: item[0]))

    def put_document(self, name: str, document: Mapping[str, Any], at: datetime) -> None:
        """Stores a document for other processes."""
        with self._lock:
            self._documents[name] = (at, json.dumps(document, allow_nan=False))

    def document(self, name: str) -> tuple[datetime, dict[str, Any]] | None:
        """A stored document with its time."""
        with self._lock:
            match = self._documents.get(name)
        return None if match is None else (match[0], json.loads(match[1]))

    def close(self) -> None:
        """No resources to release."""


def _newest(startups: Sequence[Startup]) -> tuple[Startup, ...]:
    return tuple(sorted(startups, key=lambda item: (item.began_at, item.id), reverse=True))
