"""Read speed: one day x 1,000 entities x 10 signals at 1 min, from 15 s raw values, into one matrix.

The values are those of a simulated fleet's GPUs (``benchmarks.fleet_values``): the ten signals that change most, one of
them summed. Peers return the same matrix from the same values in the same run, compared with ours: sqlite3 with one row
per entity and timestamp (one hour, scaled to a day, which favours it), DuckDB by SQL into numpy, and a real
VictoriaMetrics by query_range.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peer_duckdb, peer_victoria
from benchmarks.common import Result, best_of, main, result
from benchmarks.engines import Engine, engines
from benchmarks.fleet_values import CYCLES, START, FleetDay, Hour, fleet_day
from benchmarks.peer_rows import WideRows
from outrider.model import EntityKind, Floats, SignalKey
from store.factory import SqlMetricStore, open_metrics, urls_of

TARGETS = {"sqlite": 0.6, "postgresql": 0.8}  # seconds
KIND, MINUTE, MINUTES = EntityKind.GPU, timedelta(minutes=1), 60
LAST = tuple(
    SignalKey(f"hw_accel_{name}")
    for name in (
        "utilization_ratio",
        "tensor_active_ratio",
        "compute_active_ratio",
        "memory_bandwidth_ratio",
        "memory_used_ratio",
        "pcie_bytes_per_second",
        "power_watts",
        "temperature_celsius",
        "memory_temperature_celsius",
    )
)
SUMMED = (SignalKey("hw_accel_energy_joules_total"),)
KEYS = (*LAST, *SUMMED)


@dataclass(frozen=True, slots=True)
class _Peer:
    """Seconds of a peer; None and a note if it is missing."""

    short: str
    name: str
    day: float | None
    note: str = ""


def _ours(engine: Engine, day: FleetDay) -> tuple[Floats, float, float]:
    """Returns the matrix, seconds to read the compacted day, and seconds for an hour with one block per cycle."""
    assert engine.url is not None
    store = open_metrics(urls_of(engine.url)[1])
    end = START + timedelta(hours=day.hours)
    try:
        for number in range(day.hours):
            hour = day.hour(KIND, number)
            values, status = hour.values.transpose(1, 2, 0), hour.status.transpose(1, 2, 0)
            store.write_block(KIND, hour.times, hour.keys, hour.entities, values, status)
        window = store.read_windows(KIND, KEYS, START, end, MINUTE)
        order = np.argsort([entity.name for entity in window.entities])
        seconds = best_of(3, lambda: store.read_windows(KIND, KEYS, START, end, MINUTE))
        return window.values[order], seconds, _tail(store, day)
    finally:
        store.close()


def _tail(store: SqlMetricStore, day: FleetDay) -> float:
    """Writes one more hour, cycle by cycle, and returns the seconds to read it."""
    start = START + timedelta(hours=day.hours)
    for at, batches in day.cycles(CYCLES, [KIND], first=day.hours * CYCLES):
        store.write(at, batches)
    return best_of(3, lambda: store.read_windows(KIND, KEYS, start, start + timedelta(hours=1), MINUTE))


def _peers(folder: Path, day: FleetDay, ours: Floats) -> Iterator[_Peer]:
    yield _rows(folder, day, ours)
    yield _duck(folder, day, ours)
    yield _victoria(folder, day, ours)


def _rows(folder: Path, day: FleetDay, ours: Floats) -> _Peer:
    rows = WideRows(folder)
    rows.load(day.hour(KIND, 0))
    _same(ours[:, :MINUTES], rows.read(KIND, LAST, SUMMED, MINUTES), rows.name)
    seconds = day.hours * best_of(2, lambda: rows.read(KIND, LAST, SUMMED, MINUTES))
    rows.close()
    return _Peer("", rows.name, seconds)


def _duck(folder: Path, day: FleetDay, ours: Floats) -> _Peer:
    name = peer_duckdb.Duck.name
    if not peer_duckdb.available():
        return _Peer("duckdb", name, None, peer_duckdb.MISSING)
    duck = peer_duckdb.Duck(folder)
    for number in range(day.hours):
        duck.load(day.hour(KIND, number))
    minutes = day.hours * MINUTES
    _same(ours, duck.read(KIND, LAST, SUMMED, minutes), name)
    seconds = best_of(3, lambda: duck.read(KIND, LAST, SUMMED, minutes))
    duck.close()
    return _Peer("duckdb", name, seconds)


def _victoria(folder: Path, day: FleetDay, ours: Floats) -> _Peer:
    """VictoriaMetrics stores only the ten signals."""
    name = peer_victoria.Victoria.name
    if not peer_victoria.available():
        return _Peer("victoriametrics", name, None, peer_victoria.MISSING)
    peer = peer_victoria.Victoria(folder)
    try:
        for number in range(day.hours):
            peer.load(_only(day.hour(KIND, number)))
        minutes = day.hours * MINUTES
        _same(ours, peer.read(START.timestamp(), LAST, SUMMED, minutes), name)
        seconds = best_of(2, lambda: peer.read(START.timestamp(), LAST, SUMMED, minutes))
    finally:
        peer.close()
    return _Peer("victoriametrics", name, seconds)


def _only(hour: Hour) -> Hour:
    places = [hour.keys.index(key) for key in KEYS]
    return Hour(hour.kind, hour.times, KEYS, hour.entities, hour.values[places], hour.status[places])


def _same(ours: Floats, theirs: Floats, name: str) -> None:
    """Raises AssertionError if a peer returns another matrix than ours."""
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, err_msg=name)


def run() -> list[Result]:
    """Returns the seconds to read a compacted day of ten signals, and the last hour from single cycles."""
    day, lines = fleet_day(), []
    with tempfile.TemporaryDirectory() as name, engines(Path(name)) as results:
        measured = {engine: _ours(engine, day) for engine in results if engine.url}
        matrix, sqlite, _ = measured[results[0]]
        peers = list(_peers(Path(name), day, matrix))
    first = peers[0].day or 0.0
    for engine in results:
        target = TARGETS[engine.name]
        if engine not in measured:
            lines.append(engine.skipped("store_read", "s", target))
            continue
        _, whole, tail = measured[engine]
        ends = engine.suffix
        lines.append(
            result(f"store_read{ends}", whole, "s", target, whole <= target, peers[0].name, first, first / whole)
        )
        hour = first / day.hours
        lines.append(result(f"store_read_last_hour{ends}", tail, "s", None, None, peers[0].name, hour, hour / tail))
    for peer in peers[1:]:
        name = f"store_read_against_{peer.short}"
        if peer.day is None:
            lines.append(result(name, None, "s", None, None, peer.name, note=peer.note))
        else:
            lines.append(result(name, sqlite, "s", None, None, peer.name, peer.day, peer.day / sqlite))
    return lines


if __name__ == "__main__":
    main(run)
