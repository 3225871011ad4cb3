"""A simulated fleet whose load falls at weekends: what the third Saturday looks like, and a fault on it."""

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
    """Four replicas; at weekends about half of the requests come."""
    spec = small_spec(slice_seconds=5.0, tick_seconds=5.0)
    load = TrafficSpec(shape="weekly", peak_ratio=0.6, trough_ratio=0.3)
    return replace(spec, services=(replace(spec.services[0], traffic=load),))


@pytest.fixture(scope="module")
def tokens():
    """(times, tokens of each replica in a step) of nineteen days and the weekend that ends them."""
    start, end = SATURDAY - timedelta(days=19), SATURDAY + timedelta(days=2)
    blocks = [one for one in fleet_history.backfill(weekly(), 3, start, end, STEP) if one.kind is EntityKind.REPLICA]
    times = np.concatenate([one.times for one in blocks])
    values = np.concatenate([one.values[:, :, one.keys.index(SignalKey(TOKENS))] for one in blocks], axis=1)
    return times, values


def off_on_saturday(times, values, *, week):
    """By which share of what was expected each replica differs, (replicas, hours of Saturday)."""
    baseline = Baseline((TOKENS,), week=week)
    memory, off = baseline.empty(values.shape[0]), []
    for place, at in enumerate(times):
        baseline.turn(memory, float(at))
        if 0 <= at - SATURDAY.timestamp() < 86400.0:
            off.append(values[:, place] / baseline.usual(memory, float(at)).level[:, 0] - 1.0)
        baseline.learn(memory, values[:, place][:, None], float(at), STEP.total_seconds())
    return np.array(off).T


def test_the_week_takes_the_deviations_of_a_weekend_away(tokens):
    week, without = (off_on_saturday(*tokens, week=week) for week in (True, False))
    night = int(timedelta(hours=4) / STEP)
    assert without[:, :night].min() < -0.15, "more is expected than comes when Saturday begins"
    assert week[:, :night].min() > -0.13
    assert abs(week.mean()) < 0.01 < abs(without.mean())
    assert np.abs(week).mean() < 0.6 * np.abs(without).mean()


@pytest.mark.slow
def test_the_third_saturday_begins_calmly_and_a_fault_on_it_is_found():
    spec, begins = weekly(), SATURDAY - timedelta(minutes=2)
    platform = open_platform(World([Fleet(spec, seed=3, start=begins)]), learned=learn((spec,), 3, begins))
    try:
        unusual, told, truth = [], set(), None
        while platform.world.now < SATURDAY + timedelta(minutes=14) and "traffic-drop" not in told:
            if truth is None and platform.world.now >= SATURDAY + timedelta(minutes=6):
                truth = inject(platform.world.fleets[0], "traffic-drop", seed=3, duration=timedelta(minutes=30))
            platform.step()
            standings = {one.detector: one for one in platform.state.standings()}
            if truth is None:
                # isolation forests know no day of the week
                learnt = [one for one in standings.values() if not one.detector.startswith("isolation-")]
                unusual += [one.detector for one in learnt if one.learnt_seconds and one.findings]
            told |= {one.fault for one in platform.state.alerts(limit=99) if one.state is AlertState.FIRING}
        assert unusual == []
        assert "traffic-drop" in told
        seasonal = standings["seasonal-service"]
        assert (seasonal.stage, seasonal.reason) == (Stage.ALERTING, StageReason.LEARNT)
    finally:
        platform.close()
