"""Holidays and the detectors of traffic: a quiet day is no drop, and the day after is no surge."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from detectors.load.forecast_deviation import ForecastDeviationDetector
from detectors.load.gateway import GatewayDetector
from detectors.registry import make_all
from outrider.model import CellStatus, EntityKind, Finding, Window
from tests.detectors.load.test_forecast_deviation import KEYS, A, deviations, forecast, minutes, run_cycles

MIDNIGHT = 1_800_057_600.0  # 2027-01-16 00:00 UTC
DAY = 86400.0
HOLIDAY = ((MIDNIGHT, MIDNIGHT + DAY),)


def drops(rates, *, holidays=HOLIDAY, view=None):
    detector = GatewayDetector()
    detector.set_holidays(holidays)
    _, results = run_cycles(rates, view, detector=detector, start=MIDNIGHT + 8 * 3600.0)
    return [any(isinstance(one, Finding) and one.fault == "traffic-drop" for one in verdicts) for verdicts in results]


@pytest.mark.parametrize("view", [None, forecast(A, low=35.0, middle=40.0, high=50.0, made_at=MIDNIGHT)])
def test_the_quiet_traffic_of_a_holiday_is_no_drop(view):
    rates = [40.0] * minutes(20) + [5.0] * minutes(20)
    assert any(drops(rates, holidays=(), view=view))
    assert not any(drops(rates, view=view))


def test_requests_that_cease_on_a_holiday_are_a_drop():
    assert any(drops([40.0] * minutes(20) + [0.5] * minutes(5)))


def test_the_low_level_of_a_holiday_is_followed_at_once():
    detector = GatewayDetector()
    detector.set_holidays(HOLIDAY)
    rates = [40.0] * minutes(20) + [10.0] * minutes(120)
    state, _ = run_cycles(rates, None, detector=detector, start=MIDNIGHT + 20 * 3600.0)
    assert state.arrays["arriving"][0] == pytest.approx(10.0, rel=0.1)


def learned(detector):
    """Ten days of ten-minute means at ten requests per second up to the holiday."""
    times = MIDNIGHT - 600.0 * np.arange(1440, 0, -1)
    values = np.full((1, times.size, len(KEYS)), 10.0)
    status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
    window = Window(EntityKind.SERVICE, (A,), times, KEYS, values, status, timedelta(minutes=10))
    return detector.warm(detector.initial(), window)


@pytest.mark.parametrize("holidays", [HOLIDAY, ()])
def test_a_holiday_is_no_deviation_and_the_day_after_is_no_surge(holidays):
    detector = ForecastDeviationDetector()
    detector.set_holidays(holidays)
    rates = [3.0] * 24 * 60 + [10.0] * 8 * 60
    _, results = run_cycles(rates, None, detector=detector, state=learned(detector), start=MIDNIGHT, apart=60.0)
    reported = [bool(deviations(verdicts)) for verdicts in results]
    assert any(reported[: 24 * 60]) != bool(holidays)
    assert any(reported[24 * 60 :]) != bool(holidays)


def test_every_detector_with_a_daily_pattern_gets_the_holidays():
    with_pattern = [one for one in make_all(holidays=HOLIDAY) if getattr(one, "_baseline", None) is not None]
    assert {one.name for one in with_pattern} >= {"entry", "traffic-forecast", "seasonal-service", "isolation-gpu"}
    assert all(one._baseline.is_holiday(MIDNIGHT) for one in with_pattern)
