from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pydantic import ValidationError

from outrider.documents.summaries import because
from outrider.model import CellStatus, EntityKind, EntityRef, FleetService, SignalKey, Window
from planner.capacity.plan import LOAD, PlanSettings, plan
from planner.forecast import batch_forecast, fit_nightly, forecast, model_selection
from planner.forecast import forecaster as forecast_forecaster
from planner.forecast.calendar import HOLIDAY, NO_CALENDAR, Calendar
from planner.forecast.series import Series
from service.config.planner_settings import PlannerSettings
from service.planning import nightly as module
from service.planning.nightly import Nightly
from service.planning.planning import calendar_of

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
STEP = timedelta(minutes=10)
CHAT, BATCH = (EntityRef("lab", EntityKind.SERVICE, "prod", name) for name in ("chat", "batch"))


def _history(days: float, now: datetime = NOW) -> Window:
    times = now.timestamp() - 600.0 * np.arange(round(days * 144), 0, -1)
    hour = times / 3600.0 % 24
    rows = np.stack([20.0 + 15.0 * np.sin(hour / 24 * 2 * np.pi), np.full(times.size, np.nan)])
    rows[0] *= np.exp(0.1 * np.random.default_rng(5).standard_normal(times.size))
    status = np.where(np.isnan(rows), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    key = (SignalKey("svc_requests_per_second"),)
    return Window(EntityKind.SERVICE, (CHAT, BATCH), times, key, rows[:, :, None], status[:, :, None], STEP)


def test_nightly_fits_are_used_by_the_plan_and_made_once_a_day():
    nightly, history, horizon = Nightly(1, None), _history(6.0), timedelta(hours=24)
    assert nightly.decisions() == {}
    assert nightly.start_if_due(history, [CHAT, BATCH], NOW, horizon, NO_CALENDAR)
    assert not nightly.start_if_due(history, [CHAT, BATCH], NOW, horizon, NO_CALENDAR)
    nightly.close()
    decisions = nightly.decisions()
    assert set(decisions) == {CHAT}  # the other has no value to fit
    assert not nightly.start_if_due(history, [CHAT, BATCH], NOW + timedelta(hours=3), horizon, NO_CALENDAR)
    fleet = [
        FleetService(CHAT, "H100", 4, 4, 1, 40, None, "USD"),
        FleetService(BATCH, "H100", 4, 4, 1, 40, None, "USD"),
    ]
    result = plan(history, {}, fleet, NOW, settings=PlanSettings(nights=decisions))
    assert "Prophet" in because(result.forecasts[0].why)
    assert len(result.forecasts) == 1
    plain = plan(history, {}, fleet, NOW, settings=PlanSettings())
    assert "Prophet" not in because(plain.forecasts[0].why)


def test_a_failed_night_keeps_the_fits_of_the_night_before(monkeypatch):
    def fail(_night):
        raise OSError("no process")

    monkeypatch.setattr(module, "fit_one", fail)
    nightly = Nightly(1, None)
    nightly.start_if_due(_history(6.0), [CHAT], NOW, timedelta(hours=24), NO_CALENDAR)
    nightly.close()
    assert nightly.decisions() == {}


class UselessForecaster:
    """Fits, but its forecasts are useless."""

    name, title, extra = "prophet", "Prophet", ""

    def is_absent(self):
        return False

    def fit(self, series, ahead):
        return Absurd()


class Absurd:
    def at(self, series, origins, leads):
        return np.full((origins.size, leads.size), 1000.0)


class Broken(UselessForecaster):
    def fit(self, series, ahead):
        raise ImportError("libstan.so.2: no such file")


def _night(monkeypatch, forecaster, **more):
    monkeypatch.setattr(forecast_forecaster, "FORECASTERS", {"prophet": forecaster})
    monkeypatch.setattr(model_selection, "FORECASTERS", {"prophet": forecaster})
    nightly = Nightly(1, None)
    nightly.start_if_due(_history(6.0), [CHAT], NOW, timedelta(hours=24), NO_CALENDAR, **more)
    nightly.close()
    return nightly


def test_services_without_a_selected_model_are_forecast_in_one_batch(monkeypatch):
    decisions = _night(monkeypatch, UselessForecaster()).decisions()
    assert decisions[CHAT].fits.requested == ("prophet",)
    assert decisions[CHAT].selected == ()
    history, horizon = _history(6.0), timedelta(hours=24)
    alone = forecast(
        history.times,
        history.column(LOAD)[0],
        signal=LOAD.name,
        entity=CHAT,
        now=NOW,
        models=("ensemble", "prophet"),
        fits=decisions[CHAT].fits,
        may_fit=False,
    )

    def refuse(*_args, **_kwargs):
        raise AssertionError("forecast alone")

    monkeypatch.setattr(batch_forecast, "_forecast_service", refuse)
    forecasted = batch_forecast.forecast_all(history, NOW, horizon, decisions)[CHAT]
    assert (forecasted.model, forecasted.why) == (alone.model, alone.why)
    assert "Prophet is not used: the back-test error" in because(forecasted.why)
    for level, values in alone.quantiles.items():
        np.testing.assert_allclose(forecasted.quantiles[level], values, rtol=1e-4)


@pytest.mark.slow
def test_a_library_that_does_not_load_is_reported_and_rules_are_still_chosen(monkeypatch):
    nightly = _night(monkeypatch, Broken(), leads={CHAT: timedelta(minutes=5)})
    assert set(nightly.rules()) == {CHAT}
    forecasted = batch_forecast.forecast_all(_history(6.0), NOW, timedelta(hours=24), nightly.decisions())[CHAT]
    assert "Prophet is not used: no fit was found (libstan.so.2: no such file)" in because(forecasted.why)


def test_a_failed_replay_keeps_the_default_margin_and_reports_it(monkeypatch):
    def broken(*_args):
        raise TypeError("no such axis")

    monkeypatch.setattr(module, "best_rule", broken)
    nightly = _night(monkeypatch, UselessForecaster(), leads={CHAT: timedelta(minutes=5)})
    assert nightly.rules() == {}
    forecasted = batch_forecast.forecast_all(_history(6.0), NOW, timedelta(hours=24), nightly.decisions())[CHAT]
    assert "the default margin is used" in because(forecasted.why)
    assert "no such axis" in because(forecasted.why, "zh")


@pytest.mark.parametrize(
    ("zone", "midnight"),
    [
        ("Asia/Shanghai", datetime(2026, 5, 20, 16, tzinfo=UTC)),
        ("America/Los_Angeles", datetime(2026, 5, 20, 7, tzinfo=UTC)),
    ],
)
def test_a_night_begins_at_midnight_of_the_planners_zone(zone, midnight):
    nightly, history, horizon = Nightly(1, None, models=()), _history(1.0), timedelta(hours=24)
    calendar, minute = Calendar(zone=zone), timedelta(minutes=1)

    def begins(at):
        started = nightly.start_if_due(history, [CHAT], at, horizon, calendar)
        if started:
            nightly._running.result()
        return started

    assert begins(midnight - timedelta(hours=20))
    assert not begins(midnight - minute)
    assert begins(midnight + minute)
    assert not begins(midnight + timedelta(hours=24) - minute)
    assert begins(midnight + timedelta(hours=24))
    nightly.close()


def test_leads_of_a_whole_day_are_known_until_the_next_midnight_of_the_zone():
    zone, horizon = Calendar(zone="Asia/Shanghai"), timedelta(hours=24)
    begin, last = (datetime(2026, 5, 20, hour, minute, tzinfo=UTC) for hour, minute in ((0, 0), (15, 50)))
    history = _history(6.0, begin)
    decision = fit_nightly(history.times, history.column(LOAD)[0], now=begin, horizon=horizon, calendar=zone)
    newest = decision.fits.made["prophet"][max(decision.fits.made["prophet"])]
    wall = Series(newest.start, 600.0, np.ones(round((last.timestamp() + 8 * 3600 - newest.start) / 600)))
    values = newest.at(wall, np.array([wall.values.size]), np.arange(1, 145))
    assert np.isfinite(values).all()


def test_a_failed_night_is_retried_after_an_hour(monkeypatch):
    def fail(_night):
        raise OSError("no process")

    monkeypatch.setattr(module, "fit_one", fail)
    nightly, history, horizon = Nightly(1, None), _history(1.0), timedelta(hours=24)
    assert nightly.start_if_due(history, [CHAT], NOW, horizon, NO_CALENDAR)
    assert isinstance(nightly._running.exception(), OSError)
    assert not nightly.start_if_due(history, [CHAT], NOW + timedelta(minutes=10), horizon, NO_CALENDAR)
    assert nightly.start_if_due(history, [CHAT], NOW + timedelta(hours=1), horizon, NO_CALENDAR)
    nightly.close()


def test_the_calendar_is_read_from_the_settings():
    settings = PlannerSettings.model_validate(
        {
            "zone": "Europe/Berlin",
            "holidays": "DE",
            "events": [{"name": "sale", "start": "2026-05-21T08:00:00Z", "end": "2026-05-21T20:00:00Z", "ratio": 2}],
        }
    )
    calendar = calendar_of(settings, NOW)
    assert calendar.zone == "Europe/Berlin"
    assert [event.name for event in calendar.events] == ["sale", HOLIDAY, HOLIDAY]  # Ascension Day, Whit Monday
    assert calendar.events[0].ratio == 2.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"zone": "Mars"}, "not a time zone"),
        ({"holidays": "XX"}, "unknown country"),
        ({"events": [{"name": "x", "start": "2026-05-21T08:00:00Z", "end": "2026-05-21T07:00:00Z"}]}, "after start"),
        ({"events": [{"name": "x", "start": "2026-05-21T08:00:00", "end": "2026-05-21T09:00:00Z"}]}, "timezone"),
        ({"forecasters": ["arima"]}, "'autoets', 'mstl' or 'lstm'"),
        ({"workers": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_settings_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        PlannerSettings.model_validate(wrong)


def test_the_configuration_selects_the_fitted_forecasters():
    assert PlannerSettings().models == ("prophet",)
    settings = PlannerSettings.model_validate({"forecasters": ["mstl", "autoets", "mstl"]})
    assert settings.models == ("prophet", "mstl", "autoets")
    assert PlannerSettings.model_validate({"prophet": False}).models == ()
