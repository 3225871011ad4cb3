"""A simulated fleet with less load at weekends: the third Saturday without and with a fault."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "simulator"))
from small import small_spec  # type: ignore[import-not-found]

from detectors.statistics.baseline import Baseline
from outrider.model import AlertState, EntityKind, SignalKey, Stage, StageReason
from service.drills.private_platform import learn, open_platform
from simulator.backfill import fleet_history
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.spec.parts import TrafficSpec
from simulator.world import World

SATURDAY = datetime(2026, 11, 21, tzinfo=UTC)
STEP = timedelta(minutes=15)
TOKENS = "engine_generation_tokens_total"


def weekly():
    """Four replicas with about half of the requests at weekends."""
    spec = small_spec(slice_seconds=5.0, tick_seconds=5.0)
    load = TrafficSpec(shape="weekly", peak_ratio=0.6, trough_ratio=0.3)
    return replace(spec, services=(replace(spec.services[0], traffic=load),))


@pytest.fixture(scope="module")
def tokens():
    """(times, tokens of each replica in a step) of nineteen days and the weekend that ends them."""
    start, end = SATURDAY - timedelta(days=19), SATURDAY + timedelta(days=2)
    history = fleet_history.backfill(weekly(), 3, start, end, STEP)
    blocks = [block for block in history if block.kind is EntityKind.REPLICA]
    times = np.concatenate([block.times for block in blocks])
    values = np.concatenate([block.values[:, :, block.keys.index(SignalKey(TOKENS))] for block in blocks], axis=1)
    return times, values


def saturday_deviation(times, values, *, week):
    """Relative deviation of each replica from the baseline, (replicas, steps of Saturday)."""
    baseline = Baseline((TOKENS,), week=week)
    memory, deviations = baseline.empty(values.shape[0]), []
    for index, at in enumerate(times):
        baseline.turn(memory, float(at))
        if 0 <= at - SATURDAY.timestamp() < 86400.0:
            deviations.append(values[:, index] / baseline.usual(memory, float(at)).level[:, 0] - 1.0)
        baseline.learn(memory, values[:, index][:, None], float(at), STEP.total_seconds())
    return np.array(deviations).T


@pytest.mark.slow
def test_the_weekly_profile_removes_weekend_deviations(tokens):
    week, without = (saturday_deviation(*tokens, week=week) for week in (True, False))
    night = int(timedelta(hours=4) / STEP)
    assert without[:, :night].min() < -0.15, "less load than expected when Saturday begins"
    assert week[:, :night].min() > -0.13
    assert abs(week.mean()) < 0.01 < abs(without.mean())
    assert np.abs(week).mean() < 0.6 * np.abs(without).mean()


@pytest.mark.slow
def test_the_third_saturday_has_no_findings_and_a_fault_on_it_is_detected():
    spec, begins = weekly(), SATURDAY - timedelta(minutes=2)
    platform = open_platform(World([Fleet(spec, seed=3, start=begins)]), learned=learn((spec,), 3, begins))
    try:
        unusual, firing, truth = [], set(), None
        while platform.world.now < SATURDAY + timedelta(minutes=14) and "traffic-drop" not in firing:
            if truth is None and platform.world.now >= SATURDAY + timedelta(minutes=6):
                truth = inject(platform.world.fleets[0], "traffic-drop", seed=3, duration=timedelta(minutes=30))
            platform.step()
            detector_statuses = {status.detector: status for status in platform.state.detector_statuses()}
            if truth is None:
                # isolation forests have no weekly profile
                learnt = [row for row in detector_statuses.values() if not row.detector.startswith("isolation-")]
                unusual += [row.detector for row in learnt if row.learnt_seconds and row.findings]
            firing |= {alert.fault for alert in platform.state.alerts(limit=99) if alert.state is AlertState.FIRING}
        assert unusual == []
        assert "traffic-drop" in firing
        seasonal = detector_statuses["seasonal-service"]
        assert (seasonal.stage, seasonal.reason) == (Stage.ALERTING, StageReason.LEARNT)
    finally:
        platform.close()
