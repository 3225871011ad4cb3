"""Maintenance of a metrics database: compaction, roll-ups, hourly tables, retention, release of free space.

Every step reads and packs outside write transactions and may be interrupted at any point: pending work is a row of
table ``due`` that the step's last transaction deletes. No step blocks a writer longer than a short transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema.metadata import RAW, micros
from store.tsdb import (
    atomic_replace,
    compaction,
    disk_usage,
    hourly,
    maintenance_queue,
    rollup_writer,
    series_gc,
    status,
)
from store.tsdb.atomic_replace import Access
from store.tsdb.blocks import Row, rows_between
from store.tsdb.hourly import HourlyRows
from store.tsdb.maintenance_queue import Mark
from store.tsdb.retention import Retention, RetentionRun, RetentionStats
from store.tsdb.rollup_writer import RollupStep
from store.tsdb.series_dictionary import Names, StaleNumbersError
from store.tsdb.status import LateSamples
from store.tsdb.tiers import DAY, HOUR, ONE_HOUR, TEN_MINUTES, Work

SETTLE = timedelta(minutes=2)  # delay after the end of an hour: late pages still arrive
_ATTEMPTS = 3  # a span that keeps changing is left to the next run
_CELLS_AT_ONCE = 240  # timestamps of a kind that are rolled up together

_FINER = {TEN_MINUTES: RAW, ONE_HOUR: TEN_MINUTES}
_WORK = {TEN_MINUTES: Work.TEN_MINUTES, ONE_HOUR: Work.ONE_HOUR}
_MERGE = {TEN_MINUTES: Work.MERGE_TEN_MINUTES, ONE_HOUR: Work.MERGE_HOURS}


@dataclass(slots=True)
class MaintenanceReport:
    """Result of one run: hours and days by work, rejected values, deleted rows, released bytes.

    ``refused`` counts late values whose span is rolled up and whose finer values are deleted. ``postponed`` counts
    spans that changed during the work. ``complete`` is False if the run was stopped.
    """

    done: dict[Work, int] = field(default_factory=dict)
    refused: int = 0
    postponed: int = 0
    deletions: RetentionStats = field(default_factory=RetentionStats)
    released_bytes: int = 0
    complete: bool = True

    def __bool__(self) -> bool:
        """False if there was nothing to do."""
        deletions = self.deletions.rows or self.deletions.kept
        return bool(self.done or self.refused or self.postponed or deletions or self.released_bytes)


class Maintenance:
    """Consecutive runs on one database; remembers pending spans between runs, so that late values can settle."""

    def __init__(self, access: Access) -> None:
        """Does nothing yet."""
        self._access = access
        self._names = Names()
        self._seen: dict[tuple[Work, EntityKind, int], int] = {}

    def run(
        self, now: datetime, retention: Retention, *, stop: Callable[[], bool] = lambda: False, settle: bool = True
    ) -> MaintenanceReport:
        """Does all due work. ``stop`` is called between steps; ``settle`` False does not wait for late values.

        Raises StoreError.
        """
        result = MaintenanceReport()
        try:
            atomic_replace.purge(self._access)
            settled = micros(now - SETTLE) if settle else micros(now)
            for step in self._steps(settled, micros(now - retention.hourly_tables), result, settle=settle):
                if stop():
                    result.complete = False
                    return result
                self._take(step)
            self._apply_retention(now, retention, result)
            while not stop() and self._shrink(result):
                pass
        except BaseException:
            self._names = Names()
            raise
        return result

    def _take(self, step: Callable[[], None]) -> None:
        """Runs a step. After StaleNumbersError nothing was written, and the step runs again with fresh numbers."""
        try:
            step()
        except StaleNumbersError:
            self._names = Names()
            step()

    def compact(self, before: datetime) -> int:
        """Compacts the whole hours before a time; returns their number."""
        result = MaintenanceReport()
        for mark in self._waiting(Work.COMPACT, micros(before) // HOUR * HOUR):
            self._take(partial(self._compact, mark, result))
        atomic_replace.purge(self._access)
        return result.done.get(Work.COMPACT, 0)

    def _steps(
        self, settled: int, hourly_from: int, report: MaintenanceReport, *, settle: bool
    ) -> Iterator[Callable[[], None]]:
        hours, days = settled // HOUR * HOUR, settled // DAY * DAY
        for mark in self._waiting(Work.COMPACT, hours):
            yield partial(self._compact, mark, report)
        for tier in (TEN_MINUTES, ONE_HOUR):
            for group in self._groups(tier, hours, settle=settle):
                yield partial(self._roll, tier, group, hourly_from, report)
        for tier in (TEN_MINUTES, ONE_HOUR):
            for mark in self._waiting(_MERGE[tier], days):
                yield partial(self._merge, tier, mark, report)

    def _waiting(self, work: Work, before: int) -> list[Mark]:
        with self._access.reading() as connection:
            return maintenance_queue.waiting(connection, work, before)

    def _compact(self, mark: Mark, report: MaintenanceReport) -> None:
        for _ in range(_ATTEMPTS):
            done = compaction.compact(self._access, self._names, mark)
            atomic_replace.purge(self._access)
            if done is not False:
                _count(report, mark.work, int(done is True))
                return
            again = self._again([mark])
            if again is None:
                return
            (mark,) = again
        report.postponed += 1

    def _again(self, group: Sequence[Mark]) -> list[Mark] | None:
        """The current marks of the same spans; None if another process did the work."""
        first = group[0]
        now = {mark.start: mark for mark in self._waiting(first.work, group[-1].start + 1) if mark.kind is first.kind}
        again = [now[mark.start] for mark in group if mark.start in now]
        return again if len(again) == len(group) else None

    # --- roll-ups ---------------------------------------------------------------------------------

    def _groups(self, tier: str, before: int, *, settle: bool) -> Iterator[list[Mark]]:
        """Hours to roll up together: consecutive hours of one day that fit into one matrix.

        Late values whose finer neighbors are deleted wait until two runs see them unchanged: once rolled up, a span
        accepts no more values.
        """
        result = self._waiting(_WORK[tier], before)
        for kind, marks in groupby(result, key=lambda mark: mark.kind):
            with self._access.reading() as connection:
                cut = maintenance_queue.cuts(connection, kind).get(_FINER[tier], -(1 << 62))
            ready = [mark for mark in marks if mark.start >= cut or not settle or self._still(mark)]
            for _, day in groupby(ready, key=lambda mark: (mark.start // DAY, mark.start >= cut)):
                yield from self._neighbors(_FINER[tier], list(day))

    def _still(self, mark: Mark) -> bool:
        key = (mark.work, mark.kind, mark.start)
        if self._seen.get(key) == mark.writes:
            del self._seen[key]
            return True
        self._seen[key] = mark.writes
        return False

    def _neighbors(self, finer: str, day: Sequence[Mark]) -> Iterator[list[Mark]]:
        with self._access.reading() as connection:
            rows = rows_between(connection, day[0].kind, day[0].start, day[-1].start + HOUR, finer)
        most = max(1, _CELLS_AT_ONCE // max(1, max((_instants(rows, mark.start) for mark in day), default=1)))
        group: list[Mark] = []
        for mark in day:
            if group and (mark.start != group[-1].start + HOUR or len(group) >= most):
                yield group
                group = []
            group.append(mark)
        yield group

    def _roll(self, tier: str, group: list[Mark], hourly_from: int, report: MaintenanceReport) -> None:
        for _ in range(_ATTEMPTS):
            if self._rolled(tier, group, hourly_from, report):
                _count(report, _WORK[tier], len(group))
                return
            again = self._again(group)
            if again is None:
                return
            group = again
        report.postponed += len(group)

    def _rolled(self, tier: str, group: Sequence[Mark], hourly_from: int, report: MaintenanceReport) -> bool:
        kind, start, end = group[0].kind, group[0].start, group[-1].start + HOUR
        with self._access.reading() as connection:
            sealed = start < maintenance_queue.cuts(connection, kind).get(_FINER[tier], -(1 << 62))
            finer = self._load(connection, kind, start, end, _FINER[tier])
            existing = self._load(connection, kind, start, end, tier)
            entities = self._names.entities(connection, kind).by_number
        gathered = HourlyRows(kind, max(start, hourly_from), end)
        gathers = tier == ONE_HOUR and not sealed
        work = RollupStep(tier, kind, start, end, finer, existing, sealed, gathered.add if gathers else lambda _: None)
        new = atomic_replace.stage(self._access, work.drafts())
        if gathers:
            self._write_hourly(kind, gathered.rows(entities))

        def then(connection: sa.Connection) -> None:
            maintenance_queue.add(connection, [_MERGE[tier]], kind, [start // DAY * DAY])
            status.refuse(connection, LateSamples.ROLLED_UP_ALREADY, work.refused)
            if tier == TEN_MINUTES:
                maintenance_queue.add(connection, [Work.ONE_HOUR], kind, [mark.start for mark in group])

        swapped = atomic_replace.swap(self._access, new, work.replaced, group, then)
        if swapped:
            report.refused += work.refused
        atomic_replace.purge(self._access)
        return swapped

    def _load(
        self, connection: sa.Connection, kind: EntityKind, start: int, end: int, tier: str
    ) -> compaction.LoadedRows:
        return compaction.load(connection, self._names, kind, rows_between(connection, kind, start, end, tier))

    def _write_hourly(self, kind: EntityKind, hours: Iterator[tuple[int, list[dict[str, object]]]]) -> None:
        for _, rows in hours:
            for part in hourly.parts(rows):
                with self._access.writing() as connection:
                    hourly.write(connection, kind, part)

    def _merge(self, tier: str, mark: Mark, report: MaintenanceReport) -> None:
        """One row per signal and fold for a whole day, once no work is pending for the day."""
        with self._access.reading() as connection:
            held = maintenance_queue.tier_status(connection, mark.kind, mark.start, mark.start + DAY)
            if held.due_ten_minutes or (tier == ONE_HOUR and held.due_hours):
                return
            loaded = self._load(connection, mark.kind, mark.start, mark.start + DAY, tier)
        new = atomic_replace.stage(self._access, rollup_writer.merged(loaded, tier))
        done = atomic_replace.swap(self._access, new, loaded.ids, [mark])
        atomic_replace.purge(self._access)
        if done:
            _count(report, mark.work, 1)
        else:
            report.postponed += 1

    # --- retention and free space -----------------------------------------------------------------

    def _apply_retention(self, now: datetime, retention: Retention, report: MaintenanceReport) -> None:
        run = RetentionRun(self._access, retention, now)
        report.deletions = run.stats
        run.by_age()
        report.deletions.bytes += atomic_replace.purge(self._access)
        run.by_size()
        run.unused_cohorts()
        series_gc.delete_unused(self._access, retention, now, report.deletions)

    def _shrink(self, report: MaintenanceReport) -> bool:
        """Releases some megabytes of the file; False if there is no free space."""
        with self._access.reading() as connection:
            if not disk_usage.shrinks(connection):
                return False
            before = disk_usage.measure(connection)
            if not before.surplus:
                return False
        with self._access.writing() as connection:
            disk_usage.give_back(connection)
        with self._access.reading() as connection:
            freed = before.free - disk_usage.measure(connection).free
        report.released_bytes += max(0, freed)
        return freed > 0


def _instants(rows: Sequence[Row], hour: int) -> int:
    """Approximate number of timestamps of a kind in an hour."""
    tails = sum(row.instants == 1 and hour <= row.start < hour + HOUR for row in rows)
    long = [row for row in rows if row.instants > 1 and row.start < hour + HOUR and row.end >= hour]
    return tails + max((_share(row) for row in long), default=0)


def _share(row: Row) -> int:
    return -(-row.instants * HOUR // max(HOUR, row.end - row.start))


def _count(report: MaintenanceReport, work: Work, count: int) -> None:
    if count:
        report.done[work] = report.done.get(work, 0) + count
