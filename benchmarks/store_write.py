"""Write speed: 1,000 GPUs and 1,000 replicas with all columns, one durable commit per cycle.

The values come from a simulated fleet (``benchmarks.fleet_values``); every cell with a number counts as a value. Peers
write the same cycles in the same run. Two commit each cycle durably: sqlite3 with one row per entity and timestamp
(executemany), and DuckDB with rows from Arrow. The third is a real VictoriaMetrics; its requests are packed before the
clock starts, and a cycle is done when it is searchable. It reaches the disk within 5 s, so only this peer can lose a
cycle.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peer_duckdb, peer_victoria
from benchmarks.common import Result, main, quick, result
from benchmarks.engines import Engine, engines
from benchmarks.fleet_values import fleet_day
from benchmarks.peer_rows import WideRows
from outrider.model import EntityKind, SampleBatch
from store.factory import open_metrics, urls_of

TARGET = 20e6  # values/s, one SQLite file
KINDS = (EntityKind.GPU, EntityKind.REPLICA)
CYCLES, PEER_CYCLES, WARM_UP = 40, 10, 3
UNIT = "values/s"


def _cycles(count: int) -> Iterator[tuple[datetime, list[SampleBatch], int]]:
    """Yields cycles with their number of values."""
    for at, batches in fleet_day().cycles(count, KINDS):
        yield at, batches, sum(int(np.count_nonzero(~np.isnan(batch.values))) for batch in batches)


def _median(write: Callable[[datetime, Sequence[SampleBatch]], object], count: int) -> tuple[float, float]:
    """Returns values/s of the median cycle, and its seconds."""
    seconds, values = [], []
    for at, batches, cells in _cycles(count):
        begun = time.perf_counter()
        write(at, batches)
        seconds.append(time.perf_counter() - begun)
        values.append(cells)
    middle = statistics.median(seconds[WARM_UP:])
    return statistics.fmean(values[WARM_UP:]) / middle, middle


def _ours(engine: Engine) -> tuple[float, float]:
    assert engine.url is not None
    store = open_metrics(urls_of(engine.url)[1])
    try:
        return _median(store.write, 3 + WARM_UP if quick() else CYCLES)
    finally:
        store.close()


def _victoria(folder: Path) -> float:
    """Returns values/s of the median cycle; packing the requests is not counted."""
    peer, speeds = peer_victoria.Victoria(folder), []
    try:
        for at, batches, cells in _cycles(PEER_CYCLES):
            requests = []
            for kind in KINDS:
                mine = [batch for batch in batches if batch.kind is kind]
                entities = [entity for batch in mine for entity in batch.entities]
                values = np.concatenate([batch.values for batch in mine]).T
                requests += peer.requests(kind, mine[0].keys, entities, at.timestamp(), values)
            begun = time.perf_counter()
            peer.post(requests)
            speeds.append(cells / (time.perf_counter() - begun))
    finally:
        peer.close()
    return statistics.median(speeds[WARM_UP:])


def _peers(folder: Path) -> Iterator[tuple[str, float]]:
    """Yields the name of each available peer and its values/s."""
    rows = WideRows(folder)
    yield rows.name, _median(rows.write, PEER_CYCLES)[0]
    rows.close()
    if peer_duckdb.available():
        duck = peer_duckdb.Duck(folder)
        yield duck.name, _median(duck.write, PEER_CYCLES)[0]
        duck.close()
    if peer_victoria.available():
        yield peer_victoria.Victoria.name, _victoria(folder)


def run() -> list[Result]:
    """Returns durable signal values/s: SQLite against each peer, and PostgreSQL."""
    with tempfile.TemporaryDirectory() as name, engines(Path(name)) as results:
        ours = {engine: _ours(engine) if engine.url else None for engine in results}
        peers = dict(_peers(Path(name)))
    lines = []
    first = next(iter(peers))
    for engine, measured in ours.items():
        if measured is None:
            lines.append(engine.skipped("store_write", UNIT, None))
            continue
        speed, cycle = measured
        target = TARGET if engine.name == "sqlite" else None
        holds = None if target is None else speed >= target
        more = {"seconds_per_cycle": round(cycle, 4)}
        name = f"store_write{engine.suffix}"
        lines.append(result(name, speed, UNIT, target, holds, first, peers[first], speed / peers[first], **more))
        if engine.name == "sqlite":
            lines += _against(speed, peers)
    return lines


def _against(speed: float, peers: dict[str, float]) -> list[Result]:
    """Returns a line for each other peer, including missing ones."""
    results = []
    for short, peer, module in (
        ("duckdb", "DuckDB, wide rows from Arrow", peer_duckdb),
        ("victoriametrics", peer_victoria.Victoria.name, peer_victoria),
    ):
        name = f"store_write_against_{short}"
        if peer in peers:
            results.append(result(name, speed, UNIT, None, None, peer, peers[peer], speed / peers[peer]))
        else:
            results.append(result(name, None, UNIT, None, None, peer, note=module.MISSING))
    return results


if __name__ == "__main__":
    main(run)
