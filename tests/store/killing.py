"""Kills a writer at a random time and checks the store that it leaves, for the tests and ``benchmarks/soak.py``."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from outrider.model import EntityKind
from store.factory import open_metrics, open_state, urls_of
from store.schema import metadata
from store.sql.database import Database
from tests.store import cycle_writer
from tests.store.cycle_writer import AN_HOUR, GAUGES, INCREASES, KEYS, STEP, instant

MOST_SECONDS = 1.5  # of writing before the kill: some hours of simulated time
MAINTENANCE_SECONDS = 0.05
MOST_LINES = 5 * AN_HOUR


@dataclass(frozen=True, slots=True)
class KillResult:
    """Cycles in the store, and cycles that the writer acknowledged. ``in_maintenance``: maintenance was interrupted."""

    cycles: int
    acknowledged: int
    in_maintenance: bool


def kill(url: str, rng: random.Random, first: int = 1) -> KillResult:
    """Starts a writer at cycle ``first``, kills it with SIGKILL, and checks the store. Raises AssertionError.

    Every other kill comes soon after the writer has begun maintenance.
    """
    command = [sys.executable, cycle_writer.__file__, url, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        if rng.random() < 0.5:
            while lines[-1] and lines[-1] != "upkeep\n" and len(lines) < MOST_LINES:
                lines.append(writer.stdout.readline())
            time.sleep(rng.uniform(0.0, MAINTENANCE_SECONDS))
        else:
            time.sleep(rng.uniform(0.0, MOST_SECONDS))
        assert writer.poll() is None, "the writer stopped by itself"
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    complete = [line.strip() for line in lines if line.endswith("\n")]
    acknowledged = max([first - 1, *(int(line) for line in complete if line.isdigit())])
    maintenance_lines = [line for line in complete if not line.isdigit()]
    return KillResult(
        check(url, acknowledged), acknowledged, bool(maintenance_lines) and maintenance_lines[-1] == "upkeep"
    )


def check(url: str, acknowledged: int) -> int:
    """Checks that all cycles are complete and that none up to ``acknowledged`` is missing. Returns their number."""
    state_url, metrics_url = urls_of(url)
    open_state(state_url).close()  # upgrades, and raises if it cannot
    cycles = _check_state(state_url)
    assert cycles >= acknowledged, f"{acknowledged} cycles were acknowledged, {cycles} are stored"
    _check_integrity(metrics_url)
    _check_metrics(metrics_url, acknowledged)
    return cycles


def _check_state(url: str) -> int:
    """The number of the newest cycle. Cycles are numbered without gaps; old cycles keep only their decisions."""
    with _reading(url, "state") as connection:
        at = metadata.cycle.c.at_us
        query = sa.select(sa.func.count(), sa.func.min(at), sa.func.max(at))
        count, oldest, newest = connection.execute(query).one()
        alerts, messages = (
            int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
            for table in (metadata.alert, metadata.message)
        )
    if not count:
        assert alerts == messages == 0, "decisions without a cycle"
        return 0
    numbers = [round((metadata.instant(moment) - instant(0)) / STEP) for moment in (oldest, newest)]
    assert count == numbers[1] - numbers[0] + 1, f"only {count} of the cycles {numbers[0]} to {numbers[1]}"
    message = f"{numbers[1]} cycles with {alerts} alerts and {messages} messages"
    assert alerts == messages == 2 * numbers[1], message
    return numbers[1]


def _check_integrity(url: str) -> None:
    with _reading(url, "metrics") as connection:
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


def _check_metrics(url: str, acknowledged: int) -> None:
    """Compares every minute of the last hours and every hour since the start: raw values equal roll-ups."""
    store = open_metrics(url)
    try:
        first = max(1, acknowledged - 2 * AN_HOUR)
        window = store.read_windows(EntityKind.GPU, KEYS, instant(first), instant(acknowledged + 2), STEP)
        numbers = (window.times - instant(0).timestamp()) / STEP.total_seconds()
        complete = (window.values == numbers[None, :, None]).all(axis=(0, 2))
        empty = np.isnan(window.values).all(axis=(0, 2))
        assert (complete | empty).all(), "a cycle is incomplete"
        assert complete[: acknowledged - first + 1].all(), "an acknowledged cycle is lost"
        hours = acknowledged // AN_HOUR
        if hours:
            _check_hours(store.read_windows, hours)
    finally:
        store.close()


def _check_hours(read_windows: object, hours: int) -> None:
    assert callable(read_windows)
    window = read_windows(EntityKind.GPU, KEYS, instant(0), instant(hours * AN_HOUR), timedelta(hours=1))
    first = np.arange(hours) * AN_HOUR
    last = first + AN_HOUR - 1
    total = (last * (last + 1) - (first - 1) * first) // 2
    gauges, increases = window.values[..., : len(GAUGES)], window.values[..., len(GAUGES) :]
    np.testing.assert_array_equal(gauges, np.broadcast_to(last[None, :, None], gauges.shape))
    assert increases.shape[2] == len(INCREASES)
    np.testing.assert_array_equal(increases, np.broadcast_to(total[None, :, None], increases.shape))


@contextmanager
def _reading(url: str, area: str) -> Iterator[sa.Connection]:
    database = Database(url, area)
    try:
        with database.reading() as connection:
            yield connection
    finally:
        database.close()


def size(url: str) -> int:
    """Bytes of the metrics on disk: the SQLite file, or PostgreSQL's tables."""
    with _reading(urls_of(url)[1], "metrics") as connection:
        if connection.dialect.name == "sqlite":
            return Path(str(connection.engine.url.database)).stat().st_size
        query = sa.text("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = ANY(:names)")
        wide = ("latest_", "hourly_")
        tables = sa.inspect(connection).get_table_names()
        names = [name for name in tables if name in metadata.metrics.tables or name.startswith(wide)]
        return int(connection.execute(query, {"names": names}).scalar_one())
