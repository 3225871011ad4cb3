"""Deletes rows of entities that left: first from ``latest_<kind>``, finally from the dictionary.

Pods come and go by the thousand. A row of ``latest_<kind>`` is deleted if no cycle has rewritten it within raw
retention; an entity once no retained value can refer to it. A cut of the tier ``entity`` in table ``kept_from``
notifies every cache of numbers (``store.tsdb.series_dictionary``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import sqlalchemy as sa

from outrider.clock import rfc3339
from outrider.model import EntityKind
from store.schema.metadata import cohort, entity, micros
from store.tsdb import maintenance_queue
from store.tsdb.atomic_replace import Access
from store.tsdb.retention import DeletionReason, Retention, RetentionStats
from store.tsdb.series_dictionary import ENTITY
from store.tsdb.tiers import TIERS

_AT_ONCE: Final = 500  # rows per transaction
_SLACK: Final = timedelta(days=2)  # a rolled-up day is one row, and ``last_seen_us`` may lag


def delete_unused(access: Access, retention: Retention, now: datetime, stats: RetentionStats) -> None:
    """Deletes both in short transactions; a kill after any of them is safe. Raises StoreError."""
    for kind in EntityKind:
        stats.add("latest", DeletionReason.AGE, _latest(access, kind, rfc3339(now - retention.raw)))
    longest = max(retention.hourly_tables, *(retention.of(tier) for tier in TIERS))
    stats.add("entity", DeletionReason.UNUSED, _entities(access, micros(now - longest - _SLACK)))


def _latest(access: Access, kind: EntityKind, before: str) -> int:
    table = sa.table(f"latest_{kind.value}", sa.column("entity_id"), sa.column("at"))
    with access.reading() as connection:
        ids = connection.scalars(sa.select(table.c.entity_id).where(table.c.at < before)).all()
    gone = 0
    for first in range(0, len(ids), _AT_ONCE):
        old = table.c.entity_id.in_(ids[first : first + _AT_ONCE])
        with access.writing() as connection:
            gone += connection.execute(sa.delete(table).where(old, table.c.at < before)).rowcount
    return gone


def _entities(access: Access, before: int) -> int:
    """Deletes unused entities. The newest stays, so that no number is assigned twice."""
    newest = sa.select(sa.func.max(entity.c.id)).scalar_subquery()
    unseen = sa.or_(entity.c.last_seen_us.is_(None), entity.c.last_seen_us < before)
    query = sa.select(entity.c.id).where(unseen, entity.c.id < newest)
    with access.reading() as connection:
        ids = np.array(connection.scalars(query).all(), dtype=np.int32)
        if not ids.size:
            return 0
        last_list = _last_list(connection)
        ids = np.setdiff1d(ids, _listed(connection))
    gone = 0
    for first in range(0, ids.size, _AT_ONCE):
        part = ids[first : first + _AT_ONCE].tolist()
        with access.writing() as connection:
            if _last_list(connection) != last_list:
                break  # a new list may refer to them: the next run checks again
            gone += _delete(connection, part, before)
            access.numbers.clear()  # other processes notice the cut
    return gone


def _delete(connection: sa.Connection, ids: Sequence[int], before: int) -> int:
    unseen = sa.or_(entity.c.last_seen_us.is_(None), entity.c.last_seen_us < before)
    chosen = sa.select(entity.c.id, entity.c.kind).where(entity.c.id.in_(ids), unseen)
    result = {number: EntityKind(kind) for number, kind in connection.execute(chosen)}
    connection.execute(sa.delete(entity).where(entity.c.id.in_(list(result))))
    for kind in set(result.values()):
        cut = maintenance_queue.cuts(connection, kind).get(ENTITY, before - 1)
        maintenance_queue.cut(connection, ENTITY, kind, max(before, cut + 1))
    return len(result)


def _last_list(connection: sa.Connection) -> int | None:
    value: int | None = connection.execute(sa.select(sa.func.max(cohort.c.id))).scalar()
    return value


def _listed(connection: sa.Connection) -> np.ndarray:
    """The entities of every cohort, used or not: a cached number may still be written."""
    result = np.empty(0, dtype=np.int32)
    for packed in connection.scalars(sa.select(cohort.c.members).execution_options(yield_per=200)):
        result = np.union1d(result, np.frombuffer(packed, dtype="<i4"))
    return result
