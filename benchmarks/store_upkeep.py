"""Effect of maintenance on writers: an hour of 1,000 GPUs and 1,000 replicas is compacted and rolled up.

Meanwhile a writer adds a cycle every quarter of a second. The figures are the longest write transaction of maintenance,
the writer's slowest and median cycle, and the bytes of the 10-minute and 1-hour tiers per raw value.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sqlalchemy as sa

from benchmarks.common import Result, main, result
from benchmarks.fleet_values import CYCLES, START, fleet_day
from outrider.model import EntityKind, SampleBatch
from store.factory import SqlMetricStore, open_metrics
from store.sql.database import Database

TARGET_SECONDS, TARGET_BYTES = 0.2, 0.4
KINDS = (EntityKind.GPU, EntityKind.REPLICA)
PACE_SECONDS = 0.25


class Writer(threading.Thread):
    """Writes cycles until it is stopped."""

    def __init__(self, store: SqlMetricStore, cycles: Iterator[tuple[datetime, list[SampleBatch]]]) -> None:
        """Writes ``cycles`` in order."""
        super().__init__()
        self._store, self._cycles = store, cycles
        self.enough = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        """Writes a cycle, pauses, and repeats."""
        while not self.enough.wait(PACE_SECONDS):
            at, batches = next(self._cycles)
            begun = time.perf_counter()
            self._store.write(at, batches)
            self.seconds.append(time.perf_counter() - begun)


def _bytes(url: str) -> dict[str, tuple[int, int]]:
    """Returns the payload bytes and the number of rows of each tier."""
    database = Database(url, "metrics")
    try:
        with database.reading() as connection:
            query = sa.text("SELECT tier, sum(length(payload)), count(*) FROM block GROUP BY tier")
            return {tier: (int(size), int(rows)) for tier, size, rows in connection.execute(query)}
    finally:
        database.close()


def run() -> list[Result]:
    """Returns the longest write transaction of maintenance, and the size of roll-ups."""
    day = fleet_day()
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/upkeep.db"
        store = open_metrics(url)
        try:
            values, alone = 0, []
            for at, batches in day.cycles(CYCLES, KINDS):
                begun = time.perf_counter()
                values += store.write(at, batches)
                alone.append(time.perf_counter() - begun)
            writer = Writer(store, day.cycles(10 * CYCLES, KINDS, first=CYCLES))
            writer.start()
            begun = time.perf_counter()
            done = store.maintain(START + timedelta(hours=1, minutes=10))
            elapsed = time.perf_counter() - begun
            writer.enough.set()
            writer.join()
            longest = store.longest_maintenance_seconds
        finally:
            store.close()
        sizes = _bytes(url)
    ten, hour = (sizes[tier][0] / values for tier in ("10m", "1h"))
    return [
        result(
            "store_upkeep",
            longest,
            "s",
            TARGET_SECONDS,
            longest <= TARGET_SECONDS,
            "median cycle of the writer",
            sorted(alone)[len(alone) // 2],
            slowest_cycle_alone=round(max(alone), 3),
            slowest_cycle_meanwhile=round(max(writer.seconds), 3),
            cycles_meanwhile=len(writer.seconds),
            seconds_of_the_run=round(elapsed, 2),
            steps=sum(done.done.values()),
        ),
        result(
            "store_upkeep_bytes", ten + hour, "bytes/value", TARGET_BYTES, ten + hour <= TARGET_BYTES,
            ten_minutes=round(ten, 4), hours=round(hour, 4), raw_values=values,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
