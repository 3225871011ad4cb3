"""Peer: sqlite3 with one wide table per entity kind, one row per entity and timestamp, written by executemany."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from benchmarks.fleet_values import Hour
from outrider.model import EntityKind, Floats, SampleBatch, SignalKey


class WideRows:
    """As durable as our store: WAL and synchronous=FULL. Rows are in time order."""

    name = "sqlite3, one row per entity and timestamp"

    def __init__(self, folder: Path) -> None:
        """Opens a new database."""
        self._path = folder / "rows.db"
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._columns: dict[EntityKind, dict[SignalKey, str]] = {}

    def write(self, at: datetime, batches: Sequence[SampleBatch]) -> None:
        """Writes one cycle in one transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        for batch in batches:
            rows = [
                (at.timestamp(), entity.name, *row)
                for entity, row in zip(batch.entities, batch.values.tolist(), strict=True)
            ]
            self._database.executemany(self._insert(batch.kind, batch.keys), rows)
        self._database.execute("COMMIT")

    def load(self, hour: Hour) -> None:
        """Writes an hour, oldest rows first."""
        statement = self._insert(hour.kind, hour.keys)
        self._database.execute("BEGIN IMMEDIATE")
        for slot, at in enumerate(hour.times.tolist()):
            cells = hour.values[:, :, slot].T.astype(np.float64).tolist()
            self._database.executemany(
                statement, [(at, entity.name, *row) for entity, row in zip(hour.entities, cells, strict=True)]
            )
        self._database.execute("COMMIT")

    def _insert(self, kind: EntityKind, keys: Sequence[SignalKey]) -> str:
        if kind not in self._columns:
            self._columns[kind] = {key: f"c{place}" for place, key in enumerate(keys)}
            columns = ", ".join(f"{name} REAL" for name in self._columns[kind].values())
            self._database.execute(f"CREATE TABLE {kind} (at REAL, entity TEXT, {columns}, PRIMARY KEY (at, entity))")
        return f"INSERT INTO {kind} VALUES ({', '.join('?' for _ in range(len(keys) + 2))})"

    def read(self, kind: EntityKind, last: Sequence[SignalKey], summed: Sequence[SignalKey], minutes: int) -> Floats:
        """Returns a matrix (entities, minutes, keys) of the first minutes: last values, and sums of the increases."""
        names = [self._columns[kind][key] for key in (*last, *summed)]
        result = self._database.execute(f"SELECT at, entity, {', '.join(names)} FROM {kind} ORDER BY at").fetchall()
        rows = np.array([row[2:] for row in result], dtype=np.float64)
        times = np.array([row[0] for row in result])
        _, entity = np.unique([row[1] for row in result], return_inverse=True)
        minute = ((times - times[0]) // 60).astype(np.intp)
        inside = minute < minutes
        out = np.full((entity.max() + 1, minutes, len(names)), np.nan)
        gauges = slice(0, len(last))
        out[entity[inside], minute[inside], gauges] = rows[inside, gauges]  # in time order, so the last value wins
        out[:, :, len(last) :] = 0.0
        np.add.at(out[:, :, len(last) :], (entity[inside], minute[inside]), rows[inside, len(last) :])
        return out

    def size(self) -> int:
        """Returns the bytes on disk."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._path.stat().st_size

    def close(self) -> None:
        """Closes the database."""
        self._database.close()
