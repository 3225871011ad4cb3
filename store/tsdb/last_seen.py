"""First and last time of entities, written to their rows every few minutes, not every cycle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema import metadata
from store.tsdb.chunk_codec import Micros
from store.tsdb.cycle_matrix import Ids

EVERY: Final = timedelta(minutes=10)
"""Maximum lag of ``last_seen_us``. The row of a new entity has its time from the start."""

_EVERY = EVERY // timedelta(microseconds=1)
_AT_ONCE = 5_000  # ids per condition: SQLite allows 32,766 parameters


class LastSeen:
    """Entities with values since their rows were last updated.

    Cycles mostly reuse the same array of numbers, so that only a few arrays are kept between updates.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._waiting: dict[EntityKind, dict[int, tuple[Ids, int, int]]] = {}
        self._newest: dict[EntityKind, int] = {}
        self._firsts: set[EntityKind] = set()

    def note(self, kind: EntityKind, entities: Ids, at: int) -> None:
        """Records that entities had values at a time."""
        if at < self._newest.setdefault(kind, at):
            self._firsts.add(kind)  # a late cycle may be the first of an entity
        self._newest[kind] = max(at, self._newest[kind])
        arrays = self._waiting.setdefault(kind, {})
        _, first, last = arrays.get(id(entities), (entities, at, at))
        arrays[id(entities)] = (entities, min(first, at), max(last, at))

    def flush(self, connection: sa.Connection, at: int) -> int:
        """Writes overdue updates of one kind per call; returns the number of entities."""
        for kind, arrays in self._waiting.items():
            if abs(at - min(first for _, first, _ in arrays.values())) >= _EVERY:
                del self._waiting[kind]
                return self._write(connection, kind, list(arrays.values()))
        return 0

    def _write(self, connection: sa.Connection, kind: EntityKind, arrays: list[tuple[Ids, int, int]]) -> int:
        entities, indices = np.unique(np.concatenate([numbers for numbers, _, _ in arrays]), return_inverse=True)
        sizes = [numbers.size for numbers, _, _ in arrays]
        last = np.full(entities.size, np.iinfo(np.int64).min)
        np.maximum.at(last, indices, np.repeat([end for _, _, end in arrays], sizes))
        _put(connection, entities, last, _later)
        if kind in self._firsts:
            first = np.full(entities.size, np.iinfo(np.int64).max)
            np.minimum.at(first, indices, np.repeat([start for _, start, _ in arrays], sizes))
            _put(connection, entities, first, _earlier)
            self._firsts.discard(kind)
        return int(entities.size)

    def clear(self) -> None:
        """Drops everything: after a failed transaction it is unknown which numbers were committed."""
        self._waiting.clear()


def put_span(connection: sa.Connection, entities: Ids, first: int, last: int) -> None:
    """Updates the rows of entities of a piece of history."""
    _put(connection, entities, np.full(entities.size, last), _later)
    _put(connection, entities, np.full(entities.size, first), _earlier)


Change = Callable[[int], tuple[dict[str, int], sa.ColumnElement[bool]]]


def _later(at: int) -> tuple[dict[str, int], sa.ColumnElement[bool]]:
    column = metadata.entity.c.last_seen_us
    return {column.name: at}, sa.or_(column.is_(None), column < at)


def _earlier(at: int) -> tuple[dict[str, int], sa.ColumnElement[bool]]:
    column = metadata.entity.c.first_seen_us
    return {column.name: at}, sa.or_(column.is_(None), column > at)


def _put(connection: sa.Connection, entities: Ids, instants: Micros, change: Change) -> None:
    table: Any = metadata.entity
    for at in np.unique(instants).tolist():
        values, needed = change(at)
        numbers = entities[instants == at].tolist()
        for start in range(0, len(numbers), _AT_ONCE):
            some = table.c.id.in_(numbers[start : start + _AT_ONCE])
            connection.execute(sa.update(table).where(some, needed).values(values))
