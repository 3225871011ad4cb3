"""A store killed during compaction, roll-up and retention opens without damage and without loss."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from outrider.model import Statistic
from store.factory import open_metrics, urls_of
from store.memory import MemoryMetricStore
from tests.store.aged_store import EVERY, HOUR, MINUTE, START, assert_same_reads, fill
from tests.store.maintenance_writer import KEEPS

ROOT = Path(__file__).resolve().parents[3]
WRITER = "tests.store.maintenance_writer"
ENOUGH = 150  # cycles: by then hours were compacted, rolled up and deleted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_writes_survive_kill_9_during_maintenance(store_url: str, seed: int) -> None:
    command = [sys.executable, "-m", WRITER, store_url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(ENOUGH)]
        time.sleep(random.Random(seed).uniform(0.0, 1.0))
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    acknowledged = max(int(line) for line in lines if line.endswith("\n"))
    store = open_metrics(urls_of(store_url)[1])
    try:
        with store._database.reading() as connection:
            newest = connection.execute(sa.text("SELECT max(at) FROM latest_gpu")).scalar_one()
            if connection.dialect.name == "sqlite":
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        written = acknowledged
        if newest == (START + acknowledged * EVERY).isoformat().replace("+00:00", "Z"):
            written += 1  # written, but not printed yet
        truth = MemoryMetricStore()
        end = START + written * EVERY
        fill(truth, end=end)
        for now in (None, end + MINUTE, end + timedelta(days=2)):
            if now is not None:
                store.maintain(now, KEEPS)
            assert_same_reads(store, truth, (10 * MINUTE, HOUR), START, end, (Statistic.LAST, Statistic.MAX))
        with store._database.reading() as connection:
            remaining = connection.execute(sa.text("SELECT (SELECT count(*) FROM hidden), (SELECT count(*) FROM due)"))
            assert tuple(remaining.one()) == (0, 0)
    finally:
        store.close()
