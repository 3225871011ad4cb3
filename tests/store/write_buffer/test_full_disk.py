"""A full or read-only disk: a small tmpfs under a store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import StoreUnavailableError
from outrider.model import EntityKind, EntityRef, SampleBatch, SignalKey
from store.factory import SqlMetricStore, open_metrics
from store.write_buffer.buffered_store import BufferedMetricStore
from tests.support import postgres

T0 = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)
KEYS = tuple(SignalKey("engine_ttft_seconds", bucket=index) for index in range(16))
REPLICAS = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", f"r-{index}") for index in range(2000))


@contextmanager
def disk_of(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs on a new folder."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"missing: the right to mount a file system: {done.stderr.strip() or os.geteuid()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", "4m") as disk:
        yield disk


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def batch(number: int) -> SampleBatch:
    values = np.random.default_rng(number).integers(0, 1000, (len(REPLICAS), len(KEYS))).astype(float)
    return SampleBatch("x", T0, EntityKind.REPLICA, KEYS, REPLICAS, values, np.zeros(values.shape, np.uint8))


def written_until_full(store: SqlMetricStore) -> int:
    for number in range(500):
        try:
            store.write(T0 + number * STEP, [batch(number)])
        except StoreUnavailableError:
            break
    with pytest.raises(StoreUnavailableError, match="is full; this write was rolled back"):
        store.write(T0 + number * STEP, [batch(number)])
    return number


def test_cycles_are_buffered_while_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    waits_until_there_is_room(open_metrics(f"sqlite:///{small_disk}/x.db"), ballast, tmp_path / "spool")


@pytest.mark.slow
def test_cycles_are_buffered_while_the_disk_of_a_server_is_full(
    postgres_server: postgres.Server, tmp_path: Path
) -> None:
    with disk_of(postgres_server.folder / "small", "24m") as disk, postgres_server.database_in(disk) as url:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        waits_until_there_is_room(open_metrics(url), ballast, tmp_path / "spool")


def waits_until_there_is_room(store: SqlMetricStore, ballast: Path, folder: Path) -> None:
    written = written_until_full(store)
    assert written > 3
    spooled = BufferedMetricStore(store, folder, 1 << 24)
    for number in (written, written + 1):
        spooled.write(T0 + number * STEP, [batch(number)])
    assert spooled.status().cycles == 2
    ballast.unlink()
    spooled.write(T0 + (written + 2) * STEP, [batch(written + 2)])
    assert spooled.status().cycles == 0
    window = spooled.read_windows(EntityKind.REPLICA, KEYS, T0, T0 + (written + 3) * STEP, STEP, REPLICAS)
    for number in range(written + 3):
        np.testing.assert_array_equal(window.values[:, number], batch(number).values)
    spooled.close()


def test_cycles_are_buffered_while_the_disk_is_read_only(small_disk: Path, tmp_path: Path) -> None:
    """As the kernel remounts a disk after an error, when open files are lost."""
    store = open_metrics(f"sqlite:///{small_disk}/x.db")
    spooled = BufferedMetricStore(store, tmp_path / "spool", 1 << 24)
    spooled.write(T0, [batch(0)])
    store._database._opened.pool.dispose()
    mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(StoreUnavailableError, match=r"cannot be (written|opened)"):
        store.write(T0 + STEP, [batch(1)])
    for number in (1, 2, 3):
        spooled.write(T0 + number * STEP, [batch(number)])
    assert spooled.status().cycles == 3
    store._database._opened.pool.dispose()
    mount("-o", "remount,rw", str(small_disk))
    spooled.write(T0 + 4 * STEP, [batch(4)])
    assert (spooled.status().cycles, spooled.status().dropped_cycles) == (0, 0)
    window = spooled.read_windows(EntityKind.REPLICA, KEYS, T0, T0 + 5 * STEP, STEP, REPLICAS)
    for number in range(5):
        np.testing.assert_array_equal(window.values[:, number], batch(number).values)
    spooled.close()
