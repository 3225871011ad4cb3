"""Hindsight of the plan against arithmetic that can be checked by hand."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from outrider.clock import from_unix
from outrider.model import BacktestScore, Forecast
from planner.capacity.fluid_queue import requests_beyond, simulate_queue
from planner.capacity.prescale import ScaleLimits
from planner.replay.hindsight import Rules, hindsight


def test_an_overloaded_queue_is_counted_by_hand():
    # 10 requests/s arrive and 5/s are served: the queue is 2 s of work after 2 s, and every later request waits.
    times, rates = np.array([0.0, 100.0]), np.array([10.0, 10.0])
    result = simulate_queue(times, rates, np.array([0.0]), np.array([5.0]))
    assert result.requests == pytest.approx(1000.0)
    assert result.waited == pytest.approx(1000.0)
    assert result.first_at == 0.0
    assert simulate_queue(times, rates, np.array([0.0]), np.array([10.0])).waited == 0.0
    late = simulate_queue(times, rates, np.array([0.0, 50.0]), np.array([5.0, 20.0]))
    assert 500.0 <= late.waited < 800.0, "what queued up drains once there is room"
    assert simulate_queue(times, rates, np.array([0.0]), np.array([0.0])).waited == pytest.approx(1000.0)
    assert simulate_queue(times, np.full(2, np.nan), np.array([0.0]), np.array([1.0])).requests == 0.0


def _step_day(build):
    """Ten quiet hours, then in one slot four times as much, as on the days before."""
    times = build.times(4.0)
    hour = (times - (build.now - timedelta(days=1)).timestamp()) / 3600.0 % 24
    return times, np.where(hour < 10, 20.0 + np.abs(hour - 5) / 100, 80.0)


def _oracle(times, values):
    def forecaster(_times, _values, now):
        ahead = times[times >= now.timestamp()][:18]
        truth = values[times >= now.timestamp()][:18]
        score = BacktestScore(None, None, None, 0)
        return Forecast(
            "s", None, now, timedelta(minutes=10), ahead, {0.5: truth, 0.95: truth}, "oracle", score
        )  # fmt: skip

    return forecaster


def test_the_plan_starts_replicas_before_the_rise_and_no_request_waits(build):
    times, values = _step_day(build)
    rules = Rules(2, 100, timedelta(minutes=10), limits=ScaleLimits(step_ratio=10))
    result = hindsight(build.service, times, values, build.calibration(), rules, build.now, _oracle(times, values))
    rise = from_unix(float(times[(times >= result.trough_at.timestamp()) & (values > 50)][0]))
    assert result.first_start is not None
    assert result.first_start.ready_at <= rise
    assert result.planned.waited.waited < 0.02 * result.planned.waited.requests
    assert result.reactive.waited.waited > 10 * max(1.0, result.planned.waited.waited)
    assert result.held.waited.waited > result.reactive.waited.waited
    assert result.peak == 80.0
    assert all(one.at < one.ready_at for one in result.planned.orders if one.replicas > one.before)


def test_replicas_serve_the_calibrated_load_and_requests_above_the_slo_are_counted_apart(build):
    """An SLO that halves a replica's planned capacity causes no waits of two seconds at its load."""
    times, values = _step_day(build)
    rules = Rules(2, 100, timedelta(minutes=10), limits=ScaleLimits(step_ratio=10))
    whole = build.calibration()
    half = build.calibration(batch=whole.batch / 2)
    args = (rules, build.now, _oracle(times, values))
    strict = hindsight(build.service, times, values, half, *args)
    result = hindsight(build.service, times, values, half, *args, serves=whole)
    assert result.planned.orders == strict.planned.orders
    assert result.held.waited.waited <= strict.held.waited.waited
    assert result.reactive.waited.waited < strict.reactive.waited.waited
    assert result.reactive.above_slo == strict.reactive.above_slo > result.reactive.waited.waited
    assert result.planned.above_slo < result.reactive.above_slo


def test_requests_above_the_slo_are_those_arriving_meanwhile():
    times, rates = np.array([0.0, 100.0]), np.array([10.0, 10.0])
    assert requests_beyond(times, rates, np.array([0.0]), np.array([10.0])) == 0.0
    assert requests_beyond(times, rates, np.array([0.0]), np.array([5.0])) == pytest.approx(1000.0)
    assert requests_beyond(times, rates, np.array([0.0, 50.0]), np.array([5.0, 20.0])) == pytest.approx(500.0)
    assert requests_beyond(times, np.full(2, np.nan), np.array([0.0]), np.array([1.0])) == 0.0


def test_a_day_without_values_has_no_hindsight(build):
    times, values = _step_day(build)
    values[-100:-2] = np.nan
    rules = Rules(2, 100, timedelta(minutes=10))
    args = (build.service, times, values, build.calibration(), rules, build.now, _oracle(times, values))
    assert hindsight(*args) is None
