from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from planner.replay.advice import TrafficClass, advise, traffic_class
from planner.replay.backtest import Trace
from planner.replay.workload import build_workload

START = 1_767_225_600.0
SLOTS = np.arange(7 * 144)
DAY = 2 * np.pi * SLOTS / 144.0


def _trace(values, name="t"):
    return Trace(name, START + 600.0 * SLOTS, np.asarray(values, dtype=float), timedelta(minutes=10))


def _silent_nights():
    """Two hours of work a day, otherwise idle."""
    return np.where((SLOTS % 144 >= 60) & (SLOTS % 144 < 72), 30.0, 0.0)


def _bursts():
    load = np.full(SLOTS.size, 20.0)
    load[::37] = 45.0
    return load


def _other_levels():
    """The same day each day, every second one at a lower level."""
    return np.where(SLOTS // 144 % 2, 25.0, 33.0) + 6.0 * np.sin(DAY)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.full(SLOTS.size, 20.0), TrafficClass.CONSTANT),
        (20.0 + 12.0 * np.sin(DAY), TrafficClass.DIURNAL),
        ((30.0 + 12.0 * np.sin(DAY)) * np.where((SLOTS // 144) % 7 < 2, 0.5, 1.0), TrafficClass.DIURNAL),
        (_other_levels(), TrafficClass.DIURNAL),
        (_bursts(), TrafficClass.BURSTY),
        (_silent_nights(), TrafficClass.INTERMITTENT),
        (
            np.interp(SLOTS, SLOTS[::50], np.random.default_rng(4).uniform(10, 40, SLOTS[::50].size)),
            TrafficClass.IRREGULAR,
        ),
    ],
)
def test_traffic_has_a_class(values, kind):
    assert traffic_class(build_workload(_trace(values))) is kind


@pytest.mark.slow
def test_constant_traffic_gets_the_simplest_policy_of_equal_cost():
    result = advise([_trace(np.full(SLOTS.size, 20.0))], startup=timedelta(minutes=5))[0]
    keeping = [row for row in result.rows if row.requests_waiting_over_2s_ratio <= 0.005]
    least = min(row.gpu_hours_ratio for row in keeping)
    # the simplest comes first
    assert result.recommended == next(row.name for row in keeping if row.gpu_hours_ratio <= 1.05 * least)
    shown = result.as_dict()
    assert shown["why"]
    assert {row["name"] for row in shown["strategies"]} == {"static", "cron", "hpa", "keda", "knative", "outrider"}


@pytest.mark.slow
def test_diurnal_traffic_gets_the_cheapest_policy_that_meets_the_goal():
    result = advise([_trace(20.0 + 12.0 * np.sin(DAY))], startup=timedelta(minutes=5))[0]
    chosen = next(row for row in result.rows if row.name == result.recommended)
    assert chosen.requests_waiting_over_2s_ratio <= 0.005
    keeping = [row.gpu_hours_ratio for row in result.rows if row.requests_waiting_over_2s_ratio <= 0.005]
    assert chosen.gpu_hours_ratio <= 1.05 * min(keeping)
    assert chosen.gpu_hours_ratio < 0.9


@pytest.mark.slow
def test_scale_to_zero_is_recommended_only_if_the_first_request_may_wait():
    trace = _trace(_silent_nights())
    patient = advise([trace], startup=timedelta(minutes=5), cold_start_limit=timedelta(minutes=5))[0]
    assert (patient.recommended, patient.reason) == ("knative", "scale_to_zero")
    chosen = next(row for row in patient.rows if row.name == "knative")
    assert chosen.first_request_delay_seconds == 300.0
    assert chosen.gpu_hours_ratio < 0.5
    hasty = advise([trace], startup=timedelta(minutes=5))[0]
    assert hasty.reason != "scale_to_zero"
