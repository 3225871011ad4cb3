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


def test_fits_of_the_night_are_heard_by_the_plan_and_made_once_a_day():
    nightly, history, horizon = Nightly(1, None), _history(6.0), timedelta(hours=24)
    assert nightly.made() == {}
    assert nightly.start_if_due(history, [CHAT, BATCH], NOW, horizon, NO_CALENDAR)
    assert not nightly.start_if_due(history, [CHAT, BATCH], NOW, horizon, NO_CALENDAR)
    nightly.close()
    made = nightly.made()
    assert set(made) == {CHAT}  # the other has no value to fit
    assert not nightly.start_if_due(history, [CHAT, BATCH], NOW + timedelta(hours=3), horizon, NO_CALENDAR)
    fleet = [
        FleetService(CHAT, "H100", 4, 4, 1, 40, None, "USD"),
        FleetService(BATCH, "H100", 4, 4, 1, 40, None, "USD"),
    ]
    found = plan(history, {}, fleet, NOW, settings=PlanSettings(nights=made))
    assert "Prophet" in because(found.forecasts[0].why)
    assert len(found.forecasts) == 1
    plain = plan(history, {}, fleet, NOW, settings=PlanSettings())
    assert "Prophet" not in because(plain.forecasts[0].why)


def test_a_night_that_fails_leaves_the_fits_of_the_one_before(monkeypatch):
    def fail(_night):
        raise OSError("no process")

    monkeypatch.setattr(module, "fit_one", fail)
    nightly = Nightly(1, None)
    nightly.start_if_due(_history(6.0), [CHAT], NOW, timedelta(hours=24), NO_CALENDAR)
    nightly.close()
    assert nightly.made() == {}


class Refused:
    """Fits, and says what nobody should listen to."""

    name, title, extra = "prophet", "Prophet", ""

    def is_absent(self):
        return False

    def fit(self, series, ahead):
        return Absurd()


class Absurd:
    def at(self, series, origins, leads):
        return np.full((origins.size, leads.size), 1000.0)


class Broken(Refused):
    def fit(self, series, ahead):
        raise ImportError("libstan.so.2: no such file")


def _night(monkeypatch, forecaster, **more):
    monkeypatch.setattr(forecast_forecaster, "FORECASTERS", {"prophet": forecaster})
    monkeypatch.setattr(model_selection, "FORECASTERS", {"prophet": forecaster})
    nightly = Nightly(1, None)
    nightly.start_if_due(_history(6.0), [CHAT], NOW, timedelta(hours=24), NO_CALENDAR, **more)
    nightly.close()
    return nightly


def test_after_a_night_that_hears_nobody_services_are_forecast_in_one_stroke_as_before(monkeypatch):
    made = _night(monkeypatch, Refused()).made()
    assert made[CHAT].fits.requested == ("prophet",)
    assert made[CHAT].selected == ()
    history, horizon = _history(6.0), timedelta(hours=24)
    alone = forecast(
        history.times,
        history.column(LOAD)[0],
        signal=LOAD.name,
        entity=CHAT,
        now=NOW,
        models=("ensemble", "prophet"),
        fits=made[CHAT].fits,
        may_fit=False,
    )

    def refuse(*_given, **_more):
        raise AssertionError("asked alone")

    monkeypatch.setattr(batch_forecast, "_forecast_service", refuse)
    found = batch_forecast.forecast_all(history, NOW, horizon, made)[CHAT]
    assert (found.model, found.why) == (alone.model, alone.why)
    assert "Prophet is refused" in because(found.why)
    for level, values in alone.quantiles.items():
        np.testing.assert_allclose(found.quantiles[level], values, rtol=1e-4)


def test_a_library_that_does_not_load_is_named_and_costs_no_margin(monkeypatch):
    nightly = _night(monkeypatch, Broken(), leads={CHAT: timedelta(minutes=5)})
    assert set(nightly.margins()) == {CHAT}
    found = batch_forecast.forecast_all(_history(6.0), NOW, timedelta(hours=24), nightly.made())[CHAT]
    assert "Prophet is not used: no fit was found (libstan.so.2: no such file)" in because(found.why)


def test_a_replay_that_breaks_leaves_the_usual_margin_and_says_so(monkeypatch):
    def broken(*_given):
        raise TypeError("no such axis")

    monkeypatch.setattr(module, "best_margin", broken)
    nightly = _night(monkeypatch, Refused(), leads={CHAT: timedelta(minutes=5)})
    assert nightly.margins() == {}
    found = batch_forecast.forecast_all(_history(6.0), NOW, timedelta(hours=24), nightly.made())[CHAT]
    assert "the default margin is used" in because(found.why)
    assert "no such axis" in because(found.why, "zh")


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
        begun = nightly.start_if_due(history, [CHAT], at, horizon, calendar)
        if begun:
            nightly._running.result()
        return begun

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
    decided = fit_nightly(history.times, history.column(LOAD)[0], now=begin, horizon=horizon, calendar=zone)
    newest = decided.fits.made["prophet"][max(decided.fits.made["prophet"])]
    wall = Series(newest.start, 600.0, np.ones(round((last.timestamp() + 8 * 3600 - newest.start) / 600)))
    said = newest.at(wall, np.array([wall.values.size]), np.arange(1, 145))
    assert np.isfinite(said).all()


def test_a_night_that_failed_is_tried_again_after_an_hour(monkeypatch):
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
    found = calendar_of(settings, NOW)
    assert found.zone == "Europe/Berlin"
    assert [event.name for event in found.events] == ["sale", HOLIDAY, HOLIDAY]  # Ascension Day, Whit Monday
    assert found.events[0].ratio == 2.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"zone": "Mars"}, "not a time zone"),
        ({"holidays": "XX"}, "unknown country"),
        ({"events": [{"name": "x", "start": "2026-05-21T08:00:00Z", "end": "2026-05-21T07:00:00Z"}]}, "after start"),
        ({"events": [{"name": "x", "start": "2026-05-21T08:00:00", "end": "2026-05-21T09:00:00Z"}]}, "timezone"),
        ({"forecasters": ["arima"]}, "'autoets', 'mstl' or 'lstm'"),
        ({"workers": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ValidationError, match=said):
        PlannerSettings.model_validate(wrong)


def test_the_configuration_says_which_forecasters_are_fitted():
    assert PlannerSettings().models == ("prophet",)
    asked = PlannerSettings.model_validate({"forecasters": ["mstl", "autoets", "mstl"]})
    assert asked.models == ("prophet", "mstl", "autoets")
    assert PlannerSettings.model_validate({"prophet": False}).models == ()
