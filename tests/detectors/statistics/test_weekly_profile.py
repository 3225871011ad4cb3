from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import DAY, findings_in, run_cycles, window  # type: ignore[import-not-found]

from detectors.anomaly.seasonal import SeasonalDetector
from detectors.base.state_arrays import Arrays
from detectors.registry import make_all
from detectors.statistics.baseline import Baseline, follow
from detectors.statistics.weekly_profile import CELLS, CLASS
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

SIGNAL = "svc_requests_per_second"
MONDAY = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
STEP = 900.0
WEEKEND = 0.5


def demand(times, weekend=WEEKEND, ahead=0.0, seed=0, count=1):
    """A daily rhythm around 100 with lower weekends, ``ahead`` seconds east of UTC."""
    local = times + ahead
    day = 1.0 + 0.5 * np.sin(2 * np.pi * times / DAY)
    rest = (np.floor(local / DAY) + 3) % 7 >= 5
    noise = 1.0 + 0.02 * np.random.default_rng(seed).normal(size=(count, times.size))
    return (100.0 * day * np.where(rest, weekend, 1.0) * noise)[:, :, None]


def taught(values, times, *, week=True, zone=UTC, memory=None, pool=None):
    baseline = Baseline((SIGNAL,), week=week)
    baseline.set_zone(zone)
    memory = baseline.empty(values.shape[0]) if memory is None else memory
    pool = baseline.of_class() if pool is None else pool
    for place, at in enumerate(times):
        baseline.turn(memory, float(at), pool)
        baseline.learn(memory, values[:, place], float(at), STEP)
    return baseline, memory, pool


def judged(baseline, memory: Arrays, pool, values, times):
    """|z| and relative error of the level, each (entities, times), before each time is learned."""
    z, off = [], []
    for place, at in enumerate(times):
        baseline.turn(memory, float(at), pool)
        usual = baseline.usual(memory, float(at))
        z.append(np.abs(usual.deviation(values[:, place]))[:, 0])
        off.append(np.abs(usual.level / values[:, place] - 1.0)[:, 0])
        baseline.learn(memory, values[:, place], float(at), STEP)
    return np.array(z).T, np.array(off).T


def span(start_days, days):
    return MONDAY + np.arange(start_days * DAY, (start_days + days) * DAY, STEP)


@pytest.mark.parametrize(("week", "weeks", "known"), [(True, 2, True), (True, 1, False), (False, 3, False)])
def test_a_weekend_is_usual_after_two_weekends(week, weeks, known):
    before, weekend = span(0, 7 * weeks + 5), span(7 * weeks + 5, 2)
    baseline, memory, pool = taught(demand(before), before, week=week)
    z, off = judged(baseline, memory, pool, demand(weekend, seed=1), weekend)
    assert bool(off.max() < 0.15) is known
    assert bool((z < 4.0).all()) is known
    assert known or off.max() > 0.8, "twice what comes is expected when Saturday begins"


def test_the_weekly_profile_improves_the_days_after_a_weekend():
    before, monday = span(0, 28), span(28, 1)
    off, scale = {}, {}
    for week in (True, False):
        baseline, memory, pool = taught(demand(before), before, week=week)
        baseline.turn(memory, float(monday[0]), pool)
        scale[week] = float(baseline.usual(memory, float(monday[0])).scale[0, 0])
        off[week] = judged(baseline, memory, pool, demand(monday, seed=1), monday)[1]
    assert off[True].max() < 0.1
    assert off[False].max() > 0.4, "slots that took the weekend for days"
    assert scale[True] < 0.3 * scale[False], "and doubt of which they learnt"


def test_one_anomalous_wednesday_does_not_affect_the_next():
    before = span(0, 16)
    values = demand(before)
    odd = (before >= MONDAY + 9 * DAY) & (before < MONDAY + 10 * DAY)
    values[:, odd] *= 0.1
    baseline, memory, pool = taught(values, before)
    noon = MONDAY + 16.5 * DAY
    baseline.turn(memory, noon, pool)
    assert abs(float(baseline._week.adds(memory, noon).offset[0, 0])) < 3.0


def test_growth_is_not_a_weekday_effect():
    before = span(0, 20)
    values = demand(before, weekend=1.0) * (1.0 + (before - MONDAY) / (20 * DAY))[None, :, None]
    baseline, memory, pool = taught(values, before)
    for hour in range(0, 24, 3):
        at = MONDAY + 20 * DAY + hour * 3600.0
        baseline.turn(memory, at, pool)
        assert abs(float(baseline._week.adds(memory, at).offset[0, 0])) < 8.0, "of 200"


def test_a_fault_on_a_saturday_still_deviates():
    before, saturday = span(0, 19), span(19, 1)
    baseline, memory, pool = taught(demand(before), before)
    values = demand(saturday, seed=1)
    half = values.shape[1] // 2
    values[:, half:] *= 0.3
    z, _ = judged(baseline, memory, pool, values, saturday)
    assert z[0, half] > 5.0
    assert (z[0, :half] < 4.0).all()


@pytest.mark.parametrize(("zone", "known"), [("Asia/Shanghai", True), ("UTC", False)])
def test_weekdays_follow_the_time_zone(zone, known):
    ahead = 8 * 3600.0
    before = span(0, 19) - ahead  # up to midnight in Shanghai, when it is Friday afternoon in UTC
    baseline, memory, pool = taught(demand(before, ahead=ahead), before, zone=ZoneInfo(zone))
    edge = MONDAY + 19 * DAY - ahead + np.arange(0.0, 8 * 3600.0, STEP)
    _, off = judged(baseline, memory, pool, demand(edge, ahead=ahead, seed=1), edge)
    assert bool(off.max() < 0.15) is known


@pytest.mark.parametrize("peers_known", [True, False])
def test_new_entities_take_the_weekend_of_their_peers_or_class(peers_known):
    """Ten entities replaced by ten others on a Tuesday, with and without peers."""
    old = tuple(EntityRef("lab", EntityKind.SERVICE, None, f"old-{number}") for number in range(10))
    new = tuple(EntityRef("lab", EntityKind.SERVICE, None, f"new-{number}") for number in range(10))
    before, rest, weekend = span(0, 22), span(22, 4), span(26, 2)
    baseline, memory, pool = taught(demand(before, count=10), before)
    held = (*old, *new) if peers_known else new
    memory = follow(memory, old, held, baseline.empty(len(held)))
    memory["week_group"] = np.zeros(len(held), dtype=np.int32)
    assert pool[CLASS].shape == (1, CELLS)
    baseline, memory, pool = taught(demand(rest, count=len(held), seed=2), rest, memory=memory, pool=pool)
    z, off = judged(baseline, memory, pool, demand(weekend, count=len(held), seed=3), weekend)
    assert (z[-10:] < 4.0).all()
    assert off[-10:].max() < 0.2
    alone = follow({}, (), new, baseline.empty(10))
    baseline, alone, nothing = taught(demand(rest, count=10, seed=2), rest, memory=alone)
    z, _ = judged(baseline, alone, nothing, demand(weekend, count=10, seed=3), weekend)
    assert (z.max(axis=1) > 5.0).all(), "without either, all of them at once"


def test_disagreeing_services_lend_little_to_a_new_one():
    before = span(0, 21)
    steady, falling = demand(before, weekend=1.0, count=5), demand(before, weekend=0.3, count=4, seed=1)
    _, _, pool = taught(np.concatenate((steady, falling)), before)
    assert np.abs(pool[CLASS]).max() < 0.1
    _, _, agreed = taught(demand(before, weekend=0.3, count=9), before)
    assert agreed[CLASS].min() < -0.6


def test_a_holiday_teaches_no_weekday():
    before = span(0, 14)
    baseline = Baseline((SIGNAL,))
    baseline.set_holidays([(MONDAY + 7 * DAY, MONDAY + 14 * DAY)])
    memory = baseline.empty(1)
    values = demand(before)
    for place, at in enumerate(before):
        baseline.learn(memory, values[:, place], float(at), STEP)
    assert np.isnan(memory["week_older"]).all()
    assert np.isfinite(memory["week_recent"]).sum() >= CELLS - 1


def test_the_memory_of_ten_thousand_entities_stays_small():
    signals = ("engine_requests_waiting",) * 14
    whole, without = (Baseline(signals, week=week).empty(1000) for week in (True, False))
    size, day = (sum(array.nbytes for array in one.values()) for one in (whole, without))
    assert 10 * (size - day) < 60e6, "bytes for 10,000 entities of 14 signals"


def test_every_detector_with_a_weekly_profile_gets_the_time_zone():
    zone = ZoneInfo("Asia/Shanghai")
    with_week = [one for one in make_all(zone=zone) if getattr(one, "_baseline", None) is not None]
    assert {one.name for one in with_week} >= {"entry", "seasonal-service", "isolation-gpu"}
    assert all(one._baseline._week._zone is zone for one in with_week)


def test_the_seasonal_detector_reports_only_the_fault_on_the_third_saturday():
    detector = SeasonalDetector(EntityKind.SERVICE, (SIGNAL,))
    past = np.arange(MONDAY, MONDAY + 19.5 * DAY, 300.0)
    state = detector.warm(
        detector.initial(), window(detector.kind, detector.signals, past, demand(past, count=3), 300.0)
    )
    times = MONDAY + 19.5 * DAY + 15.0 * np.arange(200)
    values = demand(times, count=3, seed=4)
    values[1, 120:] *= 0.4
    _, results = run_cycles(detector, state, values, start=float(times[0]), topology=Topology.build(()))
    assert not any(findings_in(one) for one in results[:120])
    assert [one.entity.name for one in findings_in(results[-1])] == ["service-01"]


def test_a_new_entity_within_a_part_is_initialized_separately():
    times = np.arange(MONDAY, MONDAY + 19.5 * DAY, STEP)
    baseline = Baseline((SIGNAL,))
    memory, pool = baseline.empty(5), baseline.of_class()
    values = demand(times, count=5)
    for place, at in enumerate(times):
        baseline.turn(memory, float(at), pool)
        memory["week_group"] = np.array([0, 0, 0, 1, 1], dtype=np.int32)
        baseline.learn(memory, values[:, place], float(at), STEP)
    at = float(times[-1]) + STEP
    names = tuple(EntityRef("lab", EntityKind.SERVICE, None, f"s{number}") for number in range(7))
    grown = follow(memory, names[:5], names, baseline.empty(7))
    grown["level"][5:] = 80.0
    grown["week_group"] = np.array([0, 0, 0, 1, 1, 0, -1], dtype=np.int32)
    whole, known = {name: one.copy() for name, one in grown.items()}, {name: one.copy() for name, one in pool.items()}
    whole["week_knot"][:] = (whole["week_knot"].max() + 1) % CELLS  # as if the part began now
    baseline.turn(whole, at, known)
    kept = grown["week_from"][0].copy()
    grown["week_from"][0] = 77.0  # what is ready is not made again
    baseline.turn(grown, at, pool)
    assert grown["week_from"][0] == 77.0
    grown["week_from"][0] = kept
    assert whole["week_from"][5:].any()
    for name, one in whole.items():
        np.testing.assert_array_equal(grown[name], one, err_msg=name)
    np.testing.assert_array_equal(pool[CLASS], known[CLASS])
