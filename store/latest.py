"""``latest_<kind>``: plain wide tables for people who ask in SQL.

One row per entity, one column per signal of its kind that is not a histogram, rewritten each cycle:
NULL where this cycle brought no value. Signals of the monitoring layer (is the target up?) are
about every kind and stand in every table. Nothing of ours reads these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from outrider import catalog
from outrider.clock import rfc3339
from outrider.model import CellStatus, EntityKind, EntityRef, Layer, SignalKey, SignalKind
from store.backend import is_postgresql
from store.database import Database
from store.merge import Ids, Merged

_FIXED = ("entity_id", "cluster", "namespace", "name")
_NUMBER = "DOUBLE PRECISION"  # which SQLite takes as REAL
_ROWS_AT_ONCE = 200  # times some 40 columns: below the 32,766 parameters that SQLite takes since 3.32


@cache
def columns(kind: EntityKind) -> tuple[str, ...]:
    """The signals that are columns of a kind's table, in catalogue order."""
    return tuple(
        signal.name
        for signal in catalog.signals().values()
        if signal.kind is not SignalKind.HISTOGRAM and (signal.entity is kind or signal.layer is Layer.MONITORING)
    )


def missing(connection: sa.Connection) -> list[str]:
    """The statements that make the tables, and add the columns of signals that are new in the catalogue."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    found = []
    for kind in EntityKind:
        name = f"latest_{kind.value}"
        if name not in tables:
            fixed = "entity_id INTEGER PRIMARY KEY, cluster TEXT, namespace TEXT, name TEXT, at TEXT"
            found.append(
                f"CREATE TABLE {name} ({fixed}" + "".join(f', "{one}" {_NUMBER}' for one in columns(kind)) + ")"
            )
            continue
        present = {column["name"] for column in inspector.get_columns(name)}
        found += [f'ALTER TABLE {name} ADD COLUMN "{one}" {_NUMBER}' for one in columns(kind) if one not in present]
    return found


def create(database: Database) -> None:
    """Make what is missing. Takes no lock when nothing is, so that readers open beside a busy writer."""
    with database.reading() as connection:
        if not missing(connection):
            return
    with database.writing() as connection:
        for statement in missing(connection):
            connection.exec_driver_sql(statement)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The rows of a kind without their values, and where the values come from; kept between cycles."""

    entities: Ids
    keys: tuple[SignalKey, ...]
    places: NDArray[np.intp]  # -1: a signal that the cycle does not bring
    rows: NDArray[np.object_]


class LatestTables:
    """Rewrites the tables. Cycles mostly bring the same entities and keys: what follows from them is kept."""

    def __init__(self) -> None:
        """Keeps nothing yet."""
        self._drafts: dict[EntityKind, _Draft] = {}

    def update(
        self, connection: sa.Connection, merged: Merged, entities: Mapping[int, EntityRef], at: datetime
    ) -> None:
        """Rewrite the rows of the entities of one cycle."""
        draft = self._drafts.get(merged.kind)
        if draft is None or draft.entities is not merged.entities or draft.keys is not merged.keys:
            draft = self._drafts[merged.kind] = _draft(merged, entities)
        cells = merged.values[draft.places].astype(np.float64)
        empty = (merged.status[draft.places] != CellStatus.PRESENT) | (draft.places < 0)[:, None]
        cells_or_null = cells.astype(object)
        cells_or_null[empty] = None
        draft.rows[:, len(_FIXED) :] = cells_or_null.T
        if is_postgresql(connection):
            parameters = (rfc3339(at), *(column.tolist() for column in draft.rows.T))
            connection.exec_driver_sql(_arrays_statement(merged.kind), parameters)
            return
        for first in range(0, len(draft.rows), _ROWS_AT_ONCE):
            part = draft.rows[first : first + _ROWS_AT_ONCE]
            connection.exec_driver_sql(_statement(merged.kind, len(part)), (rfc3339(at), *part.ravel().tolist()))


def _draft(merged: Merged, entities: Mapping[int, EntityRef]) -> _Draft:
    places = {key: place for place, key in enumerate(merged.keys)}
    wanted = np.array([places.get(SignalKey(name), -1) for name in columns(merged.kind)], dtype=np.intp)
    rows = np.empty((merged.entities.size, len(_FIXED) + wanted.size), dtype=object)
    named = [(number, entities[number]) for number in merged.entities.tolist()]
    rows[:, : len(_FIXED)] = [(number, found.cluster, found.namespace, found.name) for number, found in named]
    return _Draft(merged.entities, merged.keys, wanted, rows)


@cache
def _statement(kind: EntityKind, rows: int) -> str:
    """One statement for many rows: half the cost of a statement a row. ``?1`` is the instant they share."""
    names = ("at", *_FIXED, *(f'"{column}"' for column in columns(kind)))
    width = len(names) - 1
    values = ", ".join(
        "(?1, " + ", ".join(f"?{2 + row * width + place}" for place in range(width)) + ")" for row in range(rows)
    )
    return f"INSERT OR REPLACE INTO latest_{kind.value} ({', '.join(names)}) VALUES {values}"  # noqa: S608 - our own names


@cache
def _arrays_statement(kind: EntityKind) -> str:
    """The same for PostgreSQL, which takes a whole column as one array."""
    names = ("at", *_FIXED, *(f'"{column}"' for column in columns(kind)))
    types = ("int", "text", "text", "text", *("float8" for _ in columns(kind)))
    arrays = ", ".join(f"%s::{one}[]" for one in types)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "entity_id")
    return (
        f"INSERT INTO latest_{kind.value} ({', '.join(names)}) SELECT %s, * FROM unnest({arrays}) "  # noqa: S608 - our own names
        f"ON CONFLICT (entity_id) DO UPDATE SET {changes}"
    )
