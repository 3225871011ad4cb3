from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.model import Forecast, NoPlanReason
from planner.forecast import Calendar, Event, forecast, forecast_rows
from planner.forecast.calendar import HOLIDAY, by_wall_clock, effects, holidays
from planner.forecast.forecaster import FAST_MODELS
from planner.forecast.series import Series

DAY = 144


def _forecast(build, values, **changes):
    times = build.now.timestamp() - 600.0 * np.arange(values.size, 0, -1)
    facts = {"signal": "s", "entity": build.service, "now": build.now, "models": FAST_MODELS}
    return forecast(times, values, **{**facts, **changes})


def test_negative_infinite_and_missing_values_are_not_learned_from(build):
    clean = build.wave(6.0)
    holed = clean.copy()
    spoiled = clean.copy()
    holed[[100, 300, 500]] = np.nan
    spoiled[[100, 300, 500]] = [-5.0, np.inf, -np.inf]
    one, other = _forecast(build, holed), _forecast(build, spoiled)
    np.testing.assert_array_equal(one.quantiles[0.95], other.quantiles[0.95])


def test_duplicates_and_disorder_end_in_one_series(build):
    values = build.wave(5.0)
    times = build.times(5.0)
    order = np.random.default_rng(2).permutation(times.size)
    facts = {"signal": "s", "entity": build.service, "now": build.now, "models": FAST_MODELS}
    plain = forecast(times, values, **facts)
    mixed = forecast(np.concatenate([times[order], times]), np.concatenate([values[order], values]), **facts)
    np.testing.assert_array_equal(plain.quantiles[0.5], mixed.quantiles[0.5])


def test_one_hundredfold_spike_is_not_forecast(build):
    values = build.wave(6.0)
    spiked = values.copy()
    spiked[-40] *= 100
    calm, result = _forecast(build, values), _forecast(build, spiked)
    ratio = result.quantiles[0.5] / calm.quantiles[0.5]
    assert 0.7 < ratio.min() <= ratio.max() < 1.4


def test_a_spike_in_the_newest_slot_fades(build):
    values = build.wave(6.0)
    spiked = values.copy()
    spiked[-1] *= 100
    ratio = _forecast(build, spiked).quantiles[0.5] / _forecast(build, values).quantiles[0.5]
    assert ratio[12:].max() < 4
    assert ratio[-1] < 1.5


def test_a_half_scraped_slot_is_not_a_drop(build):
    values = build.wave(6.0)
    broken = values.copy()
    broken[-1] /= 50
    ratio = _forecast(build, broken).quantiles[0.5] / _forecast(build, values).quantiles[0.5]
    assert ratio.min() > 0.8


def test_a_level_shift_is_followed_within_hours(build):
    values = build.wave(8.0, noise=0.02)
    values[-24:] *= 3.0
    ratio = (
        _forecast(build, values).quantiles[0.5][:12] / _forecast(build, build.wave(8.0, noise=0.02)).quantiles[0.5][:12]
    )
    assert 2.4 < ratio.min() <= ratio.max() < 3.6


def test_a_new_service_is_forecast_from_its_first_slot(build):
    for slots in (1, 2, 5, 30, 143, 144, 145, 300):
        result = _forecast(build, build.wave(3.0)[:slots])
        assert isinstance(result, Forecast)
        assert np.isfinite(result.quantiles[0.95]).all()


def test_a_launch_does_not_stay_at_nothing(build):
    values = np.concatenate([np.zeros(3 * DAY), build.wave(2.0, noise=0.02)])
    result = _forecast(build, values)
    assert np.abs(result.quantiles[0.5][:6] / values[-1] - 1).max() < 0.3


def test_a_service_that_sleeps_by_night_sleeps(build):
    hour = build.times(7.0) / 3600 % 24
    values = np.where((hour > 8) & (hour < 18), 40.0, 0.0)
    result = _forecast(build, values)
    ahead = result.times / 3600 % 24
    assert (result.quantiles[0.5][(ahead > 20) | (ahead < 6)] < 1.0).all()
    assert result.quantiles[0.5][(ahead > 10) & (ahead < 16)].min() > 35


def test_a_metrics_outage_widens_the_forecast(build):
    values = build.wave(7.0)
    lost = values.copy()
    lost[-18:] = np.nan
    result = _forecast(build, lost)
    ratio = result.quantiles[0.5] / _forecast(build, values).quantiles[0.5]
    assert 0.8 < ratio.min() <= ratio.max() < 1.25


def test_batched_rows_equal_single_rows(build):
    rows = np.stack([build.wave(6.0, seed=3), np.full(6 * DAY, np.nan), build.wave(6.0, seed=4, level=900.0)])
    rows[2, :200] = np.nan
    facts = {"signal": "s", "now": build.now}
    result = forecast_rows(build.times(6.0), rows, entities=[build.service] * 3, **facts)
    assert result[1] is NoPlanReason.NO_HISTORY
    for row in (0, 2):
        alone = forecast(build.times(6.0), rows[row], entity=build.service, models=FAST_MODELS, **facts)
        np.testing.assert_allclose(result[row].quantiles[0.95], alone.quantiles[0.95], rtol=0.01)
        assert result[row].score.wape == pytest.approx(alone.score.wape, rel=0.02)


def test_an_event_with_a_ratio_raises_the_forecast(build):
    values = build.wave(6.0)
    event = Event("launch", build.now + timedelta(hours=2), build.now + timedelta(hours=4), ratio=2.0)
    plain, result = _forecast(build, values), _forecast(build, values, calendar=Calendar((event,)))
    np.testing.assert_allclose(result.quantiles[0.5][12:24], 2 * plain.quantiles[0.5][12:24])
    np.testing.assert_allclose(result.quantiles[0.5][:12], plain.quantiles[0.5][:12])
    assert result.peaks[0.95][23] > 1.8 * plain.peaks[0.95][11]


def test_an_event_is_learned_from_its_last_occasion(build):
    values = build.wave(8.0, noise=0.02)
    before = build.now - timedelta(days=2)
    occasions = tuple(Event("sale", at, at + timedelta(hours=3)) for at in (before, build.now + timedelta(hours=2)))
    values[-2 * DAY : -2 * DAY + 18] *= 3.0
    plain = _forecast(build, build.wave(8.0, noise=0.02))
    result = _forecast(build, values, calendar=Calendar(occasions))
    ratio = result.quantiles[0.5] / plain.quantiles[0.5]
    assert 2.7 < ratio[12:30].min() <= ratio[12:30].max() < 3.3
    assert 0.93 < ratio[40:].min() <= ratio[40:].max() < 1.07


def test_invalid_events_and_zones_are_refused(build):
    with pytest.raises(UsageError, match="end must be after start"):
        Event("x", build.now, build.now)
    with pytest.raises(UsageError, match="must be above 0"):
        Event("x", build.now, build.now + timedelta(hours=1), ratio=-1.0)
    with pytest.raises(UsageError, match="not a time zone"):
        _forecast(build, build.wave(3.0), calendar=Calendar(zone="Mars/Olympus"))
    with pytest.raises(UsageError, match="no holidays"):
        holidays("XX", date(2026, 1, 1), date(2026, 12, 31))


def test_holidays_are_days_of_their_zone():
    result = holidays("DE", date(2026, 5, 1), date(2026, 5, 31), "Europe/Berlin")
    assert {event.name for event in result} == {HOLIDAY}
    assert result[0].start == datetime(2026, 4, 30, 22, tzinfo=UTC)


def _office(times, zone_hours):
    hour = (times / 3600 + zone_hours) % 24
    return 10.0 + 40.0 * ((hour >= 9) & (hour < 17))


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        (datetime(2026, 3, 29, 4, 0, tzinfo=UTC), 1, 2),  # clocks went forward three hours ago
        (datetime(2026, 10, 25, 4, 0, tzinfo=UTC), 2, 1),
        (datetime(2026, 3, 28, 20, 0, tzinfo=UTC), 1, 2),  # they will go in five hours
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), 2, 1),  # in the repeated hour
    ],
)
def test_summer_time_moves_no_office_hour(build, now, before, after):
    change = datetime(now.year, now.month, 29 if now.month == 3 else 25, 1, tzinfo=UTC).timestamp()
    times = now.timestamp() - 600.0 * np.arange(8 * DAY, 0, -1)
    values = np.where(times < change, _office(times, before), _office(times, after))
    facts = {"signal": "s", "entity": build.service, "now": now, "models": FAST_MODELS}
    result = forecast(times, values, calendar=Calendar(zone="Europe/Berlin"), **facts)
    ahead = result.times
    truth = np.where(ahead < change, _office(ahead, before), _office(ahead, after))
    assert np.abs(result.quantiles[0.5] - truth).sum() / truth.sum() < 0.02


@pytest.mark.parametrize(("day", "before", "after"), [(29, 1, 2), (25, 2, 1)])
def test_the_effect_of_a_holiday_is_learned_by_hours_of_the_users_clock(day, before, after):
    change = datetime(2026, 3 if day == 29 else 10, day, 1, tzinfo=UTC)
    now = change + timedelta(days=2)
    times = now.timestamp() - 600.0 * np.arange(9 * DAY, 0, -1)
    usual = np.where(times < change.timestamp(), _office(times, before), _office(times, after))
    starts = (change + timedelta(days=1)).replace(hour=0) - timedelta(hours=after)  # the local midnight after
    event = Event(HOLIDAY, starts + timedelta(hours=9), starts + timedelta(hours=10))
    inside = (times >= event.start.timestamp()) & (times < event.end.timestamp())
    series = Series.of(times, np.where(inside, 0.5 * usual, usual), timedelta(minutes=10), now)
    effect = effects(series, 1, (event,), Calendar(zone="Europe/Berlin").clock())
    np.testing.assert_allclose(np.exp(effect[:-1][inside]), 0.5, rtol=0.01)


def test_a_wall_clock_without_change_is_the_series_itself():
    series = Series(0.0, 600.0, np.arange(300.0))
    wall = by_wall_clock(series, 10, Calendar(zone="Asia/Shanghai").clock())
    np.testing.assert_array_equal(wall.values, series.values)
    assert wall.origin == series.origin + 8 * 3600
