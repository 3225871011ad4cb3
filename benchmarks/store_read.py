"""How fast a day comes back: 24 h x 1,000 entities x 10 signals at 1 min, from 15 s raw values, into one matrix.

The peer reads the same values from a wide table, one row per entity and instant, with sqlite3 and
fills the same matrix; it holds an hour and is scaled to the day, which favours it.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, best_of, main, result
from benchmarks.fleet_values import START, STEP, FleetValues
from outrider.model import EntityKind, SignalKey
from store.sql import SqlMetricStore, open_metrics

TARGET = 0.6  # seconds, SQLite
ENTITIES, HOURS, CYCLES_AN_HOUR, SIGNALS = 1000, 24, 240, 10


def _fill(store: SqlMetricStore, peer: sqlite3.Connection) -> tuple[SignalKey, ...]:
    """A day of a GPU fleet's 27 signals; the first hour goes to the peer too."""
    fleet = FleetValues(EntityKind.GPU, ENTITIES, group=8)
    entities = [entity for members in fleet.members for entity in members]
    columns = ", ".join(f"c{place} REAL" for place in range(len(fleet.keys)))
    peer.execute(f"CREATE TABLE gpu (at REAL, entity INTEGER, {columns}, PRIMARY KEY (entity, at)) WITHOUT ROWID")
    marks = ", ".join("?" for _ in range(len(fleet.keys) + 2))
    for hour in range(HOURS):
        times = START.timestamp() + 15.0 * (np.arange(CYCLES_AN_HOUR) + hour * CYCLES_AN_HOUR)
        values = np.stack([fleet.step().astype(np.float32) for _ in times], axis=1)
        store.write_block(EntityKind.GPU, times, fleet.keys, entities, values)
        if hour == 0:
            for place, at in enumerate(times.tolist()):
                rows = [(at, row, *cells) for row, cells in enumerate(values[:, place].tolist())]
                peer.executemany(f"INSERT INTO gpu VALUES ({marks})", rows)
    peer.commit()
    gauges = [key for key in fleet.keys if key.bucket is None]
    return tuple(gauges[:: max(1, len(gauges) // SIGNALS)][:SIGNALS])


def _peer_read(peer: sqlite3.Connection) -> None:
    columns = ", ".join(f"c{place}" for place in range(SIGNALS))
    out = np.full((ENTITIES, 60, SIGNALS), np.nan)
    rows = np.array(peer.execute(f"SELECT at, entity, {columns} FROM gpu ORDER BY at").fetchall())
    out[rows[:, 1].astype(int), ((rows[:, 0] - START.timestamp()) // 60).astype(int)] = rows[:, 2:]


def run() -> list[Result]:
    """Seconds to read a day of ten signals as a matrix, compacted; and the last hour from single cycles."""
    with tempfile.TemporaryDirectory() as name:
        store, peer = open_metrics(f"sqlite:///{name}/ours.db"), sqlite3.connect(f"{name}/peer.db")
        try:
            keys = _fill(store, peer)
            end = START + timedelta(hours=HOURS)
            day = best_of(3, lambda: store.read_windows(EntityKind.GPU, keys, START, end, timedelta(minutes=1)))
            peer_day = HOURS * best_of(2, lambda: _peer_read(peer))
            tail = _tail(store, keys)
        finally:
            store.close()
            peer.close()
    unit, what = "s", "sqlite3, a row per entity and instant"
    return [
        result("store_read", day, unit, TARGET, day <= TARGET, what, peer_day, peer_day / day),
        result("store_read_last_hour", tail, unit, None, None, what, peer_day / HOURS, peer_day / HOURS / tail),
    ]


def _tail(store: SqlMetricStore, keys: tuple[SignalKey, ...]) -> float:
    """Seconds to read an hour that is still one block a cycle."""
    fleet = FleetValues(EntityKind.GPU, ENTITIES, group=ENTITIES)
    start = START + timedelta(hours=HOURS)
    for number in range(CYCLES_AN_HOUR):
        at = start + number * STEP
        store.write(at, fleet.batches(at))
    end = start + timedelta(hours=1)
    return best_of(3, lambda: store.read_windows(EntityKind.GPU, keys, start, end, timedelta(minutes=1)))


if __name__ == "__main__":
    main(run)
