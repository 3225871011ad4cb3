from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from outrider.model import Calibration, CellStatus, EntityKind, EntityRef, SignalKey, Window
from planner.performance.calibrate import (
    LENGTHS,
    STARTUP_PRIOR_SECONDS,
    CalibrationRefusal,
    ConfiguredFigures,
    MeasuredFigures,
    NoCalibration,
    calibrate,
    measure,
)

NAMES = (
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_generation_tokens_total",
    "engine_requests_finished_total",
    "engine_kv_cache_usage_ratio",
)


def _window(running, waiting=0.0, kv_used=0.2, speed=25.0, length=300.0, step=60.0) -> Window:
    """Replicas whose sequences each generate ``speed`` tokens per second."""
    running = np.atleast_2d(np.asarray(running, dtype=float))
    tokens = running * speed * step
    columns = [running, np.broadcast_to(waiting, running.shape), tokens, tokens / length]
    values = np.stack([*columns, np.broadcast_to(kv_used, running.shape)], axis=2)
    entities = tuple(EntityRef("lab", EntityKind.REPLICA, "prod", f"r{row}") for row in range(running.shape[0]))
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    keys = tuple(SignalKey(name) for name in NAMES)
    return Window(
        EntityKind.REPLICA, entities, 60.0 * np.arange(running.shape[1]), keys, values, status, timedelta(seconds=step)
    )


def test_an_engine_at_its_knee_is_measured(build):
    running = np.concatenate([np.arange(1.0, 33.0), np.full(20, 40.0)])
    waiting = np.concatenate([np.zeros(32), np.full(20, 12.0)])
    result = calibrate(_window([running, running], waiting), build.service, gpu_type="H100", tensor_parallel=4)
    assert isinstance(result, Calibration)
    assert result.origin == "measured"
    assert result.tokens_per_request == pytest.approx(300)
    assert result.tokens_per_second_per_sequence == pytest.approx(25)
    assert 30 <= result.batch <= 32
    assert result.samples > 30
    assert (result.startup_seconds, result.tensor_parallel) == (STARTUP_PRIOR_SECONDS, 4)
    assert result.startup_source.startswith("prior")


def test_sequences_slow_down_as_the_batch_fills_and_the_full_batch_counts(build):
    running = np.tile(np.arange(1.0, 33.0), 4)
    speed = 50.0 - running
    window = _window(running, kv_used=running / 32, speed=speed)
    result = measure(window, build.service)
    assert isinstance(result, MeasuredFigures)
    assert 18 <= result.tokens_per_second_per_sequence.value <= 25
    estimate = result.tokens_per_second_per_sequence
    assert estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (_window(np.full(200, np.nan)), CalibrationRefusal.NO_VALUES),
        (_window(np.concatenate([np.zeros(500), np.full(10, 5.0)])), CalibrationRefusal.TOO_FEW_SAMPLES),
        (_window(np.full(200, 5.0), length=np.inf), CalibrationRefusal.NO_FINISHED_REQUESTS),
        (_window(np.full(200, 5.0)), CalibrationRefusal.NOT_ENOUGH_LOAD),
    ],
)
def test_a_refusal_has_a_reason(build, window, reason):
    result = calibrate(window, build.service, gpu_type="H100")
    assert isinstance(result, NoCalibration)
    assert result.reason is reason
    for language in ("en", "zh"):
        assert "plan." not in result.text(language)
        assert "{" not in result.text(language)


def test_configured_figures_replace_missing_measurements(build):
    given = ConfiguredFigures(batch=32.0, tokens_per_second_per_sequence=25.0, startup_seconds=120.0)
    result = calibrate(_window(np.full(200, 5.0)), build.service, gpu_type="H100", configured=given)
    assert isinstance(result, Calibration)
    assert (result.origin, result.batch, result.startup_seconds) == ("configured", 32.0, 120.0)
    assert result.tokens_per_request == pytest.approx(300)
    half = ConfiguredFigures(batch=32.0)
    assert isinstance(
        calibrate(_window(np.full(200, 5.0)), build.service, gpu_type="H100", configured=half), NoCalibration
    )


def test_measured_figures_win_over_configured_ones(build):
    given = ConfiguredFigures(tokens_per_request=1.0, batch=1.0, tokens_per_second_per_sequence=1.0)
    window = _window(np.full(200, 30.0), kv_used=0.9)
    result = calibrate(window, build.service, gpu_type="H100", configured=given, startup_seconds=77.0)
    assert isinstance(result, Calibration)
    assert (result.origin, result.batch, result.startup_seconds) == ("measured", 30.0, 77.0)
    assert result.startup_source.startswith("measured")


def test_an_empty_window_is_refused(build):
    result = measure(_window(np.empty((1, 0))), build.service)
    assert isinstance(result, NoCalibration)


def test_lengths_come_from_the_engines_histogram_if_reported(build):
    running = np.concatenate([np.arange(1.0, 33.0), np.full(20, 40.0)])
    waiting = np.concatenate([np.zeros(32), np.full(20, 12.0)])
    plain = _window([running, running], waiting)
    # ten answers of 70 tokens a step, in the bucket of 50 to 100; counters say 300 tokens a request
    counts = np.zeros((2, running.size, len(LENGTHS.bucket_keys)))
    counts[:, :, LENGTHS.bounds.index(100.0)] = 10.0
    counts[:, :, -1] = 700.0
    values = np.concatenate([plain.values, counts], axis=2)
    facts = replace(
        plain,
        keys=(*plain.keys, *LENGTHS.bucket_keys),
        values=values,
        status=np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8),
    )
    assert measure(plain, build.service).tokens_per_request.value == pytest.approx(300)
    assert measure(facts, build.service).tokens_per_request.value == pytest.approx(70)


def test_intervals_are_those_of_the_figures_and_shrink_with_more_of_the_same(build):
    random = np.random.default_rng(3)

    def spread(steps):
        running = np.clip(random.normal(30, 6, (2, steps)), 1, 60)
        window = _window(running, kv_used=0.8, speed=25 + random.normal(0, 4, running.shape))
        result = measure(window, build.service)
        assert isinstance(result, MeasuredFigures)
        speed = result.tokens_per_second_per_sequence
        assert speed.low <= 25.2
        assert speed.high >= 24.8
        return speed.high - speed.low

    assert spread(1600) < 0.6 * spread(100)


_MINUTES = 2 * 24 * 60
"""Calibration of the engines below: two days with a period of six hours, so that each part has the same loads."""


def _minutes() -> tuple[np.ndarray, np.ndarray]:
    """Running sequences of two engines by the minute, and their tokens: a step takes longer the fuller the batch."""
    minute = np.arange(_MINUTES)
    wave = 34.0 + 28.0 * np.sin(2 * np.pi * minute / (6 * 60))
    running = np.clip(wave + np.random.default_rng(5).normal(0.0, 1.0, (2, _MINUTES)), 1.0, 70.0)
    return running, 60.0 * running / (0.015 + 0.0002 * running)


def _observed(spacing: int, step: int, span: int, lost: np.ndarray | None = None) -> Window:
    """The last ``span`` minutes as a store returns them: scraped every ``spacing`` minutes, in steps of ``step``.

    ``lost`` are failed scrapes: the next increase covers their time too. Gauges are means of a step.
    """
    running, tokens = _minutes()
    scraped = (np.arange(_MINUTES) + 1) % spacing == 0
    if lost is not None:
        scraped &= ~lost
    places = np.flatnonzero(scraped)
    total = np.cumsum(tokens, axis=1)[:, places]
    increase = np.diff(total, axis=1, prepend=0.0)
    cells = _MINUTES // step
    shown = np.full((2, cells, len(NAMES)), np.nan)
    for cell in np.unique(places // step):
        inside = np.flatnonzero(places // step == cell)
        level = running[:, places[inside]].mean(axis=1)
        made = increase[:, inside].sum(axis=1)
        shown[:, cell] = np.stack([level, np.zeros(2), made, made / 300.0, level / 70.0], axis=1)
    shown = shown[:, cells - span // step :]
    status = np.where(np.isnan(shown), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entities = tuple(EntityRef("lab", EntityKind.REPLICA, "prod", f"r{row}") for row in range(2))
    keys = tuple(SignalKey(name) for name in NAMES)
    times = 60.0 * step * np.arange(shown.shape[1])
    return Window(EntityKind.REPLICA, entities, times, keys, shown, status, timedelta(minutes=step))


_LOST_NOW_AND_THEN = np.random.default_rng(9).random(_MINUTES) < 0.25
_LOST_FOR_LONG = (np.arange(_MINUTES) // 25) % 4 == 1


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(_observed(5, 1, _MINUTES), id="sparser_than_the_steps"),
        pytest.param(_observed(10, 1, _MINUTES), id="far_sparser_than_the_steps"),
        pytest.param(_observed(1, 5, _MINUTES), id="denser_than_the_steps"),
        pytest.param(_observed(5, 5, _MINUTES), id="as_dense_as_the_steps"),
        pytest.param(_observed(1, 10, _MINUTES), id="long_steps"),
        pytest.param(_observed(1, 1, 24 * 60), id="half_the_span"),
        pytest.param(_observed(1, 1, 6 * 60), id="an_eighth_of_the_span"),
        pytest.param(_observed(1, 1, _MINUTES, _LOST_NOW_AND_THEN), id="a_scrape_in_four_lost"),
        pytest.param(_observed(1, 1, _MINUTES, _LOST_FOR_LONG), id="outages_of_the_collector"),
    ],
)
def test_span_spacing_and_gaps_of_the_history_change_no_figure(build, window):
    whole = measure(_observed(1, 1, _MINUTES), build.service)
    result = measure(window, build.service)
    assert isinstance(whole, MeasuredFigures)
    assert isinstance(result, MeasuredFigures)
    assert result.batch.value == pytest.approx(whole.batch.value, rel=0.04)
    speed = whole.tokens_per_second_per_sequence.value
    assert result.tokens_per_second_per_sequence.value == pytest.approx(speed, rel=0.02)
    # the engines' speed at that batch, except for sequences of cells that are slightly less full
    assert speed == pytest.approx(1.0 / (0.015 + 0.0002 * whole.batch.value), rel=0.06)


def test_a_dense_evening_after_a_sparse_past_is_read_as_both(build):
    sparse, dense = _observed(5, 1, _MINUTES), _observed(1, 1, _MINUTES)
    values = np.concatenate([sparse.values[:, : _MINUTES // 2], dense.values[:, _MINUTES // 2 :]], axis=1)
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    result, whole = measure(replace(sparse, values=values, status=status), build.service), measure(dense, build.service)
    assert result.batch.value == pytest.approx(whole.batch.value, rel=0.03)
    speed = whole.tokens_per_second_per_sequence.value
    assert result.tokens_per_second_per_sequence.value == pytest.approx(speed, rel=0.02)


def test_quiet_days_before_the_load_change_no_figure(build):
    busy = _observed(1, 1, 6 * 60)
    quiet = busy.values.copy()
    quiet[:, :, [0, 2, 3, 4]] *= 0.1
    values = np.concatenate([quiet, quiet, quiet, busy.values], axis=1)
    status = np.zeros(values.shape, dtype=np.uint8)
    window = replace(busy, times=60.0 * np.arange(values.shape[1]), values=values, status=status)
    result, alone = measure(window, build.service), measure(busy, build.service)
    assert result.batch.value == alone.batch.value
    speed = alone.tokens_per_second_per_sequence.value
    assert result.tokens_per_second_per_sequence.value == pytest.approx(speed, rel=0.01)


def test_a_queue_at_a_half_empty_engine_is_not_full_load(build):
    running = np.concatenate([np.full(200, 30.0), np.full(50, 5.0)])
    waiting = np.concatenate([np.zeros(200), np.full(50, 2.0)])
    result = measure(_window([running, running], waiting), build.service)
    assert isinstance(result, NoCalibration)
    assert result.reason is CalibrationRefusal.NOT_ENOUGH_LOAD
