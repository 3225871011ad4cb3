"""The formula on Prophet's forecast, and forecasts that are made once per trace."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from planner.replay import prophet_policy, score
from planner.replay.backtest import Trace
from planner.replay.prophet_policy import BUFFERS, Curves, fit_curves, formula_policy
from planner.replay.workload import build_workload

FIVE, TEN = timedelta(minutes=5), timedelta(minutes=10)
START = 1_767_225_600.0


def _trace(days=5.0, seed=3):
    slots = np.arange(round(days * 144))
    noise = np.random.default_rng(seed).normal(0, 1.0, slots.size)
    values = 40.0 + 25.0 * np.sin(2 * np.pi * slots / 144.0) + noise
    return Trace("wave", START + 600.0 * slots, values, timedelta(minutes=10))


@pytest.fixture
def quick_fits(monkeypatch):
    """Length of history of each fit; forecasts the newest value, plus ten per slot."""
    observed = []

    def default(series, steps):
        observed.append(series.values.copy())
        return series.values[-1] + 10.0 * np.arange(1.0, steps + 1)

    monkeypatch.setattr(prophet_policy, "default_forecast", default)
    return observed


def test_a_fit_every_two_hours_uses_only_earlier_data(quick_fits):
    traffic = build_workload(_trace())
    facts = []
    curves = fit_curves(traffic, 4 * 1440 - 720, TEN, facts.append)
    assert np.diff(curves.begins).tolist() == [12] * (curves.begins.size - 1)
    assert curves.begins[0] == 3.5 * 144
    for begin, known in zip(curves.begins, quick_fits, strict=True):
        np.testing.assert_array_equal(known, traffic.slots[:begin])
    assert facts[-1] == 1.0
    assert facts == sorted(facts)


def test_the_peak_until_a_replica_serves_goes_through_the_formula():
    traffic = build_workload(_trace())
    begin = 4 * 144
    curves = Curves(np.array([begin]), 10.0 * np.arange(1.0, 17.0)[None])
    planned, buffers = formula_policy(traffic, curves, FIVE)
    assert tuple(buffers) == BUFFERS
    minute = begin * 10 + 29
    # 24 min after the middle of slot 0 (10 requests/s), six minutes ahead: slot 3.0, 40 requests/s
    wanted = [np.ceil(40.0 * (1 + buffer) / traffic.per_replica - 1e-9) for buffer in BUFFERS]
    assert planned.needs[minute].tolist() == wanted
    # a fit is known when its newest slot is complete; before any fit the newest complete slot is carried
    known = begin * 10
    before = max(1.0, np.ceil(traffic.slots[begin - 2] * 1.25 / traffic.per_replica - 1e-9))
    assert planned.needs[known - 1, 0] == before
    # five minutes before the middle of slot 0, six ahead: a tenth of the way to slot 1
    assert planned.needs[known, 0] == max(1.0, np.ceil(11.0 * 1.25 / traffic.per_replica - 1e-9))
    assert planned.needs[known + 4, 1] == max(1.0, np.ceil(15.0 / traffic.per_replica - 1e-9))


def test_a_fit_without_an_optimum_carries_the_newest_value(monkeypatch):
    def fail(_series, _steps):
        raise RuntimeError("Optimization terminated abnormally")

    monkeypatch.setattr(prophet_policy, "default_forecast", fail)
    traffic = build_workload(_trace())
    curves = fit_curves(traffic, 4 * 1440, FIVE)
    np.testing.assert_allclose(curves.predicted[0], traffic.slots[curves.begins[0] - 1])


@pytest.mark.slow
def test_forecasts_are_made_once_for_all_startup_times(quick_fits, monkeypatch):
    made = []
    original = score.forecast_paths

    def counted(traffic, longest):
        made.append(longest)
        return original(traffic, longest)

    monkeypatch.setattr(score, "forecast_paths", counted)
    together = score.replays([_trace()], [FIVE, TEN], prophet=True)
    fits = len(quick_fits)
    assert made == [TEN]
    alone = [score.replay([_trace()], startup=each, prophet=True) for each in (FIVE, TEN)]
    assert len(quick_fits) == 3 * fits
    for one, other in zip(together, alone, strict=True):
        assert one.startup == other.startup
        for kept, again in zip(one.traces[0].strategies, other.traces[0].strategies, strict=True):
            assert (kept.name, kept.setting) == (again.name, again.setting)
            assert kept.gpu_hours_ratio == pytest.approx(again.gpu_hours_ratio)
            assert kept.requests_waiting_over_2s_ratio == pytest.approx(again.requests_waiting_over_2s_ratio)
    assert "prophet" in together[0].traces[0].rivals()


@pytest.mark.slow
def test_the_prophet_policy_can_be_left_out(quick_fits):
    result = score.replay([_trace()], startup=FIVE)
    assert quick_fits == []
    assert "prophet_ratio" not in result.as_dict()["traces"][0]
