"""Bytes on disk per raw value, including the index: a compacted day of a fleet.

Every fifth target of the simulated fleet (200 GPUs, 200 replicas, all columns; see ``benchmarks.fleet_values``) is
written cycle by cycle, as the engine does, then compacted. A value is a cell with a number; the scrape offsets of our
store count as bytes, not as values. Peers store the same values in the same run: a real VictoriaMetrics after merging,
with its index (with counters instead of increases it needs about 5 % less); DuckDB sorted by entity; sqlite3 with one
row per entity and timestamp (one hour).

A value of the 10-minute and 1-hour tiers covers many raw values: their figure is bytes of the tier per raw value
covered.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peer_duckdb, peer_victoria
from benchmarks.common import Result, main, print_progress, result
from benchmarks.engines import Engine, engines
from benchmarks.fleet_values import CYCLES, START, FleetDay, fleet_day
from benchmarks.peer_rows import WideRows
from outrider.model import EntityKind
from store.factory import open_metrics, urls_of
from store.schema import metadata
from store.sql.urls import parsed
from tests.store import killing

RAW_TARGET, TIER_TARGET = 1.3, 0.4  # bytes a value, SQLite
KINDS = (EntityKind.GPU, EntityKind.REPLICA)
EVERY = 5
UNIT = "bytes/value"


def _values(day: FleetDay) -> int:
    return sum(day.part(kind, hour, EVERY).present for hour in range(day.hours) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class _Weight:
    """Bytes of the database with only raw values, with all roll-ups, and payload bytes per tier."""

    raw: float
    everything: float
    tiers: dict[str, int]


def _ours(engine: Engine, day: FleetDay) -> _Weight:
    """Writes the day as the engine does, compacting each complete hour, then rolls it up."""
    assert engine.url is not None
    url = urls_of(engine.url)[1]
    store = open_metrics(url)
    database = sa.create_engine(parsed(url), isolation_level="AUTOCOMMIT")
    try:
        for hour in range(day.hours):
            for at, batches in day.cycles(CYCLES, KINDS, first=hour * CYCLES, every=EVERY):
                store.write(at, batches)
            store.compact(START + timedelta(hours=hour + 1))
        with database.connect() as connection:
            raw = _whole(engine, connection)
        store.prune(START + timedelta(hours=day.hours))
        table = metadata.block
        query = sa.select(table.c.tier, sa.func.sum(sa.func.length(table.c.payload))).group_by(table.c.tier)
        with database.connect() as connection:
            tiers = {tier: int(size) for tier, size in connection.execute(query)}
            return _Weight(raw, _whole(engine, connection), tiers)
    finally:
        store.close()
        database.dispose()


def _whole(engine: Engine, connection: sa.Connection) -> float:
    """Returns bytes of tables and indices, without pages freed by compaction, which the next hours reuse."""
    if engine.name == "sqlite":
        pages, free, size = (
            int(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
            for pragma in ("page_count", "freelist_count", "page_size")
        )
        return float((pages - free) * size)
    assert engine.url is not None
    connection.exec_driver_sql("VACUUM FULL")
    return float(killing.size(engine.url))


def _peers(folder: Path, day: FleetDay) -> Iterator[tuple[str, str, float | None]]:
    """Yields short name, name, and bytes per value (None if the peer is missing)."""
    yield "victoriametrics", peer_victoria.Victoria.name, _victoria(folder, day)
    yield "duckdb", peer_duckdb.Duck.name, _duck(folder, day)
    rows, first = WideRows(folder), [day.part(kind, 0, EVERY) for kind in KINDS]
    for hour in first:
        rows.load(hour)
    yield "rows", rows.name, rows.size() / sum(hour.present for hour in first)
    rows.close()


def _victoria(folder: Path, day: FleetDay) -> float | None:
    if not peer_victoria.available():
        return None
    peer, values = peer_victoria.Victoria(folder), 0
    try:
        for number in range(day.hours):
            for kind in KINDS:
                hour = day.part(kind, number, EVERY)
                peer.load(hour)
                values += hour.present
        return peer.size() / values
    finally:
        peer.close()


def _duck(folder: Path, day: FleetDay) -> float | None:
    if not peer_duckdb.available():
        return None
    duck, values = peer_duckdb.Duck(folder), 0
    for number in range(day.hours):
        for kind in KINDS:
            hour = day.part(kind, number, EVERY)
            duck.load(hour)
            values += hour.present
    size = duck.size()
    duck.close()
    return size / values


_MISSING = {"victoriametrics": peer_victoria.MISSING, "duckdb": peer_duckdb.MISSING}


def run() -> list[Result]:
    """Returns bytes per value: ours on each engine against each peer, and the roll-ups."""
    day, lines = fleet_day(), []
    with tempfile.TemporaryDirectory() as name, engines(Path(name)) as results:
        values = _values(day)
        print_progress(f"{values / 1e6:.0f} M values")
        ours = {engine: _ours(engine, day) for engine in results if engine.url}
        peers = list(_peers(Path(name), day))
    short, peer, rival = peers[0]
    mine = ours[results[0]].raw / values
    for engine in results:
        if engine not in ours:
            lines.append(engine.skipped("store_size", UNIT, RAW_TARGET))
            continue
        size = ours[engine].raw / values
        holds = size <= RAW_TARGET and (rival is None or size < rival)
        more = {"with_roll_ups": round(ours[engine].everything / values, 4), "values": values}
        more |= {"note": _MISSING[short]} if rival is None else {}
        ratio = rival / size if rival else None
        lines.append(result(f"store_size{engine.suffix}", size, UNIT, RAW_TARGET, holds, peer, rival, ratio, **more))
    for short, peer, rival in peers[1:]:
        name = f"store_size_against_{short}"
        if rival is None:
            lines.append(result(name, None, UNIT, None, None, peer, note=_MISSING[short]))
        else:
            lines.append(result(name, mine, UNIT, None, None, peer, rival, rival / mine))
    return [*lines, *_tiers(ours[results[0]].tiers, values)]


def _tiers(tiers: dict[str, int], values: int) -> list[Result]:
    """Returns the bytes of each roll-up per raw value covered."""
    names = [tier for tier in tiers if tier != metadata.RAW]
    return [
        result(f"store_size_{tier}", tiers[tier] / values, UNIT, TIER_TARGET, tiers[tier] / values <= TIER_TARGET)
        for tier in names
    ]


if __name__ == "__main__":
    main(run)
