"""``latest_<kind>``: wide tables of current values, for SQL queries by people.

One row per entity, one column per signal of its kind except histograms, rewritten each cycle: NULL if the cycle has
no value. Signals of the monitoring layer (target up, ...) apply to every kind and are in every table. Outrider itself
never reads these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from outrider.clock import rfc3339
from outrider.model import CellStatus, EntityKind, EntityRef, Floats, Layer, SignalKey, SignalKind
from outrider.vocabulary import catalog
from store.sql.backend import is_postgresql
from store.sql.database import Database
from store.tsdb.cycle_matrix import CycleMatrix, Ids

_NUMBER = "DOUBLE PRECISION"  # SQLite stores it as REAL
_ROWS_AT_ONCE = 200  # times about 40 columns: below the limit of 32,766 parameters since SQLite 3.32


@cache
def columns(kind: EntityKind) -> tuple[str, ...]:
    """The signals in a kind's table, in catalog order."""
    return tuple(
        signal.name
        for signal in catalog.signals().values()
        if signal.kind is not SignalKind.HISTOGRAM and (signal.entity is kind or signal.layer is Layer.MONITORING)
    )


def missing(connection: sa.Connection) -> list[str]:
    """The DDL that creates missing tables and columns."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    result = []
    for kind in EntityKind:
        name = f"latest_{kind.value}"
        if name not in tables:
            fixed = "entity_id INTEGER PRIMARY KEY, cluster TEXT, namespace TEXT, name TEXT, at TEXT"
            result.append(
                f"CREATE TABLE {name} ({fixed}" + "".join(f', "{signal}" {_NUMBER}' for signal in columns(kind)) + ")"
            )
            continue
        present = {column["name"] for column in inspector.get_columns(name)}
        result += [
            f'ALTER TABLE {name} ADD COLUMN "{signal}" {_NUMBER}' for signal in columns(kind) if signal not in present
        ]
    return result


def create(database: Database) -> None:
    """Creates missing tables and columns. Takes no write lock if none is missing, so that readers can open any time."""
    with database.reading() as connection:
        if not missing(connection):
            return
    with database.writing() as connection:
        for statement in missing(connection):
            connection.exec_driver_sql(statement)


@dataclass(frozen=True, slots=True)
class _Draft:
    """Values derived from the entities and keys of a cycle, cached between cycles."""

    entities: Ids
    keys: tuple[SignalKey, ...]
    names: tuple[str, ...]  # columns with a value in the cycle
    rows: NDArray[np.intp]  # their rows in the cycle


class LatestTables:
    """Rewrites the tables. Mostly the entities and keys of cycles do not change: derived values are cached."""

    def __init__(self) -> None:
        """Starts with an empty cache."""
        self._drafts: dict[EntityKind, _Draft] = {}

    def update(
        self, connection: sa.Connection, merged: CycleMatrix, entities: Mapping[int, EntityRef], at: datetime
    ) -> None:
        """Rewrites the rows of the entities of one cycle."""
        draft = self._drafts.get(merged.kind)
        if draft is None or draft.entities is not merged.entities or draft.keys is not merged.keys:
            draft = self._drafts[merged.kind] = _draft(merged)
        cells = merged.values[draft.rows].astype(np.float64).T
        cells[(merged.status[draft.rows] != CellStatus.PRESENT).T] = np.nan
        write = _write_arrays if is_postgresql(connection) else _write_rows
        write(connection, merged.kind, draft, cells, rfc3339(at))
        _name(connection, merged.kind, entities)


def _draft(merged: CycleMatrix) -> _Draft:
    indices = {key: index for index, key in enumerate(merged.keys)}
    names = tuple(name for name in columns(merged.kind) if SignalKey(name) in indices)
    wanted = np.array([indices[SignalKey(name)] for name in names], dtype=np.intp)
    return _Draft(merged.entities, merged.keys, names, wanted)


def _write_rows(connection: sa.Connection, kind: EntityKind, draft: _Draft, cells: Floats, at: str) -> None:
    """SQLite stores a NaN as NULL and accepts a whole float as an id, so that rows are purely numeric."""
    rows = np.column_stack((draft.entities, cells))
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        connection.exec_driver_sql(_statement(kind, draft.names, len(part)), (at, *part.ravel().tolist()))


def _write_arrays(connection: sa.Connection, kind: EntityKind, draft: _Draft, cells: Floats, at: str) -> None:
    """PostgreSQL accepts a whole column as one array, and distinguishes NaN from NULL."""
    cells_or_null = cells.astype(object)
    cells_or_null[np.isnan(cells)] = None
    arrays = (column.tolist() for column in cells_or_null.T)
    connection.exec_driver_sql(_arrays_statement(kind, draft.names), (at, draft.entities.tolist(), *arrays))


def _name(connection: sa.Connection, kind: EntityKind, entities: Mapping[int, EntityRef]) -> None:
    """Names new rows, including rows that retention deleted while no cycle was written."""
    name = f"latest_{kind.value}"
    nameless = connection.exec_driver_sql(f"SELECT entity_id FROM {name} WHERE name IS NULL").scalars().all()  # noqa: S608 - our own names
    named = [(number, entities[number]) for number in nameless if number in entities]
    rows = [{"id": number, "c": entity.cluster, "s": entity.namespace, "n": entity.name} for number, entity in named]
    if rows:
        table = sa.table(name, *map(sa.column, ("entity_id", "cluster", "namespace", "name")))
        result: dict[str, sa.BindParameter[str]] = {
            "cluster": sa.bindparam("c"),
            "namespace": sa.bindparam("s"),
            "name": sa.bindparam("n"),
        }
        connection.execute(sa.update(table).where(table.c.entity_id == sa.bindparam("id")).values(result), rows)


@cache
def _statement(kind: EntityKind, names: tuple[str, ...], rows: int) -> str:
    """One statement for many rows, at half the cost per row. ``?1`` is the shared timestamp."""
    width = 1 + len(names)
    values = ", ".join(
        "(?1, " + ", ".join(f"?{2 + row * width + index}" for index in range(width)) + ")" for row in range(rows)
    )
    return f"INSERT INTO {_into(kind, names)} VALUES {values} {_on_conflict(kind, names)}"  # noqa: S608 - our own names


@cache
def _arrays_statement(kind: EntityKind, names: tuple[str, ...]) -> str:
    """The PostgreSQL version, with one array per column."""
    arrays = ", ".join(("%s::int[]", *("%s::float8[]" for _ in names)))
    return f"INSERT INTO {_into(kind, names)} SELECT %s, * FROM unnest({arrays}) {_on_conflict(kind, names)}"  # noqa: S608 - our own names


def _into(kind: EntityKind, names: tuple[str, ...]) -> str:
    return f"latest_{kind.value} ({', '.join(('at', 'entity_id', *map(_quoted, names)))})"


def _on_conflict(kind: EntityKind, names: tuple[str, ...]) -> str:
    """An existing row keeps its names and loses all other values."""
    kept = set(names)
    cells = (f"{_quoted(name)} = {f'excluded.{_quoted(name)}' if name in kept else 'NULL'}" for name in columns(kind))
    return f"ON CONFLICT (entity_id) DO UPDATE SET {', '.join(('at = excluded.at', *cells))}"


def _quoted(column: str) -> str:
    return f'"{column}"'
