from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.vocabulary.catalog import bucket_quantile
from simulator.cluster.pods import Phase
from simulator.engine.counters import TTFT_BOUNDS
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec

PEAK = datetime(2026, 11, 18, 14, tzinfo=UTC)


def step(fleet: Fleet, seconds: float) -> None:
    fleet.step(timedelta(seconds=seconds))


@pytest.mark.slow
def test_the_small_fleet_is_as_described() -> None:
    fleet = Fleet(start=PEAK)
    assert fleet.now == PEAK
    assert (fleet.nodes.size, fleet.gpus.size, len(fleet.spec.services)) == (8, 64, 2)
    assert sum(pod.ready for pod in fleet.pods.pods) == 16
    assert int((fleet.pods.owner >= 0).sum()) == 52


@pytest.mark.slow
def test_time_advances_only_by_steps() -> None:
    fleet = Fleet(start=PEAK)
    step(fleet, 15)
    assert fleet.now == PEAK + timedelta(seconds=15)
    step(fleet, 2.5)
    assert fleet.now == PEAK + timedelta(seconds=17.5)


def test_a_start_without_a_time_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="no time zone"):
        Fleet(start=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.slow
def test_it_starts_warm() -> None:
    fleet = Fleet(start=PEAK)
    at_start = fleet.bank.running.sum(), fleet.gpus.power[:40].mean(), fleet.gpus.temperature[:40].mean()
    step(fleet, 120)
    later = fleet.bank.running.sum(), fleet.gpus.power[:40].mean(), fleet.gpus.temperature[:40].mean()
    assert np.allclose(at_start, later, rtol=0.25)


@pytest.mark.slow
def test_a_peak_without_faults_keeps_its_slo() -> None:
    fleet = Fleet(start=PEAK)
    before = fleet.bank.counters.buckets["ttft"].copy()
    for _ in range(5):
        step(fleet, 180)
        seen = fleet.bank.counters.buckets["ttft"] - before
        before = fleet.bank.counters.buckets["ttft"].copy()
        for slots in (slice(0, 13), slice(13, None)):
            p99, _ = bucket_quantile(seen[slots].sum(axis=0), TTFT_BOUNDS, 0.99)
            assert p99 < 0.5
    assert fleet.bank.totals.failed == fleet.bank.totals.gave_up == 0
    assert (fleet.gpus.clock_ratio == 1.0).all()
    assert (fleet.gpus.memory_used / fleet.gpus.memory < 0.93).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_fleet() -> None:
    one, other, another = Fleet(seed=3, start=PEAK), Fleet(seed=3, start=PEAK), Fleet(seed=4, start=PEAK)
    for fleet in (one, other, another):
        step(fleet, 20)
    assert np.array_equal(one.bank.counters.buckets["e2e"], other.bank.counters.buckets["e2e"])
    assert np.array_equal(one.gpus.power, other.gpus.power)
    assert not np.array_equal(one.bank.counters.buckets["e2e"], another.bank.counters.buckets["e2e"])


@pytest.mark.slow
def test_nothing_is_lost_when_a_pod_is_restarted() -> None:
    fleet = Fleet(start=PEAK)
    step(fleet, 30)
    fleet.restart(0)
    step(fleet, 60)
    totals = fleet.bank.totals
    assert totals.failed > 0
    assert totals.arrived == totals.finished + totals.failed + totals.gave_up + len(fleet.bank.table)


@pytest.mark.slow
def test_a_cold_start_has_its_phases_and_takes_minutes() -> None:
    fleet = Fleet(start=PEAK)
    fleet.restart(0)
    seen, seconds_taken = [], 0
    while not fleet.pods.pods[0].ready:
        step(fleet, 2)
        seconds_taken += 2
        phase = fleet.pods.pods[0].phase
        if phase not in seen:
            seen.append(phase)
        assert seconds_taken < 600
    assert seen == [Phase.PENDING, Phase.PULLING, Phase.LOADING, Phase.WARMING, Phase.READY]
    assert 120 <= seconds_taken <= 330
    assert abs(fleet.spec.startup.total_seconds - 210) < 60


@pytest.mark.slow
def test_the_scheduler_packs_and_needs_whole_groups() -> None:
    fleet = Fleet(start=PEAK)
    assert fleet.pods.free_gpus().tolist() == [0, 0, 0, 0, 0, 0, 4, 8]
    for slot in (10, 11, 12, 19):
        fleet.pods.create(slot, fleet.at)
        step(fleet, 10)
    assert [fleet.pods.pods[slot].node for slot in (10, 11, 12)] == [6, 7, 7]
    assert fleet.pods.pods[19].phase is Phase.PENDING
    assert fleet.pods.pods[19].unschedulable
    fleet.remove(12)
    step(fleet, 20)
    assert fleet.pods.pods[19].node == 7


def test_unknown_services_are_named() -> None:
    with pytest.raises(UsageError) as refused:
        default_spec().service("chat")
    assert "chat-70b" in refused.value.hint
