"""``hourly_<kind>``: wide tables of hourly values, for SQL queries by people.

One row per entity and hour, written when the hour is rolled up, with these columns of the signal catalog:

- gauge: its mean under the name of the signal; ``<signal>_max`` if high values matter, ``<signal>_min`` if low
  values do (``good`` in the catalog: lower or range, higher);
- state: its last value, with the same extremes;
- increase: its sum;
- histogram: ``<signal>_count``, ``<signal>_p50`` and ``<signal>_p99``, from the hour's buckets.

NULL if the hour has no value; no row if it has none at all. Outrider itself never reads these tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import sqlalchemy as sa

from outrider.clock import rfc3339
from outrider.model import EntityKind, EntityRef, Floats, Layer, SignalKey, SignalKind
from outrider.vocabulary import catalog
from outrider.vocabulary.catalog import Signal
from store.schema.metadata import instant
from store.sql.database import Database
from store.tsdb import rollup
from store.tsdb.rollup import Fold
from store.tsdb.rollup_writer import Columns

ROWS_AT_ONCE = 2000
"""Rows written or deleted per transaction: an hour of a kind with fewer entities appears at once."""
_NUMBER = "DOUBLE PRECISION"  # SQLite stores it as REAL
_QUANTILES = {"p50": 0.5, "p99": 0.99}
CellStatistic = Literal["last", "mean", "min", "max", "sum", "count", "p50", "p99"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A column of a table: its signal and statistic."""

    name: str
    signal: Signal
    statistic: CellStatistic


@cache
def cells(kind: EntityKind) -> tuple[Cell, ...]:
    """The columns of a kind's table, in catalog order."""
    result: list[Cell] = []
    for signal in catalog.signals().values():
        if signal.entity is kind or signal.layer is Layer.MONITORING:
            result += _cells_of(signal)
    return tuple(result)


def _cells_of(signal: Signal) -> Iterator[Cell]:
    if signal.kind is SignalKind.HISTOGRAM:
        for statistic in ("count", "p50", "p99"):
            yield Cell(f"{signal.name}_{statistic}", signal, statistic)
        return
    if signal.kind is SignalKind.DELTA:
        yield Cell(signal.name, signal, "sum")
        return
    yield Cell(signal.name, signal, "last" if signal.kind is SignalKind.STATE else "mean")
    if signal.good in ("lower", "range"):
        yield Cell(f"{signal.name}_max", signal, "max")
    if signal.good == "higher":
        yield Cell(f"{signal.name}_min", signal, "min")


@cache
def table(kind: EntityKind) -> sa.Table:
    """The table of a kind."""
    name = f"hourly_{kind.value}"
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("entity_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Text, primary_key=True),
        *(sa.Column(cell, sa.Text) for cell in ("cluster", "namespace", "name")),
        *(sa.Column(cell.name, sa.Double) for cell in cells(kind)),
        sa.Index(f"{name}_by_time", "at"),
    )


def missing(connection: sa.Connection) -> list[sa.Executable]:
    """The DDL that creates missing tables and columns."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    result: list[sa.Executable] = []
    for kind in EntityKind:
        wide_table = table(kind)
        if wide_table.name not in tables:
            result += [
                sa.schema.CreateTable(wide_table),
                *(sa.schema.CreateIndex(index) for index in wide_table.indexes),
            ]
            continue
        present = {column["name"] for column in inspector.get_columns(wide_table.name)}
        result += [
            sa.text(f'ALTER TABLE {wide_table.name} ADD COLUMN "{cell.name}" {_NUMBER}')
            for cell in cells(kind)
            if cell.name not in present
        ]
    return result


def create(database: Database) -> None:
    """Creates missing tables and columns. Takes no write lock if none is missing, so that readers can open any time."""
    with database.reading() as connection:
        if not missing(connection):
            return
    with database.writing() as connection:
        for statement in missing(connection):
            connection.execute(statement)


class HourlyRows:
    """Collects the spans of some hours of a kind, signal by signal, and returns the rows of its table."""

    def __init__(self, kind: EntityKind, start: int, end: int) -> None:
        """Hours that start in [start, end)."""
        self._kind, self._start, self._end = kind, start, end
        self._parts: dict[tuple[str, Fold], Columns] = {}

    def add(self, columns: Columns) -> None:
        """Adds columns of a signal."""
        self._parts[columns.keys[0].name, columns.rolled.fold] = columns

    def rows(self, entities: Mapping[int, EntityRef]) -> Iterator[tuple[int, list[dict[str, object]]]]:
        """Each hour with its rows, by ascending entity."""
        starts = {int(at) for part in self._parts.values() for at in part.rolled.times}
        for start in sorted(at for at in starts if self._start <= at < self._end):
            yield start, self._rows_of(start, entities)

    def _rows_of(self, start: int, entities: Mapping[int, EntityRef]) -> list[dict[str, object]]:
        parts = {key: part for key, part in self._parts.items() if start in part.rolled.times}
        members = np.unique(np.concatenate([part.entities for part in parts.values()]))
        wanted = cells(self._kind)
        values = np.full((members.size, len(wanted)), np.nan)
        for index, cell in enumerate(wanted):
            part = parts.get((cell.signal.name, _fold(cell)))
            if part is not None:
                at = int(np.searchsorted(part.rolled.times, start))
                values[np.searchsorted(members, part.entities), index] = _values(cell, part, at)
        some = ~np.isnan(values).all(axis=1)
        members, values = members[some], values[some]
        shown = values.astype(object)
        shown[np.isnan(values)] = None
        names = [cell.name for cell in wanted]
        hour = rfc3339(instant(start))
        rows = []
        for number, row in zip(members.tolist(), shown.tolist(), strict=True):
            entity = entities[number]
            fixed = {"entity_id": number, "at": hour, "cluster": entity.cluster}
            rows.append(
                {**fixed, "namespace": entity.namespace, "name": entity.name, **dict(zip(names, row, strict=True))}
            )
        return rows


def _fold(cell: Cell) -> Fold:
    if cell.signal.kind is SignalKind.HISTOGRAM:
        return Fold.BUCKET
    return Fold.INCREASE if cell.statistic == "sum" else Fold.GAUGE


def _values(cell: Cell, part: Columns, at: int) -> Floats:
    statistics = part.rolled.statistics[..., at]
    if _fold(cell) is not Fold.BUCKET:
        index = part.keys.index(SignalKey(cell.signal.name)) if SignalKey(cell.signal.name) in part.keys else None
        empty = np.full(part.entities.size, np.nan)
        has = rollup.counts(part.rolled.status[..., at])
        return (
            empty
            if index is None
            else np.where(has[index], _column_statistic(cell, part.rolled.fold, statistics)[index], np.nan)
        )
    return _of_buckets(cell, part.keys, statistics[0])


def _column_statistic(cell: Cell, fold: Fold, statistics: Floats) -> Floats:
    """The statistic of a column, for all columns of a signal."""
    if cell.statistic != "mean":
        result: Floats = statistics[fold.value.index(cell.statistic)]
        return result
    count = statistics[fold.value.index("count")]
    mean: Floats = statistics[fold.value.index("sum")] / np.where(count > 0, count, np.nan)
    return mean


def _of_buckets(cell: Cell, keys: Sequence[SignalKey], sums: Floats) -> Floats:
    """Count or quantile of each entity; ``sums`` has shape (columns, entities)."""
    ladder = cell.signal.bucket_keys[:-1]
    counted = np.full((len(ladder), sums.shape[1]), np.nan)
    for index, key in enumerate(keys):
        if key in ladder:
            counted[ladder.index(key)] = sums[index]
    if cell.statistic == "count":
        return np.where(np.isnan(counted).all(axis=0), np.nan, np.nansum(counted, axis=0))
    values, _ = catalog.bucket_quantile(counted.T, cell.signal.bounds, _QUANTILES[cell.statistic])
    return values


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of an hour for one transaction, by ascending entity; they replace all with ``after`` < id <= ``to``.

    None: no bound.
    """

    rows: Sequence[dict[str, object]]
    after: int | None
    to: int | None


def parts(rows: Sequence[dict[str, object]]) -> Iterator[Part]:
    """An hour split into transactions: mostly one part."""
    cuts = [*range(0, len(rows), ROWS_AT_ONCE), len(rows)]
    last = len(cuts) - 2
    ends = [
        None if number == last else cast("int", rows[cuts[number + 1] - 1]["entity_id"]) for number in range(last + 1)
    ]
    for number, (first, end) in enumerate(pairwise(cuts)):
        yield Part(rows[first:end], ends[number - 1] if number else None, ends[number])


def write(connection: sa.Connection, kind: EntityKind, part: Part) -> None:
    """Writes rows of one hour, replacing the previous ones."""
    wide_table = table(kind)
    old = sa.delete(wide_table).where(wide_table.c.at == part.rows[0]["at"])
    if part.after is not None:
        old = old.where(wide_table.c.entity_id > part.after)
    if part.to is not None:
        old = old.where(wide_table.c.entity_id <= part.to)
    connection.execute(old)
    new = sa.insert(wide_table).compile(
        dialect=connection.dialect
    )  # passed to the driver directly: four times faster than one execute per row
    order = new.positiontup
    rows: list[Any] = list(part.rows) if order is None else [tuple(row[name] for name in order) for row in part.rows]
    connection.exec_driver_sql(str(new), rows)


def older(kind: EntityKind, before: int) -> sa.Select[Any]:
    """Hours that start before a time."""
    wide_table = table(kind)
    return sa.select(wide_table.c.at).where(wide_table.c.at < rfc3339(instant(before)))


def delete_oldest(connection: sa.Connection, kind: EntityKind) -> int:
    """Deletes the oldest hour, or as many rows of it as one transaction may; returns the count."""
    wide_table = table(kind)
    oldest = sa.select(sa.func.min(wide_table.c.at)).scalar_subquery()
    some = sa.select(wide_table.c.entity_id).where(wide_table.c.at == oldest).limit(ROWS_AT_ONCE)
    return int(
        connection.execute(
            sa.delete(wide_table).where(wide_table.c.at == oldest, wide_table.c.entity_id.in_(some))
        ).rowcount
    )
