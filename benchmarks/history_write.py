"""A year of 1,000 GPUs backfilled into a SQLite store: fleet, load, latencies, devices, hosts, maintenance.

Hourly steps (8,760 timestamps per entity) with launches, holidays, rollouts and restarts. The time includes computing
values from measured engine profiles, packing and writing. The peer is a live simulation of the same fleet, timed for
one simulated minute and scaled to a year with one scrape an hour; it simulates every second.
``OUTRIDER_QUICK=1`` writes a week.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from benchmarks.fleet.batches import Sampler
from simulator.backfill import fleet_history
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, PoolSpec, TrafficSpec, default_spec
from store import factory, migrate

TARGET_SECONDS = 600.0  # "minutes"
START, YEAR, WEEK = datetime(2025, 11, 17, tzinfo=UTC), timedelta(days=365), timedelta(days=7)
STEP = timedelta(hours=1)
NODES, SERVICES = 125, 10
SHAPES = ("weekly", "launch-day", "holiday", "bursty", "diurnal")


def spec() -> FleetSpec:
    """Returns 125 nodes of eight GPUs, ten services of 24 replicas on four GPUs each, and 40 spare GPUs."""
    known = default_spec()
    services = tuple(
        replace(
            known.services[0],
            name=f"service-{number:02}",
            replicas=24,
            ceiling=24,
            traffic=TrafficSpec(shape=SHAPES[number % len(SHAPES)], peak_ratio=0.25 if number % 5 == 3 else 0.6),
        )
        for number in range(SERVICES)
    )
    return FleetSpec("year", (PoolSpec("pool", known.pools[0].gpu_type, NODES),), services)


def _written(folder: Path, fleet: FleetSpec, span: timedelta) -> tuple[float, int, float, int]:
    """Returns seconds to compute, cells, seconds to write, bytes on disk."""
    url = f"sqlite:///{folder}/year.db"
    migrate.upgrade(url)
    store = factory.open_metrics(factory.urls_of(url)[1])
    making = writing = 0.0
    cells = 0
    mark = time.perf_counter()
    try:
        for block in fleet_history.backfill(fleet, 5, START, START + span, STEP, maintenance=True):
            middle = time.perf_counter()
            cells += store.write_block(block.kind, block.times, block.keys, block.entities, block.values, block.status)
            making, writing, mark = making + middle - mark, writing + time.perf_counter() - middle, time.perf_counter()
    finally:
        store.close()
    return making, cells, writing, sum(path.stat().st_size for path in folder.glob("year*.db*"))


def _lived(fleet: FleetSpec, span: timedelta) -> float:
    """Returns the seconds that a live fleet would need for the span, extrapolated from one minute."""
    live = Fleet(fleet, seed=5, start=START)
    sampler, minute = Sampler(live), timedelta(minutes=1)
    begun = time.perf_counter()
    live.step(minute)
    sampler.batches()
    return (time.perf_counter() - begun) * (span / minute)


def run() -> Result:
    """Returns the seconds to write a year of 1,000 GPUs."""
    span = WEEK if os.environ.get("OUTRIDER_QUICK", "") not in ("", "0") else YEAR
    fleet = spec()
    with tempfile.TemporaryDirectory(prefix="outrider-year-") as name:
        making, cells, writing, size = _written(Path(name), fleet, span)
    seconds = making + writing
    lived = _lived(fleet, span)
    return result(
        "history_write",
        seconds,
        "s",
        TARGET_SECONDS,
        seconds <= TARGET_SECONDS,
        "live fleet, scraped once an hour",
        lived,
        lived / seconds,
        days=span.days,
        step_seconds=STEP.total_seconds(),
        values=cells,
        values_per_second=round(cells / seconds),
        seconds_making=round(making, 1),
        seconds_writing=round(writing, 1),
        bytes_per_value=round(size / max(cells, 1), 3),
    )


if __name__ == "__main__":
    main(run)
