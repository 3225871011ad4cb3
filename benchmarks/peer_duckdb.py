"""Peer: DuckDB with one wide table per entity kind, filled from Arrow, read by SQL. Needs ``uv sync --group bench``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.fleet_values import Hour
from outrider.model import EntityKind, Floats, SampleBatch, SignalKey

try:
    import duckdb
except ImportError:  # optional: some sites cannot install it
    duckdb = None

MISSING = "DuckDB is not installed here: run `.tools/uv sync --group bench`."


def available() -> bool:
    """False if DuckDB is not installed."""
    return duckdb is not None


class Duck:
    """Values are 32-bit FLOAT, like ours; commits are durable."""

    name = "DuckDB, wide rows from Arrow"

    def __init__(self, folder: Path) -> None:
        """Opens a new database."""
        self._path = folder / "duck.db"
        self._database: Any = duckdb.connect(str(self._path))
        self._columns: dict[EntityKind, dict[SignalKey, str]] = {}

    def write(self, at: datetime, batches: Sequence[SampleBatch]) -> None:
        """Writes one cycle in one transaction."""
        by_kind: dict[EntityKind, list[SampleBatch]] = {}
        for batch in batches:
            by_kind.setdefault(batch.kind, []).append(batch)
        self._database.execute("BEGIN")
        for kind, result in by_kind.items():
            values = np.concatenate([batch.values for batch in result], dtype=np.float32, casting="same_kind").T
            names = [entity.name for batch in result for entity in batch.entities]
            self._insert(kind, result[0].keys, np.full(len(names), at.timestamp()), names, values)
        self._database.execute("COMMIT")

    def load(self, hour: Hour) -> None:
        """Writes an hour, sorted by entity, which compresses best."""
        names = np.repeat(np.array([entity.name for entity in hour.entities]), hour.times.size)
        values = hour.values.reshape(len(hour.keys), -1)
        self._insert(hour.kind, hour.keys, np.tile(hour.times, len(hour.entities)), names, values)

    def _insert(
        self, kind: EntityKind, keys: Sequence[SignalKey], times: Floats, names: Sequence[str], values: Any
    ) -> None:
        if kind not in self._columns:
            self._columns[kind] = {key: f"c{place}" for place, key in enumerate(keys)}
            columns = ", ".join(f"{name} FLOAT" for name in self._columns[kind].values())
            self._database.execute(f"CREATE TABLE {kind} (instant BIGINT, entity VARCHAR, {columns})")
        columns = {
            name: np.ascontiguousarray(row) for name, row in zip(self._columns[kind].values(), values, strict=True)
        }
        rows = pa.table({"instant": times.astype(np.int64), "entity": names, **columns})
        self._database.register("rows", rows)
        self._database.execute(f"INSERT INTO {kind} SELECT * FROM rows")
        self._database.unregister("rows")

    def read(self, kind: EntityKind, last: Sequence[SignalKey], summed: Sequence[SignalKey], minutes: int) -> Floats:
        """Returns a matrix (entities, minutes, keys) of the first minutes: last values, and sums of the increases."""
        columns = self._columns[kind]
        parts = [f"max_by({columns[key]}, instant)" for key in last] + [f"sum({columns[key]})" for key in summed]
        (first,) = self._database.execute(f"SELECT min(instant) FROM {kind}").fetchone()
        result = self._database.execute(
            f"SELECT dense_rank() OVER (ORDER BY entity) - 1, minute, {', '.join(f'v{n}' for n in range(len(parts)))}"
            f" FROM (SELECT entity, (instant - {first}) // 60 AS minute,"
            f" {', '.join(f'{one} AS v{n}' for n, one in enumerate(parts))} FROM {kind}"
            f" WHERE instant < {first + 60 * minutes} GROUP BY ALL)"
        ).fetchnumpy()
        row, minute, *cells = result.values()
        out = np.full((int(row.max()) + 1, minutes, len(parts)), np.nan)
        for number, column in enumerate(cells):
            out[row, minute, number] = column
        return out

    def size(self) -> int:
        """Returns the bytes on disk."""
        self._database.execute("CHECKPOINT")
        return self._path.stat().st_size

    def close(self) -> None:
        """Closes the database."""
        self._database.close()
