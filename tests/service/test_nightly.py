from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pydantic import ValidationError

from outrider.model import CellStatus, EntityKind, EntityRef, FleetService, SignalKey, Window
from outrider.summaries import because
from planner.forecast.calendar import HOLIDAY, NO_CALENDAR
from planner.plan import PlanSettings, plan
from service.nightly import Nightly
from service.planner_settings import PlannerSettings
from service.planning import calendar_of

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
    from service import nightly as module

    def fail(_night):
        raise OSError("no process")

    monkeypatch.setattr(module, "fit_one", fail)
    nightly = Nightly(1, None)
    nightly.start_if_due(_history(6.0), [CHAT], NOW, timedelta(hours=24), NO_CALENDAR)
    nightly.close()
    assert nightly.made() == {}


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
        ({"holidays": "XX"}, "no holidays are known"),
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
