"""During a store outage, cycles wait on disk: complete, in order, limited in size, and counted if dropped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.errors import StoreError, StoreUnavailableError
from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey, TrustVerdict
from outrider.ports import MetricStore
from store.factory import open_metrics, urls_of
from store.memory import MemoryMetricStore
from store.schema.metadata import micros
from store.write_buffer import buffered_store
from store.write_buffer.buffered_store import CATCH_UP, BufferedMetricStore
from store.write_buffer.dropped_cycles import Span
from store.write_buffer.segments import BufferedCycle, CycleFiles
from tests.support import postgres

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
POWER, TTFT = SignalKey("hw_accel_power_watts"), SignalKey("engine_ttft_seconds", bucket=3)
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(3))
PLENTY = 1 << 20
CRASH = Event("e", EventKind.LOG, GPUS[0], T0, "log", "cuda_oom", {"text": "größer"}, "e")


def batch(number: float) -> SampleBatch:
    values = np.array([[number], [number + 0.25], [np.nan]])
    status = np.array([[0], [0], [CellStatus.STALE]], dtype=np.uint8)
    at = T0 + timedelta(seconds=1)
    return SampleBatch("dcgm", at, EntityKind.GPU, (POWER,), GPUS, values, status, 15.0, TrustVerdict.STALE)


class Store(MemoryMetricStore):
    """A store in memory that raises ``error`` on writes, if set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = None
        self.order: list[datetime] = []

    def write(self, at: datetime, batches, events=()) -> int:  # type: ignore[no-untyped-def]
        if self.error is not None:
            raise self.error
        self.order.append(at)
        return super().write(at, batches, events)


UNAVAILABLE = StoreUnavailableError("The database does not answer.", hint="Start it.")


def column(store: MetricStore, steps: int) -> list[float]:
    return store.read_windows(EntityKind.GPU, [POWER], T0, T0 + steps * STEP, STEP).values[0, :, 0].tolist()


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


def test_a_cycle_is_read_back_from_its_file_unchanged(tmp_path: Path) -> None:
    files = CycleFiles(tmp_path / "spool", PLENTY)
    values = np.array([[1.5, np.inf]])
    second = SampleBatch("x", T0, EntityKind.GPU, (POWER, TTFT), GPUS[:1], values, np.zeros((1, 2), np.uint8))
    files.put(BufferedCycle(T0, (batch(1.0), second), (CRASH,)))
    (path,) = files.waiting()
    read = files.read(path)
    assert (read.at, read.events) == (T0, (CRASH,))
    for result, original in zip(read.batches, (batch(1.0), second), strict=True):
        np.testing.assert_array_equal(result.values, original.values)
        np.testing.assert_array_equal(result.status, original.status)
        for name in ("source", "scraped_at", "kind", "keys", "entities", "interval_seconds", "trust"):
            assert getattr(result, name) == getattr(original, name)


def test_cycles_wait_and_are_written_in_order(store: Store, tmp_path: Path) -> None:
    spooled = BufferedMetricStore(store, tmp_path / "spool", PLENTY)
    assert spooled.write(T0, [batch(0.0)]) == 2
    store.error = UNAVAILABLE
    for number in (1, 2, 3):
        assert spooled.write(T0 + number * STEP, [batch(float(number))], [CRASH]) == 2
    assert (spooled.status().cycles, spooled.status().oldest_at) == (3, T0 + STEP)
    assert spooled.status().bytes > 0
    store.error = None
    spooled.write(T0 + 4 * STEP, [batch(4.0)])
    assert store.order == [T0 + number * STEP for number in range(5)]
    assert column(store, 5) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert store.events(T0, T0 + STEP) == (CRASH,)
    assert spooled.status().cycles == 0


def test_buffered_cycles_survive_a_restart(store: Store, tmp_path: Path) -> None:
    store.error = UNAVAILABLE
    BufferedMetricStore(store, tmp_path, PLENTY).write(T0, [batch(1.0)])
    (tmp_path / "000000000002-9.part").write_bytes(b"incomplete cycle of a killed process")
    store.error = None
    BufferedMetricStore(store, tmp_path, PLENTY).write(T0 + STEP, [batch(2.0)])
    assert store.order == [T0, T0 + STEP]


def test_the_oldest_cycles_are_dropped_at_the_size_limit_and_counted(store: Store, tmp_path: Path) -> None:
    store.error = UNAVAILABLE
    BufferedMetricStore(store, tmp_path, PLENTY).write(T0, [batch(0.0)])
    limit = BufferedMetricStore(store, tmp_path, PLENTY).status().bytes * 3
    spooled = BufferedMetricStore(store, tmp_path, limit)
    for number in range(1, 10):
        spooled.write(T0 + number * STEP, [batch(float(number))])
    status = spooled.status()
    assert status.bytes <= limit == status.limit_bytes
    assert status.cycles + status.dropped_cycles == 10
    assert status.cycles >= 2
    assert status.oldest_at == T0 + (10 - status.cycles) * STEP
    assert BufferedMetricStore(store, tmp_path, limit).status().dropped_cycles == status.dropped_cycles


def full_spool(folder: Path, cycles: int, room: int = 3) -> tuple[CycleFiles, int]:
    """A buffer with room for ``room`` cycles after more were written, and its size limit in bytes."""
    CycleFiles(folder, PLENTY).put(BufferedCycle(T0, (batch(0.0),), ()))
    limit = int(CycleFiles(folder, PLENTY).status().bytes * (room + 0.5))
    files = CycleFiles(folder, limit)
    for number in range(1, cycles):
        files.put(BufferedCycle(T0 + number * STEP, (batch(float(number)),), ()))
    return files, limit


def test_dropped_cycles_are_recorded(tmp_path: Path) -> None:
    files, limit = full_spool(tmp_path, 10)
    assert files.lost() == (Span(micros(T0), micros(T0 + 6 * STEP), 7),)
    files.set_aside(files.waiting()[0])
    assert files.lost()[1:] == (Span(micros(T0 + 7 * STEP), micros(T0 + 7 * STEP), 1),)
    for path in files.waiting():
        files.done(path)  # the store has them
    files.put(BufferedCycle(T0 + 30 * STEP, (batch(1.0),), ()))
    for number in range(31, 35):
        files.put(BufferedCycle(T0 + number * STEP, (batch(float(number)),), ()))
    assert files.lost()[:2] == (
        Span(micros(T0), micros(T0 + 6 * STEP), 7),
        Span(micros(T0 + 7 * STEP), micros(T0 + 7 * STEP), 1),
    ), "the store has the cycles in between"
    assert files.lost()[2] == Span(micros(T0 + 30 * STEP), micros(T0 + 31 * STEP), 2)
    assert (files.status().dropped_cycles, files.record_error()) == (10, "")
    assert CycleFiles(tmp_path, limit).lost() == files.lost()
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_a_kill_between_the_record_and_the_delete_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, limit = full_spool(tmp_path, 4, room=3)
    before = files.status().dropped_cycles
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.put(BufferedCycle(T0 + 4 * STEP, (batch(4.0),), ()))
    monkeypatch.undo()
    assert before is not None
    again = CycleFiles(tmp_path, limit)
    assert (again.status().cycles, again.status().dropped_cycles) == (3, before + 1)
    again.put(BufferedCycle(T0 + 4 * STEP, (batch(4.0),), ()))
    assert (again.status().cycles, again.status().dropped_cycles) == (3, before + 1)


def test_an_unreadable_record_is_reported_and_not_reset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, limit = full_spool(tmp_path, 10)
    record = tmp_path / "dropped.json"
    whole = record.read_bytes()
    record.write_bytes(whole[:20])
    other = CycleFiles(tmp_path, limit)
    assert other.status().dropped_cycles is None
    assert f"{record} cannot be read" in other.record_error()
    other.put(BufferedCycle(T0 + 10 * STEP, (batch(10.0),), ()))
    assert record.read_bytes() == whole[:20], "a file that may be repaired is not overwritten"
    assert other.status().dropped_cycles is None
    assert (files.status().dropped_cycles, files.record_error()) == (7, ""), "its writer continues from memory"
    files.put(BufferedCycle(T0 + 11 * STEP, (batch(11.0),), ()))
    assert CycleFiles(tmp_path, limit).status().dropped_cycles == 8
    record.write_text('{"cycles": 40}', encoding="utf-8")  # format of the previous release
    assert CycleFiles(tmp_path, limit).status().dropped_cycles == 40
    assert "spool_record_unreadable" in "".join(capsys.readouterr())


class Slow(Store):
    """Each write takes time, on its own clock."""

    now = 0.0

    def write(self, at: datetime, batches, events=()) -> int:  # type: ignore[no-untyped-def]
        written = super().write(at, batches, events)
        self.now += CATCH_UP.total_seconds() / 7
        return written


def test_forty_cycles_are_replayed_over_several_cycles_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Slow()
    monkeypatch.setattr(buffered_store, "time", SimpleNamespace(monotonic=lambda: store.now))
    spooled = BufferedMetricStore(store, tmp_path, PLENTY)
    spooled.write(T0, [batch(0.0)])
    store.error = UNAVAILABLE
    for number in range(1, 41):
        spooled.write(T0 + number * STEP, [batch(float(number))])
    assert spooled.status().cycles == 40
    store.error = None
    left = []
    for number in range(41, 61):
        spooled.write(T0 + number * STEP, [batch(float(number))])
        left.append(spooled.status().cycles)
        if not left[-1]:
            break
    assert left[0] > 30, "one cycle does not write all buffered cycles"
    assert 4 < len(left) < 10
    assert left == sorted(left, reverse=True)
    assert store.order == [T0 + index * STEP for index in range(number + 1)]
    assert column(store, number + 1) == [float(index) for index in range(number + 1)]
    assert spooled.status().dropped_cycles == 0


def test_an_outage_beyond_the_limit_loses_the_oldest_and_counts_them(store: Store, tmp_path: Path) -> None:
    store.error = UNAVAILABLE
    CycleFiles(tmp_path / "one", PLENTY).put(BufferedCycle(T0, (batch(0.0),), ()))
    one = CycleFiles(tmp_path / "one", PLENTY).status().bytes
    spooled = BufferedMetricStore(store, tmp_path / "spool", one * 12)
    for number in range(40):
        spooled.write(T0 + number * STEP, [batch(float(number))])
    read, dropped = spooled.status().cycles, spooled.status().dropped_cycles
    assert 10 <= read <= 13
    assert read + dropped == 40
    store.error = None
    spooled.write(T0 + 40 * STEP, [batch(40.0)])
    dropped_in_total = spooled.status().dropped_cycles
    assert dropped_in_total - dropped <= 1, "room for the cycle that arrived when the store was back"
    assert store.order == [T0 + number * STEP for number in range(dropped_in_total, 41)]
    assert (spooled.status().cycles, dropped_in_total + len(store.order)) == (0, 41)


def test_the_part_file_of_a_killed_put_is_deleted(store: Store, tmp_path: Path) -> None:
    part = tmp_path / "000000000002-9.part"
    part.write_bytes(bytes(PLENTY))
    store.error = UNAVAILABLE
    BufferedMetricStore(store, tmp_path, PLENTY).write(T0, [batch(1.0)])
    assert not part.exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < PLENTY


def test_a_cycle_that_the_store_rejects_does_not_block_the_others(store: Store, tmp_path: Path) -> None:
    spooled = BufferedMetricStore(store, tmp_path, PLENTY)
    store.error = StoreError("Rejected: bad value.")
    spooled.write(T0, [batch(0.0)])
    for number in (1, 2, 3):
        spooled.write(T0 + number * STEP, [batch(float(number))])
    assert spooled.status().refused_cycles == 1
    store.error = None
    spooled.write(T0 + 4 * STEP, [batch(4.0)])
    assert store.order == [T0 + number * STEP for number in (1, 2, 3, 4)]


def test_a_damaged_file_is_set_aside(store: Store, tmp_path: Path) -> None:
    spooled = BufferedMetricStore(store, tmp_path, PLENTY)
    store.error = UNAVAILABLE
    spooled.write(T0, [batch(0.0)])
    spooled.write(T0 + STEP, [batch(1.0)])
    first, _ = CycleFiles(tmp_path, PLENTY).waiting()
    first.write_bytes(first.read_bytes()[:-9])
    store.error = None
    for number in (2, 3, 4, 5):
        spooled.write(T0 + number * STEP, [batch(float(number))])
    assert store.order == [T0 + number * STEP for number in range(1, 6)]
    assert (spooled.status().cycles, spooled.status().refused_cycles) == (0, 1)


def test_a_read_only_folder_loses_the_cycle_without_an_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spooled = BufferedMetricStore(store, tmp_path / "file" / "spool", PLENTY)
    store.error = UNAVAILABLE
    assert spooled.write(T0, [batch(0.0)]) == 0
    assert spooled.status().failed_cycles == 1
    (tmp_path / "file").unlink()
    assert spooled.write(T0 + STEP, [batch(1.0)]) == 2
    assert CycleFiles(tmp_path / "file" / "spool", PLENTY).status().failed_cycles == 1
    store.error = None
    assert spooled.write(T0 + 2 * STEP, [batch(2.0)]) == 2
    assert (store.order, spooled.status().failed_cycles) == ([T0 + STEP, T0 + 2 * STEP], 1)


def test_cycles_are_replayed_after_a_server_outage(
    postgres_url: str, postgres_server: postgres.Server, tmp_path: Path
) -> None:
    spooled = BufferedMetricStore(open_metrics(urls_of(postgres_url)[1]), tmp_path, PLENTY)
    spooled.write(T0, [batch(0.0)])
    postgres_server.stop("immediate")
    try:
        for number in (1, 2):
            assert spooled.write(T0 + number * STEP, [batch(float(number))]) == 2
    finally:
        postgres_server.start()
    spooled.write(T0 + 3 * STEP, [batch(3.0)])
    assert column(spooled, 4) == [0.0, 1.0, 2.0, 3.0]
    assert spooled.status().cycles == 0
    spooled.close()


def test_unwritable_cycles_are_recorded(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spooled = BufferedMetricStore(store, tmp_path / "file" / "spool", PLENTY)
    store.error = UNAVAILABLE
    for number in (0, 1):
        spooled.write(T0 + number * STEP, [batch(0.0)])
    (tmp_path / "file").unlink()
    spooled.write(T0 + 2 * STEP, [batch(1.0)])
    files = CycleFiles(tmp_path / "file" / "spool", PLENTY)
    assert files.lost() == (Span(micros(T0), micros(T0 + STEP), 2),)
    assert files.record_error() == ""
