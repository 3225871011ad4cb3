"""``latest_<kind>``: plain wide tables for people who ask in SQL.

One row per entity, one column per signal of its kind that is not a histogram, rewritten each cycle:
NULL where this cycle brought no value. Signals of the monitoring layer (is the target up?) are
about every kind and stand in every table. Nothing of ours reads these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache

import numpy as np
import sqlalchemy as sa

from outrider import catalog
from outrider.clock import rfc3339
from outrider.model import CellStatus, EntityKind, EntityRef, Layer, SignalKey, SignalKind
from store.merge import Merged

_FIXED = ("entity_id", "cluster", "namespace", "name")
_ROWS_AT_ONCE = 200  # times some 40 columns: below the 32,766 parameters that SQLite takes since 3.32


@cache
def columns(kind: EntityKind) -> tuple[str, ...]:
    """The signals that are columns of a kind's table, in catalogue order."""
    return tuple(
        signal.name
        for signal in catalog.signals().values()
        if signal.kind is not SignalKind.HISTOGRAM and (signal.entity is kind or signal.layer is Layer.MONITORING)
    )


def create(connection: sa.Connection) -> None:
    """Make the tables, and add the columns of signals that are new in the catalogue."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    for kind in EntityKind:
        name = f"latest_{kind.value}"
        if name not in tables:
            fixed = "entity_id INTEGER PRIMARY KEY, cluster TEXT, namespace TEXT, name TEXT, at TEXT"
            signals = "".join(f', "{column}" REAL' for column in columns(kind))
            connection.exec_driver_sql(f"CREATE TABLE {name} ({fixed}{signals})")
            continue
        present = {column["name"] for column in inspector.get_columns(name)}
        for column in columns(kind):
            if column not in present:
                connection.exec_driver_sql(f'ALTER TABLE {name} ADD COLUMN "{column}" REAL')


def update(connection: sa.Connection, merged: Merged, entities: Mapping[int, EntityRef], at: datetime) -> None:
    """Rewrite the rows of the entities of one cycle."""
    places = {key: place for place, key in enumerate(merged.keys)}
    wanted = [places.get(SignalKey(name), -1) for name in columns(merged.kind)]
    cells = merged.values[wanted].astype(np.float64)
    cells[(merged.status[wanted] != CellStatus.PRESENT) | (np.array(wanted) < 0)[:, None]] = np.nan  # NaN becomes NULL
    rows = np.empty((merged.entities.size, len(_FIXED) + len(wanted)), dtype=object)
    named = [(number, entities[number]) for number in merged.entities.tolist()]
    rows[:, : len(_FIXED)] = [(number, found.cluster, found.namespace, found.name) for number, found in named]
    rows[:, len(_FIXED) :] = cells.T
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        connection.exec_driver_sql(_statement(merged.kind, len(part)), (rfc3339(at), *part.ravel().tolist()))


@cache
def _statement(kind: EntityKind, rows: int) -> str:
    """One statement for many rows: half the cost of a statement a row. ``?1`` is the instant they share."""
    names = ("at", *_FIXED, *(f'"{column}"' for column in columns(kind)))
    width = len(names) - 1
    values = ", ".join(
        "(?1, " + ", ".join(f"?{2 + row * width + place}" for place in range(width)) + ")" for row in range(rows)
    )
    return f"INSERT OR REPLACE INTO latest_{kind.value} ({', '.join(names)}) VALUES {values}"  # noqa: S608 - our own names
