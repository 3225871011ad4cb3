"""Retention by age and by size: oldest raw values first, values without a roll-up last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema.metadata import RAW, block, cohort, due, event, hidden, micros
from store.sql.backend import insert
from store.tsdb import atomic_replace, blocks, disk_usage, hourly, maintenance_queue
from store.tsdb.atomic_replace import Access
from store.tsdb.tiers import HOUR, ONE_HOUR, TEN_MINUTES, TIERS, Work

_SLACK = 0.05  # retention by size frees a margin, so that the next run need not delete again
_ROWS_AT_ONCE = 2000
_COHORTS_AT_ONCE = 200
_NEXT = {RAW: Work.TEN_MINUTES, TEN_MINUTES: Work.ONE_HOUR}


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of each tier, and the maximum size of the metrics database (None: unlimited)."""

    raw: timedelta = timedelta(hours=48)
    ten_minutes: timedelta = timedelta(days=30)
    hours: timedelta = timedelta(days=400)
    hourly_tables: timedelta = timedelta(days=7)
    size_bytes: int | None = None

    def of(self, tier: str) -> timedelta:
        """Retention of a tier."""
        return {RAW: self.raw, TEN_MINUTES: self.ten_minutes, ONE_HOUR: self.hours}[tier]


class DeletionReason(StrEnum):
    """Reason for a deletion, or for keeping values that are due."""

    AGE = "age"
    SIZE = "size"
    SIZE_NOTHING_ELSE_LEFT = "size_nothing_else_left"  # values without a roll-up
    UNUSED = "unused"
    NOT_ROLLED_UP = "not_rolled_up"  # due by age, but kept


@dataclass(slots=True)
class RetentionStats:
    """Deleted rows by (kind of row, reason): tiers, ``hourly``, ``event`` and ``cohort``.

    ``kept`` counts hours held back.
    """

    rows: dict[tuple[str, DeletionReason], int] = field(default_factory=dict)
    bytes: int = 0
    kept: dict[DeletionReason, int] = field(default_factory=dict)

    def add(self, item: str, reason: DeletionReason, rows: int) -> None:
        """Counts deleted rows."""
        if rows:
            self.rows[item, reason] = self.rows.get((item, reason), 0) + rows


class RetentionRun:
    """Deletes what is due in short transactions; a kill after any of them is safe."""

    def __init__(self, access: Access, retention: Retention, now: datetime) -> None:
        """Deletes nothing yet."""
        self._access, self._retention, self._now = access, retention, now
        self.stats = RetentionStats()

    def by_age(self) -> None:
        """Deletes tiers, hourly tables and events beyond their age."""
        for tier in TIERS:
            before = micros(self._now - self._retention.of(tier)) // HOUR * HOUR
            for kind in EntityKind:
                self._cut(tier, kind, self._held_back(tier, kind, before), DeletionReason.AGE)
        hours = micros(self._now - self._retention.hourly_tables)
        for kind in EntityKind:
            self._hourly(kind, hours, DeletionReason.AGE)
        self._events(micros(self._now - self._retention.hours))

    def _events(self, before: int) -> None:
        old = sa.select(event.c.dedup_key).where(event.c.at_us < before)
        while self._any(old):
            with self._access.writing() as connection:
                oldest = old.order_by(event.c.at_us).limit(_ROWS_AT_ONCE).scalar_subquery()
                deleted = connection.execute(sa.delete(event).where(event.c.dedup_key.in_(oldest))).rowcount
            self.stats.add("event", DeletionReason.AGE, int(deleted))

    def unused_cohorts(self) -> None:
        """Deletes entity lists that no row uses. The newest stays, so that no number is assigned twice."""
        used = sa.exists().where(block.c.cohort_id == cohort.c.id)
        newest = sa.select(sa.func.max(cohort.c.id)).scalar_subquery()
        unused = sa.select(cohort.c.id).where(cohort.c.id < newest, ~used)
        with self._access.reading() as connection:
            ids = [row.id for row in connection.execute(unused.limit(_ROWS_AT_ONCE))]
        for first in range(0, len(ids), _COHORTS_AT_ONCE):
            part = ids[first : first + _COHORTS_AT_ONCE]
            with self._access.writing() as connection:
                deleted = connection.execute(sa.delete(cohort).where(cohort.c.id.in_(part), ~used)).rowcount
            self.stats.add("cohort", DeletionReason.UNUSED, int(deleted))

    def by_size(self) -> None:
        """Deletes oldest data first until the limit holds: raw values, hourly tables, 10-minute, 1-hour, others."""
        limit = self._retention.size_bytes
        if limit is None or self._excess(limit) <= 0:
            return
        for tier in (RAW, "hourly", TEN_MINUTES, ONE_HOUR):
            if tier == "hourly":
                self._oldest_hourly(limit)
            else:
                self._oldest(tier, limit, DeletionReason.SIZE)
        self._oldest(RAW, limit, DeletionReason.SIZE_NOTHING_ELSE_LEFT)

    def _excess(self, limit: int, slack: float = 0.0) -> int:
        with self._access.reading() as connection:
            return disk_usage.measure(connection, exact=True).used - int(limit * (1 - slack))

    def _oldest(self, tier: str, limit: int, reason: DeletionReason) -> None:
        """Cuts one tier of all kinds at one time. Rows free less than their size, hence the rounds."""
        newest = micros(self._now) // HOUR * HOUR
        while (excess := self._excess(limit, _SLACK)) > 0:
            before = min(self._instant_of(tier, excess), newest)
            for kind in EntityKind:
                held = before
                if reason is DeletionReason.SIZE:
                    held = self._held_back(tier, kind, before, count_held=False)
                self._cut(tier, kind, held, reason)
            self.stats.bytes += (freed := atomic_replace.purge(self._access))
            if not freed:
                return

    def _instant_of(self, tier: str, excess: int) -> int:
        """The hour before which the oldest rows of a tier hold at least so many bytes."""
        total = at = 0
        with self._access.reading() as connection:
            query = sa.select(block.c.end_us, sa.func.length(block.c.payload)).where(block.c.tier == tier)
            for end, size in connection.execute(query.where(blocks.visible()).order_by(block.c.end_us)):
                at = end
                total += size
                if total >= excess:
                    break
        return (at // HOUR + 1) * HOUR

    def _held_back(self, tier: str, kind: EntityKind, before: int, *, count_held: bool = True) -> int:
        """A time not after the first hour with a pending roll-up, except for hours that are already cut."""
        work = _NEXT.get(tier)
        if work is None:
            return before
        with self._access.reading() as connection:
            start = maintenance_queue.cuts(connection, kind).get(tier, -(1 << 62))
            query = sa.select(sa.func.min(due.c.start_us), sa.func.count()).where(
                due.c.work == work.value, due.c.kind == kind.value, due.c.start_us >= start, due.c.start_us < before
            )
            first, hours = connection.execute(query).one()
        if first is None:
            return before
        if count_held:
            self.stats.kept[DeletionReason.NOT_ROLLED_UP] = self.stats.kept.get(DeletionReason.NOT_ROLLED_UP, 0) + int(
                hours
            )
        return int(first)

    def _cut(self, tier: str, kind: EntityKind, before: int, reason: DeletionReason) -> None:
        """Deletes a kind's rows of a tier that end before a time; late values without a roll-up stay."""
        old = sa.select(block.c.id, block.c.start_us, block.c.end_us).where(
            block.c.tier == tier, block.c.kind == kind.value, block.c.end_us < before, blocks.visible()
        )
        while self._any(old):
            with self._access.writing() as connection:
                known = maintenance_queue.cuts(connection, kind)
                waits = self._late(connection, tier, kind, min(before, known.get(tier, before)), reason)
                rows = connection.execute(old.order_by(block.c.end_us).limit(_ROWS_AT_ONCE)).all()
                deleted = [row.id for row in rows if not _touches(row.start_us, row.end_us, waits)]
                if not deleted:
                    return
                if before > known.get(tier, -(1 << 62)):
                    maintenance_queue.cut(connection, tier, kind, before)
                if reason is DeletionReason.SIZE_NOTHING_ELSE_LEFT:
                    self._never_rolled_up(connection, kind, before)
                connection.execute(insert(connection, hidden), [{"block_id": number} for number in deleted])
            self.stats.add(tier, reason, len(deleted))

    def _any(self, query: sa.Select[Any]) -> bool:
        with self._access.reading() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def _late(
        self, connection: sa.Connection, tier: str, kind: EntityKind, before: int, reason: DeletionReason
    ) -> set[int]:
        work = _NEXT.get(tier)
        if work is None or reason is DeletionReason.SIZE_NOTHING_ELSE_LEFT:
            return set()
        return {mark.start for mark in maintenance_queue.waiting(connection, work, before) if mark.kind is kind}

    def _never_rolled_up(self, connection: sa.Connection, kind: EntityKind, before: int) -> None:
        for work in (Work.COMPACT, Work.TEN_MINUTES):
            maintenance_queue.done(
                connection, [mark for mark in maintenance_queue.waiting(connection, work, before) if mark.kind is kind]
            )

    def _hourly(self, kind: EntityKind, before: int, reason: DeletionReason) -> int:
        total = 0
        while self._any(hourly.older(kind, before)):
            with self._access.writing() as connection:
                total += (deleted := hourly.delete_oldest(connection, kind))
            self.stats.add("hourly", reason, deleted)
        return total

    def _oldest_hourly(self, limit: int) -> None:
        """Deletes hourly tables, one day of all kinds at a time, as long as that frees space."""
        excess = self._excess(limit, _SLACK)
        for before in self._days_of_hourly():
            if excess <= 0:
                return
            if sum(self._hourly(kind, before, DeletionReason.SIZE) for kind in EntityKind):
                left = self._excess(limit, _SLACK)
                if left >= excess:
                    return
                excess = left

    def _days_of_hourly(self) -> Iterator[int]:
        longest = self._retention.hourly_tables // timedelta(hours=1)
        newest = micros(self._now) // HOUR * HOUR
        yield from (newest - hours * HOUR for hours in range(longest, 0, -24))


def _touches(start: int, end: int, hours: set[int]) -> bool:
    return any(at in hours for at in range(start // HOUR * HOUR, end + 1, HOUR)) if hours else False


def summary(rows: Mapping[tuple[str, DeletionReason], int]) -> dict[str, int]:
    """Row counts for a log line, such as ``raw_age``."""
    return {f"{item}_{reason}": count for (item, reason), count in sorted(rows.items())}
