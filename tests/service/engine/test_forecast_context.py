"""Forecasts of recent plans that the cycle passes to detectors."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import ManualClock
from outrider.model import (
    BacktestScore,
    DetectorState,
    EntityKind,
    EntityRef,
    Forecast,
    NoPlanReason,
    Plan,
    SignalKey,
)
from outrider.ports import Collected
from planner.forecast.forecaster import forecast
from service.config.settings import Settings
from service.engine.detector_memory import Detection
from service.engine.forecast_context import ForecastContext
from service.planning.planning import NoPlanning
from service.wiring import detectors
from service.wiring.platform import cycle_in_memory

NOW = datetime(2026, 11, 22, 9, 0, 20, tzinfo=UTC)
STEP = timedelta(minutes=10)
SERVICE = EntityRef("lab", EntityKind.SERVICE, "d", "s")
SCORE = BacktestScore(0.1, 0.2, 0.9, 7)


def plan(at, level, *, slots=144, score=SCORE, levels=(0.05, 0.5, 0.95, 0.995), entity=SERVICE):
    first = at.timestamp() // 600.0 * 600.0
    values = {one: level * (0.5 + one) + np.arange(slots) for one in levels}
    times = first + 600.0 * np.arange(slots)
    return Plan((Forecast("svc_requests_per_second", entity, at, STEP, times, values, "mix", score),))


def test_before_the_first_plan_there_is_no_forecast():
    assert ForecastContext().view_at(NOW) is None


def test_the_view_is_the_current_slot_of_every_service():
    context = ForecastContext()
    context.add(plan(NOW, 100.0))
    seen = context.view_at(NOW + timedelta(minutes=25))
    assert seen.entities == (SERVICE,)
    assert seen.signals == ("svc_requests_per_second",)
    assert (seen.low[0], seen.middle[0], seen.high[0]) == pytest.approx((57.0, 102.0, 151.5))
    assert (seen.made_at[0], seen.step_seconds[0]) == (NOW.timestamp(), 600.0)
    assert context.view_at(NOW + timedelta(minutes=25)) is seen
    assert context.view_at(NOW + timedelta(minutes=35)).middle[0] == pytest.approx(103.0)


def test_the_forecast_of_an_hour_ago_applies_or_the_first_one():
    context = ForecastContext()
    found = []
    for minutes in range(0, 130, 10):
        at = NOW + timedelta(minutes=minutes)
        context.add(plan(at, 100.0 + minutes))
        found.append((at.timestamp() - context.view_at(at).made_at[0]) / 60.0)
    assert found == [0, 10, 20, 30, 40, 50, 60, 60, 60, 60, 60, 60, 60]


def test_a_forecast_is_unknown_beyond_its_horizon():
    context = ForecastContext()
    context.add(plan(NOW, 100.0, slots=12))
    assert context.view_at(NOW + timedelta(minutes=110)).middle[0] > 0
    assert np.isnan(context.view_at(NOW + timedelta(hours=2)).middle[0])


def test_a_new_service_is_compared_with_its_first_forecast():
    context, new = ForecastContext(), replace(SERVICE, name="new")
    for minutes in range(0, 100, 10):
        at = NOW + timedelta(minutes=minutes)
        forecasts = plan(at, 100.0).forecasts + (plan(at, 50.0, entity=new).forecasts if minutes >= 60 else ())
        context.add(Plan(forecasts))
    seen = context.view_at(NOW + timedelta(minutes=90))
    assert dict(zip(seen.entities, (NOW.timestamp() + 5400.0 - seen.made_at) / 60.0, strict=True)) == {
        SERVICE: 60.0,
        new: 30.0,
    }
    assert np.isfinite(seen.middle).all()


def test_a_service_without_a_new_forecast_keeps_the_last_one_until_retention():
    context = ForecastContext()
    context.add(plan(NOW, 100.0))
    other = replace(SERVICE, name="other")
    context.add(plan(NOW + timedelta(minutes=10), 50.0, entity=other))
    assert set(context.view_at(NOW + timedelta(hours=3)).entities) == {SERVICE, other}
    context.add(plan(NOW + timedelta(days=3), 50.0, entity=other))
    assert context.view_at(NOW + timedelta(days=3)).entities == (other,)


def test_forecasts_from_before_a_clock_step_back_are_dropped():
    context = ForecastContext()
    context.add(plan(NOW, 100.0))
    context.add(plan(NOW + timedelta(days=1), 900.0))
    for minutes in range(10, 100, 10):
        context.add(plan(NOW + timedelta(minutes=minutes), 100.0 + minutes))
    now = NOW + timedelta(minutes=90)
    assert context.view_at(now).made_at[0] == (now - timedelta(hours=1)).timestamp()
    assert context.view_at(now).middle[0] < 200.0


def test_an_unscored_forecast_and_an_empty_plan_give_no_view():
    context = ForecastContext()
    context.add(plan(NOW, 100.0, score=BacktestScore(None, None, None, 0)))
    context.add(Plan())
    assert context.view_at(NOW) is None


def test_a_missing_low_quantile_is_unknown():
    context = ForecastContext()
    context.add(plan(NOW, 100.0, levels=(0.5, 0.95)))
    seen = context.view_at(NOW)
    assert np.isnan(seen.low[0])
    assert seen.high[0] == pytest.approx(145.0)


def test_the_forecast_of_the_planner_is_accepted():
    times = NOW.timestamp() // 600.0 * 600.0 - 600.0 * np.arange(6 * 144, 0, -1)
    values = 50.0 + 20.0 * np.sin(times / 86400.0 * 2 * np.pi) + np.random.default_rng(1).normal(0, 1, times.size)
    planned = forecast(times, values, signal="svc_requests_per_second", entity=SERVICE, now=NOW, models=("ensemble",))
    assert not isinstance(planned, NoPlanReason)
    context = ForecastContext()
    context.add(Plan((planned,)))
    assert np.isnan(context.view_at(NOW).middle[0])  # a plan covers the slots that begin after it
    seen = context.view_at(NOW + timedelta(minutes=15))
    truth = 50.0 + 20.0 * np.sin((NOW.timestamp() + 900.0) / 86400.0 * 2 * np.pi)
    assert seen.low[0] < seen.middle[0] < seen.high[0]
    assert seen.middle[0] == pytest.approx(truth, abs=5.0)


class Planned(NoPlanning):
    """Returns one plan, on the first call."""

    def __init__(self, context) -> None:
        self.latest = context
        self._due = context

    def plan_if_due(self, now, topology, situation=None):
        del now, topology, situation
        due, self._due = self._due, None
        return due


class Listener:
    """A detector without verdicts that records its forecasts."""

    window, state_version, keys = timedelta(minutes=1), 1, (SignalKey("svc_requests_per_second"),)

    def __init__(self, kind) -> None:
        self.name, self.kind, self.received = f"listener-{kind.value}", kind, []

    def initial(self):
        return DetectorState(1, (), {})

    def detect(self, state, window, topology, now):
        del topology, now
        self.received.append(window.foreseen)
        return state, ()


def test_service_detectors_receive_a_plan_from_the_next_cycle_on():
    clock = ManualClock(NOW)
    cycle = cycle_in_memory(Settings(), ScrapeManager([]), clock, interval=timedelta(seconds=15))
    service, gpu = Listener(EntityKind.SERVICE), Listener(EntityKind.GPU)
    cycle.parts.detection = Detection((service, gpu), timedelta(seconds=15), detectors.NEEDS)
    cycle.parts.planning = Planned(plan(NOW, 100.0))
    for _ in range(2):
        cycle.run_stages(clock.now(), Collected())
        clock.advance(timedelta(seconds=15))
    assert service.received[0] is None
    assert service.received[1].entities == (SERVICE,)
    assert gpu.received == [None, None]
