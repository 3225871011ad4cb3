"""Pending maintenance and retention cuts, updated in the transactions that write the values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema.metadata import RAW, block, due, kept_from
from store.sql.backend import insert, put
from store.tsdb.tiers import HOUR, ONE_HOUR, TEN_MINUTES, TierStatus, Work


@dataclass(frozen=True, slots=True)
class Mark:
    """A span with pending work, and the number of writes since the work was last done."""

    work: Work
    kind: EntityKind
    start: int
    writes: int


def add(connection: sa.Connection, works: Iterable[Work], kind: EntityKind, starts: Collection[int]) -> None:
    """Enqueues spans; counts another write for those already enqueued."""
    rows = [{"work": work.value, "kind": kind.value, "start_us": at, "writes": 1} for work in works for at in starts]
    if rows:
        key = [due.c.work, due.c.kind, due.c.start_us]
        raised = {"writes": due.c.writes + 1}
        connection.execute(insert(connection, due).on_conflict_do_update(index_elements=key, set_=raised), rows)


def written(connection: sa.Connection, kind: EntityKind, instants: Iterable[int]) -> None:
    """Enqueues the hours of raw values for compaction and for the first roll-up."""
    add(connection, (Work.COMPACT, Work.TEN_MINUTES), kind, sorted({at // HOUR * HOUR for at in instants}))


def waiting(connection: sa.Connection, work: Work, before: int) -> list[Mark]:
    """Pending spans that start before a time, oldest first."""
    query = sa.select(due.c.kind, due.c.start_us, due.c.writes).where(due.c.work == work.value)
    rows = connection.execute(query.where(due.c.start_us < before).order_by(due.c.kind, due.c.start_us))
    return [Mark(work, EntityKind(kind), start, writes) for kind, start, writes in rows]


def unchanged(connection: sa.Connection, marks: Sequence[Mark]) -> bool:
    """True if no span was written to and no work was done meanwhile."""
    return all(connection.execute(sa.select(due.c.writes).where(_is(mark))).scalar() == mark.writes for mark in marks)


def done(connection: sa.Connection, marks: Sequence[Mark]) -> None:
    """Removes the marks."""
    for mark in marks:
        connection.execute(sa.delete(due).where(_is(mark)))


def _is(mark: Mark) -> sa.ColumnElement[bool]:
    return sa.and_(due.c.work == mark.work.value, due.c.kind == mark.kind.value, due.c.start_us == mark.start)


def tier_status(connection: sa.Connection, kind: EntityKind, start: int, end: int) -> TierStatus:
    """State of a kind's tiers, for a read of [start, end)."""
    query = sa.select(due.c.work, due.c.start_us).where(
        due.c.kind == kind.value, due.c.work.in_([Work.TEN_MINUTES.value, Work.ONE_HOUR.value])
    )
    result: dict[str, list[int]] = {Work.TEN_MINUTES.value: [], Work.ONE_HOUR.value: []}
    for work, at in connection.execute(query.where(due.c.start_us > start - HOUR, due.c.start_us < end)):
        result[work].append(at)
    due_ten, cut = result[Work.TEN_MINUTES.value], cuts(connection, kind)
    late = [at for at in due_ten if at < cut.get(RAW, at)]
    return TierStatus(due_ten, result[Work.ONE_HOUR.value], cut, _without_roll_ups(connection, kind, late))


def _without_roll_ups(connection: sa.Connection, kind: EntityKind, hours: Sequence[int]) -> list[int]:
    """The hours without any roll-up."""
    if not hours:
        return []
    query = sa.select(block.c.start_us, block.c.end_us).where(
        block.c.kind == kind.value, block.c.tier.in_([TEN_MINUTES, ONE_HOUR]),
        block.c.end_us >= min(hours), block.c.start_us < max(hours) + HOUR,
    )  # fmt: skip
    rolled = {hour for start, end in connection.execute(query) for hour in range(start // HOUR * HOUR, end + 1, HOUR)}
    return [hour for hour in hours if hour not in rolled]


def cuts(connection: sa.Connection, kind: EntityKind) -> dict[str, int]:
    """Retention cut of each tier of a kind."""
    query = sa.select(kept_from.c.tier, kept_from.c.start_us).where(kept_from.c.kind == kind.value)
    result: dict[str, int] = {row.tier: row.start_us for row in connection.execute(query)}
    return result


def cut(connection: sa.Connection, tier: str, kind: EntityKind, at: int) -> None:
    """Records that a tier has no values before a time."""
    put(connection, kept_from, {"tier": tier, "kind": kind.value, "start_us": at})
