from __future__ import annotations

import warnings
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.documents.summaries import because
from outrider.model import Forecast, NoPlanReason
from planner.forecast import forecast, prophet
from planner.forecast.forecaster import FAST_MODELS
from planner.forecast.naive import last_value, seasonal_naive
from planner.forecast.nightly_fit import Fits
from planner.forecast.series import Series

CHEAP = FAST_MODELS


def _forecast(build, values, **changes):
    times = build.now.timestamp() - 600.0 * np.arange(values.size, 0, -1)
    facts = {"signal": "svc_requests_per_second", "entity": build.service, "now": build.now}
    return forecast(times, values, **{**facts, **changes})


def _shape_is_right(result, steps=144):
    lows = result.quantiles[0.05]
    for quantile in (0.5, 0.8, 0.9, 0.95):
        assert result.quantiles[quantile].shape == (steps,)
        assert np.isfinite(result.quantiles[quantile]).all()
        assert (result.quantiles[quantile] >= lows).all()
        lows = result.quantiles[quantile]
    assert (result.quantiles[0.05] >= 0).all()


@pytest.mark.slow
def test_a_daily_wave_is_forecast_with_prophet_among_the_judged(build):
    truth = build.wave(9.0, seed=11)
    known = truth[: 8 * 144]
    moment = build.now - timedelta(days=1)
    times = build.times(9.0)[: 8 * 144]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = forecast(
            times, known, signal="svc_requests_per_second", entity=build.service, now=moment, horizon=timedelta(days=1)
        )
    _shape_is_right(result)
    assert result.score.wape < 0.1
    assert "prophet" in because(result.why).lower()
    actual = truth[8 * 144 :]
    assert np.abs(result.quantiles[0.5] - actual).sum() / actual.sum() < 0.08
    inside = (actual >= result.quantiles[0.05]) & (actual <= result.quantiles[0.95])
    assert 0.8 <= inside.mean() <= 1.0
    assert result.times[0] == moment.timestamp()


def test_prophet_is_refused_if_it_does_not_help(build):
    # A square wave: Fourier terms ring at its edges, yesterday repeats it exactly.
    times = build.times(6.0)
    values = np.where(times // 3600 % 24 < 12, 5.0, 50.0)
    result = _forecast(build, values)
    assert result.model == "ensemble"
    assert "Prophet is not used: the back-test error would be" in because(result.why)
    assert [each.text for each in result.why] == ["plan.why_mix", "plan.why_refused"]
    assert "未使用 Prophet" in because(result.why, "zh")
    actual = np.resize(values[:144], 144)
    np.testing.assert_allclose(result.quantiles[0.5], actual, rtol=0.01)


def test_prophet_is_selected_if_it_helps(build, monkeypatch):
    # A wave of 31 hours, and a model that knows it: no day profile does as well.
    def wave(times):
        return 20.0 * (1.0 + 0.8 * np.sin(times / 3600.0 / 31 * 2 * np.pi))

    def knowing(series, ahead):
        times = series.start + 600.0 * np.arange(series.values.size + ahead)
        return prophet.FittedProphet(series.start, series.origin, np.log(wave(times) + 0.2), 0.2, np.zeros((144, 2)))

    monkeypatch.setattr(prophet, "fit", knowing)
    result = _forecast(build, wave(build.times(8.0)))
    assert result.model == "ensemble+prophet", because(result.why)
    assert "with Prophet" in because(result.why)


def test_fits_are_made_once_a_night(build):
    values, fits = build.wave(7.0), Fits()
    first = _forecast(build, values, fits=fits)
    made = fits.made_count
    again = _forecast(build, values, fits=fits)
    assert fits.made_count == made == 4
    np.testing.assert_array_equal(first.quantiles[0.95], again.quantiles[0.95])


def test_the_same_input_gives_the_same_output(build):
    values = build.wave(5.0)
    one, other = _forecast(build, values), _forecast(build, values)
    for quantile in one.quantiles:
        np.testing.assert_array_equal(one.quantiles[quantile], other.quantiles[quantile])


def test_nothing_is_read_from_the_future(build):
    values = build.wave(4.0)
    times = build.times(4.0)
    now = build.now - timedelta(days=1)
    facts = {"signal": "s", "entity": build.service, "now": now, "models": CHEAP}
    known = forecast(times, values, **facts)
    changed = forecast(times, np.where(times >= now.timestamp(), 1e6, values), **facts)
    np.testing.assert_array_equal(known.quantiles[0.95], changed.quantiles[0.95])


def test_no_history_is_a_result(build):
    assert _forecast(build, np.empty(0)) is NoPlanReason.NO_HISTORY
    assert _forecast(build, np.full(2000, np.nan)) is NoPlanReason.NO_HISTORY


@pytest.mark.parametrize("level", [0.0, 12.5])
def test_a_constant_load_stays_constant(build, level):
    result = _forecast(build, np.full(4 * 144, level))
    for values in (*result.quantiles.values(), *result.peaks.values()):
        np.testing.assert_allclose(values, level, atol=1e-9)
    assert "not changed" in because(result.why)


def test_less_than_a_day_carries_the_newest_values(build):
    values = build.wave(0.5)
    result = _forecast(build, values)
    np.testing.assert_allclose(result.quantiles[0.5][:60], values[-1], rtol=0.01)
    assert result.quantiles[0.95][0] > values[-1]
    assert "0.5 days" in because(result.why)


def test_one_value_is_spread_by_the_prior(build):
    result = _forecast(build, np.array([10.0]))
    assert result.quantiles[0.05][0] == pytest.approx(10 / 1.5, rel=0.01)
    # Nothing above 1.25 x the highest known value.
    assert result.quantiles[0.95][0] == pytest.approx(12.5, rel=0.01)


def test_missing_slots_are_allowed(build):
    values = build.wave(6.0)
    values[np.random.default_rng(3).random(values.size) < 0.2] = np.nan
    values[-3:] = np.nan
    result = _forecast(build, values)
    _shape_is_right(result)
    assert result.score.wape < 0.12


def test_weekly_terms_need_two_weeks(build, monkeypatch):
    observed = []
    import prophet as library

    class Recorder(library.Prophet):
        def __init__(self, **arguments) -> None:
            observed.append(arguments["weekly_seasonality"])
            super().__init__(**arguments)

    monkeypatch.setattr(library, "Prophet", Recorder)
    for days in (13.5, 14.5):
        values = build.wave(days)
        prophet.fit(Series(0.0, 600.0, values), 1)
    assert observed[0] is False
    assert observed[1] == 3


def test_a_prophet_without_a_fit_leaves_the_mix(build, monkeypatch):
    def fail(_series, _ahead):
        raise RuntimeError("Optimization terminated abnormally")

    monkeypatch.setattr(prophet, "fit", fail)
    result = _forecast(build, build.wave(5.0))
    assert result.model == "ensemble"
    assert "no fit was found" in because(result.why)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 700),
    st.floats(0, 1e6),
    st.floats(0, 3),
    st.integers(0, 2**16),
    st.floats(0, 0.95),
)
def test_any_history_gives_finite_quantiles_in_order(build, slots, level, noise, seed, missing):
    generator = np.random.default_rng(seed)
    values = level * np.exp(noise * generator.standard_normal(slots))
    values[generator.random(slots) < missing] = np.nan
    result = _forecast(build, values, models=CHEAP)
    if np.isnan(values).all():
        assert result is NoPlanReason.NO_HISTORY
    else:
        assert isinstance(result, Forecast)
        _shape_is_right(result)
        assert result.quantiles[0.95].max() <= 1.25 * np.nanmax(values) + 1e-9


def test_naive_forecasters_by_hand():
    day = np.arange(144.0)
    series = Series(0.0, 600.0, np.concatenate([day, day + 1000.0]))
    assert last_value(series, 2).tolist() == [1143.0, 1143.0]
    np.testing.assert_array_equal(seasonal_naive(series, 150)[:144], day + 1000.0)
    holed = Series(0.0, 600.0, np.concatenate([day, np.where(day == 5, np.nan, day + 1000.0)]))
    assert seasonal_naive(holed, 6)[5] == 5.0


def test_a_grid_puts_values_into_their_slots(build):
    now = build.now
    base = now.timestamp()
    series = Series.of(
        np.array([base - 1800, base - 1200 + 5, base - 100, base + 5]), np.array([1.0, -2.0, 3.0, 9.0]), build.step, now
    )
    np.testing.assert_array_equal(series.values, [1.0, np.nan, 3.0])
    assert series.origin == base
