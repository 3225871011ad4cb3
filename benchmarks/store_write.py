"""How fast a cycle becomes durable: 1,000 GPUs and 1,000 replicas with all their columns, one commit a cycle.

The peer is what most would write first: sqlite3, one row per entity and instant, executemany, the
same durability (WAL, synchronous=FULL), the same values.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from benchmarks.fleet_values import FleetValues, instants
from outrider.model import EntityKind, SampleBatch
from store.sql import open_metrics

TARGET = 20e6  # values a second, on one SQLite file
CYCLES, PEER_CYCLES, WARM_UP = 40, 6, 3


def _cycles(count: int) -> list[tuple[datetime, list[SampleBatch]]]:
    kinds = (FleetValues(EntityKind.GPU, 1000, group=8), FleetValues(EntityKind.REPLICA, 1000, group=1))
    return [(at, [batch for kind in kinds for batch in kind.batches(at)]) for at in instants(count)]


def _ours(folder: Path) -> tuple[float, float, float]:
    """Values a second of the median cycle, its seconds, bytes a value before compaction."""
    store = open_metrics(f"sqlite:///{folder}/ours.db")
    values, seconds = 0, []
    try:
        for number, (at, batches) in enumerate(_cycles(CYCLES)):
            start = time.perf_counter()
            written = store.write(at, batches)
            seconds.append(time.perf_counter() - start)
            values += written if number >= WARM_UP else 0
    finally:
        store.close()
    size = (folder / "ours.db").stat().st_size
    timed = sorted(seconds[WARM_UP:])
    a_cycle = values / len(timed)
    median = timed[len(timed) // 2]
    return a_cycle / median, median, size / (a_cycle * CYCLES)


def _peer(folder: Path) -> float:
    """Values a second of a row per entity and instant."""
    connection = sqlite3.connect(folder / "peer.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    speeds = []
    for number, (at, batches) in enumerate(_cycles(PEER_CYCLES)):
        if number == 0:
            for batch in {batch.kind: batch for batch in batches}.values():
                columns = ", ".join(f"c{place} REAL" for place in range(len(batch.keys)))
                connection.execute(
                    f"CREATE TABLE {batch.kind} (at REAL, entity TEXT, {columns}, PRIMARY KEY (entity, at))"
                )
        start = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        for batch in batches:
            marks = ", ".join("?" for _ in range(len(batch.keys) + 2))
            rows = [
                (at.timestamp(), entity.name, *row)
                for entity, row in zip(batch.entities, batch.values.tolist(), strict=True)
            ]
            connection.executemany(f"INSERT INTO {batch.kind} VALUES ({marks})", rows)
        connection.execute("COMMIT")
        values = sum(batch.values.size for batch in batches)
        speeds.append(values / (time.perf_counter() - start))
    connection.close()
    return sorted(speeds)[len(speeds) // 2]


def run() -> Result:
    """Durable signal values a second, SQLite."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        speed, cycle, size = _ours(folder)
        peer = _peer(folder)
    return result(
        "store_write",
        speed,
        "values/s",
        TARGET,
        speed >= TARGET,
        "sqlite3, a row per entity and instant",
        peer,
        speed / peer,
        seconds_per_cycle=round(cycle, 4),
        bytes_per_value_before_compaction=round(size, 3),
    )


if __name__ == "__main__":
    main(run)
