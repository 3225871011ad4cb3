"""Accuracy of stored forecasts against the observed load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import BacktestScore, CellStatus, CycleRecord, EntityKind, EntityRef, Forecast, Plan, Window
from outrider.ports import CycleCommit
from service.planning.forecast_accuracy import accuracy_by_horizon
from store.memory import MemoryStateStore

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
SERVICE = EntityRef("lab", EntityKind.SERVICE, "prod", "chat")
STEP = timedelta(minutes=10)


class History:
    """The load of one service by slots of ten minutes, the first of them at ``start``."""

    def __init__(self, start: datetime, values: np.ndarray) -> None:
        self.start, self.values = start, values

    def read_windows(self, kind, keys, begin, end, step, entities) -> Window:
        count = round((end - begin) / step)
        times = begin.timestamp() + step.total_seconds() * np.arange(count)
        indices = np.round((times - self.start.timestamp()) / step.total_seconds()).astype(int)
        inside = (indices >= 0) & (indices < self.values.size)
        values = np.where(inside, self.values[np.clip(indices, 0, self.values.size - 1)], np.nan)
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        cells = values[None, :, None], status[None, :, None]
        return Window(kind, tuple(entities), times, tuple(keys), *cells, step)


def _store_forecast(state, made_at, level, peak, steps=144):
    origin = np.ceil(made_at.timestamp() / 600) * 600
    times = origin + 600.0 * np.arange(steps)
    flat = np.full(steps, level)
    peaks = {0.5: np.full(steps, peak), 0.95: np.full(steps, peak * 1.25)}
    forecast = Forecast(
        "svc_requests_per_second", SERVICE, made_at, STEP, times, {0.5: flat}, "ensemble",
        BacktestScore(None, None, None, 0), peaks=peaks,
    )  # fmt: skip
    cycle = CycleRecord(f"c{made_at.timestamp()}", made_at, 1.0, 1, 1, 0, 0, 0, 0)
    state.commit(CycleCommit(cycle, plan=Plan((forecast,))))


def test_load_and_peaks_are_compared_with_the_observed_load():
    state = MemoryStateStore()
    start = NOW - timedelta(hours=3)
    values = np.full(18, 10.0)
    values[3] = 40.0
    _store_forecast(state, start, 10.0, 16.0)
    _store_forecast(state, start + timedelta(hours=1), 12.0, 16.0)
    rows = accuracy_by_horizon(state, History(start, values), SERVICE, NOW, timedelta(hours=24))
    assert [row.horizon / STEP for row in rows] == [1, 3, 6, 12]
    ten, half, hour, two = rows
    assert ten.wape == pytest.approx((0 + 2) / 20)
    # the peak of the first forecast is 40 from its fourth slot on: above its p95 of 20
    assert (ten.peak_exceeds_p95, half.peak_exceeds_p95, hour.peak_exceeds_p95) == (0.0, 0.5, 0.5)
    assert half.peak_error == pytest.approx((24 + 6) / 50)
    assert ten.over_provision == pytest.approx(1.0)
    assert (two.forecasts, two.peak_exceeds_p95) == (1, 1.0)


def test_a_plan_made_within_a_slot_is_scored_from_the_next_slot_on():
    state = MemoryStateStore()
    start = NOW - timedelta(hours=1)
    values = np.array([90.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    _store_forecast(state, start + timedelta(minutes=4), 10.0, 8.0)
    rows = accuracy_by_horizon(state, History(start, values), SERVICE, NOW, timedelta(hours=24))
    assert [row.peak_exceeds_p95 for row in rows] == [0.0, 0.0]
    assert rows[0].over_provision == pytest.approx(0.0)


def test_missing_and_unfinished_slots_are_not_scored():
    state = MemoryStateStore()
    start = NOW - timedelta(hours=1)
    _store_forecast(state, start, 10.0, 16.0)
    rows = accuracy_by_horizon(state, History(start, np.full(6, np.nan)), SERVICE, NOW, timedelta(hours=24))
    assert [(row.forecasts, row.wape, row.peak_exceeds_p95) for row in rows] == [(0, None, None)] * 2
    assert accuracy_by_horizon(MemoryStateStore(), History(start, np.empty(0)), SERVICE, NOW, timedelta(hours=24)) == ()
    assert rows[0].as_dict()["horizon_seconds"] == 600.0
