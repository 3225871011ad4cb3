"""Maintenance concurrent with writers and other maintenance loses no row, no number and no cycle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.model import EntityKind
from store.factory import SqlMetricStore, open_metrics, urls_of
from store.memory import MemoryMetricStore
from store.schema import metadata
from store.tsdb import atomic_replace
from store.tsdb.retention import DeletionReason
from store.tsdb.tiers import Work
from tests.store import aged_store
from tests.store.aged_store import EVERY, GPUS, HOUR, MINUTE, NEXT_DAYS, POWER, START, assert_same_reads, fill
from tests.store.maintenance_cases import KEEPS, batch, rows, tiers


@pytest.mark.slow
def test_a_cycle_written_during_compaction_is_not_lost(
    metrics: SqlMetricStore, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    written: list[int] = []
    stage = atomic_replace.stage

    def interrupted(*arguments: object) -> list[int]:
        ids = stage(*arguments)  # type: ignore[arg-type]
        if len(written) < 4:
            at = START + len(written) * MINUTE / 4 + MINUTE
            written.append(1)
            for store in (metrics, truth):
                store.write(at, batch(at, 9000.0 + len(written)))
        return ids

    monkeypatch.setattr(atomic_replace, "stage", interrupted)
    report = metrics.maintain(NEXT_DAYS, KEEPS)
    assert len(written) == 4
    assert report.postponed == 1, "three attempts were interrupted by writes; the next run succeeds"
    assert_same_reads(metrics, truth, (10 * MINUTE, HOUR))
    metrics.maintain(NEXT_DAYS, KEEPS)
    assert_same_reads(metrics, truth, (10 * MINUTE, HOUR))


@pytest.mark.slow
def test_two_maintenance_runs_do_not_delete_each_others_rows(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    other = open_metrics(urls_of(store_url)[1])
    stage, swap = atomic_replace.stage, atomic_replace.swap
    begun: list[int] = []

    def swap_with_other(*arguments: object) -> bool:
        if not begun:
            begun.append(1)
            monkeypatch.setattr(atomic_replace, "swap", swap)
            other.maintain(NEXT_DAYS, KEEPS)  # deletes hidden rows, and does all the work
        return swap(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic_replace, "swap", swap_with_other)
    metrics.maintain(NEXT_DAYS, KEEPS)
    assert atomic_replace.stage is stage
    other.close()
    assert_same_reads(metrics, truth)
    assert tiers(store_url) == {"raw": 36, "10m": 14, "1h": 14}


@pytest.mark.slow
def test_rows_that_another_run_shows_meanwhile_are_not_deleted(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    other = open_metrics(urls_of(store_url)[1])
    swap, batches = atomic_replace.swap, atomic_replace.batches
    swapped: list[bool] = []

    def swap_with_other(access: atomic_replace.Access, new: list[int], *arguments: object) -> bool:
        if not new or swapped:
            return swap(access, new, *arguments)  # type: ignore[arg-type]

        def between(sized: object) -> Iterator[list[int]]:
            listed = list(sized)  # type: ignore[call-overload]
            if not swapped:
                swapped.append(swap(access, new, *arguments))  # type: ignore[arg-type]
            yield from batches(listed)

        monkeypatch.setattr(atomic_replace, "batches", between)
        freed.append(atomic_replace.purge(other._upkeep._access))
        monkeypatch.setattr(atomic_replace, "batches", batches)
        return swapped[0]

    freed: list[int] = []
    monkeypatch.setattr(atomic_replace, "swap", swap_with_other)
    metrics.maintain(NEXT_DAYS, KEEPS)
    other.close()
    assert (swapped, freed) == ([True], [0]), "the row was hidden when listed, and visible at the delete"
    assert_same_reads(metrics, truth)
    assert tiers(store_url) == {"raw": 36, "10m": 14, "1h": 14}


def test_no_row_id_is_reused_after_a_delete(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics, end=START + HOUR)
    access = metrics._upkeep._access
    copied = rows(store_url, "SELECT count(*) FROM block")[0][0]
    staged = [stage_again(access) for _ in range(3)]
    atomic_replace.purge(access)
    assert rows(store_url, "SELECT count(*) FROM block") == [(copied + 1,)]  # type: ignore[operator]
    assert stage_again(access) > max(staged)
    fill(metrics, start=START + HOUR, end=START + HOUR + EVERY)
    atomic_replace.purge(access)
    assert rows(store_url, "SELECT count(*) FROM hidden") == [(0,)]


def stage_again(access: atomic_replace.Access) -> int:
    """Copies the oldest block as a hidden row; returns its id."""
    with access.reading() as connection:
        row = connection.execute(sa.select(metadata.block).order_by(metadata.block.c.id).limit(1)).one()
    with access.writing() as connection:
        again = {name: value for name, value in row._mapping.items() if name != "id"}
        (number,) = connection.execute(sa.insert(metadata.block), again).inserted_primary_key  # type: ignore[misc]
        connection.execute(sa.insert(metadata.hidden), {"block_id": number})
    return int(number)


def test_rewritten_history_leaves_hidden_rows_to_maintenance(metrics: SqlMetricStore, store_url: str) -> None:
    times = START.timestamp() + 60.0 * np.arange(30)
    values = np.arange(30.0).reshape(1, 30, 1)
    for key in (POWER, aged_store.ECC):
        metrics.write_block(EntityKind.GPU, times, [key], GPUS[:1], values)
    stage_again(metrics._upkeep._access)
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:1], values)
    window = metrics.read_windows(EntityKind.GPU, [POWER], START, START + 30 * MINUTE, MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], values[:, :, 0])


def test_unused_cohorts_are_deleted_and_recreated(metrics: SqlMetricStore, store_url: str) -> None:
    for minute in range(4):
        at = START + minute * MINUTE
        metrics.write(at, batch(at, 1.0, (minute,)))
    metrics.maintain(START + timedelta(hours=1, minutes=3), KEEPS)
    assert rows(store_url, "SELECT count(*) FROM cohort") == [(1,)], (
        "the cohort of the hour; those of its cycles are deleted"
    )
    at = START + HOUR
    assert metrics.write(at, batch(at, 5.0, (0,))) == 1
    assert metrics.latest(EntityKind.GPU, [POWER]).entities == (GPUS[0],)


def test_a_cohort_deleted_by_another_process_is_recreated(metrics: SqlMetricStore, store_url: str) -> None:
    other = open_metrics(urls_of(store_url)[1])
    for minute, names in enumerate([(0, 1), (1, 2), (0, 2), (2, 3)]):
        at = START + minute * MINUTE
        metrics.write(at, batch(at, 1.0, names))
    assert other.prune(START + 2 * HOUR, KEEPS).deletions.rows["cohort", DeletionReason.UNUSED] > 0
    other.close()
    at = START + 2 * HOUR
    assert metrics.write(at, batch(at, 5.0, (0, 1))) == 2
    assert metrics.latest(EntityKind.GPU, [POWER]).values[:, 0, 0].tolist() == [5.0, 5.0]


def test_maintenance_continues_after_another_process_deleted_entities(metrics: SqlMetricStore, store_url: str) -> None:
    metrics.write(START, batch(START, 1.0, (0,)))
    later = START + timedelta(days=500)
    metrics.write(later, batch(later, 2.0, (1,)))
    other = open_metrics(urls_of(store_url)[1])
    other.prune(later + MINUTE, KEEPS)  # the newest row stays, hidden
    metrics.write(later + MINUTE, batch(later + MINUTE, 2.0, (2,)))
    assert other.prune(later + 2 * MINUTE, KEEPS).deletions.rows["entity", DeletionReason.UNUSED] == 1
    other.close()
    report = metrics.maintain(later + 2 * HOUR, KEEPS)
    assert report.done[Work.COMPACT] == 1
    window = metrics.read_windows(EntityKind.GPU, [POWER], later, later + 2 * MINUTE, MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], [[2.0, np.nan], [np.nan, 2.0]])
