"""Kills a writer at a random instant and looks at what it left: for the tests, and for ``benchmarks/soak.py``."""

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

MOST_SECONDS = 1.5  # of writing before the kill: some hours of the writer's time
DURING_UPKEEP_SECONDS = 0.05
MOST_LINES = 5 * AN_HOUR


@dataclass(frozen=True, slots=True)
class Killed:
    """``cycles`` are in the store now, ``acknowledged`` were said to be; ``in_upkeep``: its upkeep was cut short."""

    cycles: int
    acknowledged: int
    in_upkeep: bool


def kill(url: str, rng: random.Random, first: int = 1) -> Killed:
    """Start a writer at cycle ``first``, kill it with SIGKILL, and check the store. AssertionError says what is wrong.

    Every other time the kill comes soon after the writer has begun its upkeep.
    """
    command = [sys.executable, cycle_writer.__file__, url, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        if rng.random() < 0.5:
            while said[-1] and said[-1] != "upkeep\n" and len(said) < MOST_LINES:
                said.append(writer.stdout.readline())
            time.sleep(rng.uniform(0.0, DURING_UPKEEP_SECONDS))
        else:
            time.sleep(rng.uniform(0.0, MOST_SECONDS))
        assert writer.poll() is None, "the writer stopped by itself"
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
    whole = [line.strip() for line in said if line.endswith("\n")]
    acknowledged = max([first - 1, *(int(line) for line in whole if line.isdigit())])
    upkeep = [line for line in whole if not line.isdigit()]
    return Killed(check(url, acknowledged), acknowledged, bool(upkeep) and upkeep[-1] == "upkeep")


def check(url: str, acknowledged: int) -> int:
    """What a writer left behind is whole, and goes up to ``acknowledged`` at least. Returns how many cycles it has."""
    state_url, metrics_url = urls_of(url)
    open_state(state_url).close()  # opens clean: this upgrades, and would say if it could not
    cycles = _whole_state(state_url)
    assert cycles >= acknowledged, f"{acknowledged} cycles were acknowledged, {cycles} are there"
    _sound(metrics_url)
    _whole_metrics(metrics_url, acknowledged)
    return cycles


def _whole_state(url: str) -> int:
    """The number of the newest cycle. Cycles are numbered without gaps; of old ones only what they decided is kept."""
    with _reading(url, "state") as connection:
        at = metadata.cycle.c.at_us
        asked = sa.select(sa.func.count(), sa.func.min(at), sa.func.max(at))
        count, oldest, newest = connection.execute(asked).one()
        alerts, messages = (
            int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
            for table in (metadata.alert, metadata.message)
        )
    if not count:
        assert alerts == messages == 0, "something was decided in no cycle"
        return 0
    numbers = [round((metadata.instant(moment) - instant(0)) / STEP) for moment in (oldest, newest)]
    assert count == numbers[1] - numbers[0] + 1, f"cycles {numbers[0]} to {numbers[1]} are only {count}"
    decided = f"of {numbers[1]} cycles there are {alerts} alerts and {messages} messages"
    assert alerts == messages == 2 * numbers[1], decided
    return numbers[1]


def _sound(url: str) -> None:
    with _reading(url, "metrics") as connection:
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


def _whole_metrics(url: str, acknowledged: int) -> None:
    """Every minute of the last hours, and every hour since the start: raw values and roll-ups say the same."""
    store = open_metrics(url)
    try:
        first = max(1, acknowledged - 2 * AN_HOUR)
        window = store.read_windows(EntityKind.GPU, KEYS, instant(first), instant(acknowledged + 2), STEP)
        numbers = (window.times - instant(0).timestamp()) / STEP.total_seconds()
        whole = (window.values == numbers[None, :, None]).all(axis=(0, 2))
        empty = np.isnan(window.values).all(axis=(0, 2))
        assert (whole | empty).all(), "a cycle is half there"
        assert whole[: acknowledged - first + 1].all(), "an acknowledged cycle is lost"
        hours = acknowledged // AN_HOUR
        if hours:
            _whole_hours(store.read_windows, hours)
    finally:
        store.close()


def _whole_hours(read_windows: object, hours: int) -> None:
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
    """Bytes of the metrics on disk: of the SQLite file, of PostgreSQL's tables."""
    with _reading(urls_of(url)[1], "metrics") as connection:
        if connection.dialect.name == "sqlite":
            return Path(str(connection.engine.url.database)).stat().st_size
        held = sa.text("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = ANY(:names)")
        wide = ("latest_", "hourly_")
        every = sa.inspect(connection).get_table_names()
        names = [name for name in every if name in metadata.metrics.tables or name.startswith(wide)]
        return int(connection.execute(held, {"names": names}).scalar_one())
