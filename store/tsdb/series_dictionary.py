"""Numbers of entities, columns, cohorts and keysets in the metrics database.

A number is assigned once and never reused. The writer caches numbers; after a failed transaction it drops them all,
because it is unknown which were committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import sqlalchemy as sa

from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, SignalKey
from outrider.wire.sanitize import fitted
from store.schema import metadata
from store.sql.backend import insert
from store.tsdb import maintenance_queue
from store.tsdb.cycle_matrix import Ids, Numbers

ENTITY: Final = "entity"
"""Tier name in ``kept_from`` that records the deletion of entities; it changes with every deletion."""


class StaleNumbersError(StoreError):
    """Raised if cached numbers of entities were deleted by maintenance. The cache is dropped: try again."""

    def __init__(self) -> None:
        """The transaction was rolled back."""
        super().__init__("Maintenance deleted entities during the write.", hint="Write again.")


@dataclass(frozen=True, slots=True)
class KnownEntities:
    """The entities of a kind; immutable. New entities are in the next instance."""

    by_number: Mapping[int, EntityRef]
    numbers: Mapping[EntityRef, int]


@dataclass(frozen=True, slots=True)
class Keyset:
    """The columns of a block, and for each signal: section, first column, end column (exclusive)."""

    keys: tuple[SignalKey, ...]
    sections: Mapping[str, tuple[int, int, int]]


def sections_of(keys: tuple[SignalKey, ...]) -> dict[str, tuple[int, int, int]]:
    """The columns of each signal: section, first column, end column (exclusive)."""
    result: dict[str, tuple[int, int, int]] = {}
    at = 0
    for section, (name, group) in enumerate(groupby(keys, key=lambda key: key.name)):
        size = len(list(group))
        result[name] = (section, at, at + size)
        at += size
    return result


class SeriesDictionary:
    """Assigns numbers inside the writer's transaction. Set ``connection`` first, and ``at``, its timestamp."""

    def __init__(self) -> None:
        """Starts empty; existing numbers are read on demand."""
        self._connection: sa.Connection | None = None
        self.at: int | None = None
        self.entities: Numbers[EntityRef] = Numbers(self._add_entities)
        self.keys: Numbers[SignalKey] = Numbers(self._add_keys)
        self._cohorts: dict[bytes, int] = {}
        self._keysets: dict[bytes, int] = {}
        self._known_deletions: int | None = None  # ``_deletion_marks`` before the first number was read

    @property
    def connection(self) -> sa.Connection | None:
        """The writer's connection; None between transactions."""
        return self._connection

    @connection.setter
    def connection(self, connection: sa.Connection | None) -> None:
        self._connection = connection
        self._cohorts.clear()  # retention may delete unused lists, also in another process

    def clear(self) -> None:
        """Drops every number; they are read again on demand."""
        self.entities.clear()
        self.keys.clear()
        self._cohorts.clear()
        self._keysets.clear()
        self._known_deletions = None

    def cohort(self, entities: Ids) -> int:
        """The number of a list of entities, read once per transaction.

        Raises StaleNumbersError if some of them may be deleted.
        """
        return self._list(metadata.cohort, self._cohorts, entities)

    def keyset(self, keys: Ids) -> int:
        """The number of a list of columns."""
        return self._list(metadata.keyset, self._keysets, keys)

    def _writer(self) -> sa.Connection:
        if self.connection is None:
            raise RuntimeError("numbers are assigned inside a transaction")
        return self.connection

    def _add_entities(self, new: Sequence[EntityRef]) -> list[int]:
        if self._known_deletions is None:
            self._known_deletions = self._deletion_marks()
        # ascending numbers in sorted order make reads a single slice
        ordered = sorted(new, key=lambda entity: entity.key)
        seen = {"first_seen_us": self.at, "last_seen_us": self.at}
        rows = [{"kind": entity.kind.value, "key": entity.key, **seen} for entity in ordered]
        return self._add(metadata.entity, rows, [entity.key for entity in new])

    def _add_keys(self, new: Sequence[SignalKey]) -> list[int]:
        spelled = [str(key) for key in new]
        return self._add(metadata.signal, [{"key": key} for key in spelled], spelled)

    def _add(self, table: sa.Table, rows: Sequence[Mapping[str, object]], keys: list[str]) -> list[int]:
        connection = self._writer()
        connection.execute(insert(connection, table).on_conflict_do_nothing(), rows)
        result: dict[str, int] = {}
        for at in range(0, len(keys), 500):
            query = sa.select(table.c.key, table.c.id).where(table.c.key.in_(keys[at : at + 500]))
            result.update((row.key, row.id) for row in connection.execute(query))
        return [result[fitted(key)] for key in keys]

    def _list(self, table: sa.Table, known: dict[bytes, int], members: Ids) -> int:
        packed = members.astype("<i4").tobytes()
        digest = hashlib.sha256(packed).digest()[:16]
        if digest not in known:
            connection = self._writer()
            query = sa.select(table.c.id).where(table.c.digest == digest)
            value = connection.execute(query).scalar()
            if value is None:
                if table is metadata.cohort and self._known_deletions not in (None, self._deletion_marks()):
                    raise StaleNumbersError
                new = insert(connection, table).values(digest=digest, members=packed)
                connection.execute(new.on_conflict_do_nothing())
                value = connection.execute(query).scalar_one()
            known[digest] = int(value)
        return known[digest]

    def _deletion_marks(self) -> int:
        """Sum of the deletion marks of all kinds; changes whenever an entity is deleted."""
        cuts = sa.select(sa.func.sum(metadata.kept_from.c.start_us)).where(metadata.kept_from.c.tier == ENTITY)
        return int(self._writer().execute(cuts).scalar() or 0)


class Names:
    """Read side of the dictionary.

    Rows never change, so that the cache stays valid, except for deleted entities.
    """

    def __init__(self) -> None:
        """Reads nothing yet."""
        self._entities: dict[EntityKind, tuple[int, KnownEntities]] = {}
        self._keys: dict[int, SignalKey] = {}
        self._cohorts: dict[int, Ids] = {}
        self._keysets: dict[int, Keyset] = {}

    def keysets(self, connection: sa.Connection) -> dict[int, Keyset]:
        """The columns of every keyset."""
        newest = max(self._keysets, default=0)
        table = metadata.keyset
        rows = connection.execute(sa.select(table.c.id, table.c.members).where(table.c.id > newest)).all()
        for row in rows:
            numbers = np.frombuffer(row.members, dtype="<i4").tolist()
            if any(number not in self._keys for number in numbers):
                signals = connection.execute(sa.select(metadata.signal.c.id, metadata.signal.c.key))
                self._keys = {number: SignalKey.parse(key) for number, key in signals}
            keys = tuple(self._keys[number] for number in numbers)
            self._keysets[row.id] = Keyset(keys, sections_of(keys))
        return self._keysets

    def cohort(self, connection: sa.Connection, number: int) -> Ids:
        """The entity numbers of a cohort."""
        if number not in self._cohorts:
            table = metadata.cohort
            packed = connection.execute(sa.select(table.c.members).where(table.c.id == number)).scalar_one()
            self._cohorts[number] = np.frombuffer(packed, dtype="<i4")
        return self._cohorts[number]

    def entities(self, connection: sa.Connection, kind: EntityKind) -> KnownEntities:
        """Every entity of a kind."""
        deletion_mark = maintenance_queue.cuts(connection, kind).get(ENTITY, 0)
        at, known = self._entities.get(kind, (deletion_mark, KnownEntities({}, {})))
        if at != deletion_mark:
            known = KnownEntities({}, {})
        table = metadata.entity
        newest = max(known.by_number, default=0)
        query = sa.select(table.c.id, table.c.key).where(table.c.kind == kind.value, table.c.id > newest)
        fresh = {number: EntityRef.from_key(key) for number, key in connection.execute(query)}
        if fresh:
            numbers = {entity: number for number, entity in fresh.items()}
            known = KnownEntities({**known.by_number, **fresh}, {**known.numbers, **numbers})
        self._entities[kind] = deletion_mark, known
        return known
