"""Recovery is the end of the impact on the fleet, not a pause of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.scoring.recovery import Recovery
from simulator.spec.fleets import drill_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
LOOK = timedelta(seconds=15)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(drill_spec(), seed=3, start=START)


def watched(fleet: Fleet, fault: str, minutes: int = 10) -> Recovery:
    inject(fleet, fault, "chat-70b-2", duration=timedelta(minutes=minutes))
    return Recovery(fleet, fleet.injections[-1])


def follow(recovery: Recovery, seconds: int) -> None:
    for _ in range(seconds // 15):
        recovery.fleet.step(LOOK)
        recovery.update()


def restart(fleet: Fleet, name: str = "chat-70b-2") -> None:
    pod = fleet.pod_named(name)
    assert pod is not None
    fleet.restart(pod.slot)


@pytest.mark.slow
def test_an_intermittent_fault_is_not_over_in_a_pause(fleet: Fleet) -> None:
    recovery = watched(fleet, "gpu-memory-fragmentation", minutes=14)
    for _ in range(20):
        follow(recovery, 15)
        assert recovery.at is None
    restart(fleet)
    follow(recovery, 420)
    assert recovery.at is not None
    assert recovery.at > START.timestamp() + 300


def test_impact_that_returns_withdraws_the_recovery(fleet: Fleet) -> None:
    recovery = watched(fleet, "engine-asleep")
    follow(recovery, 30)
    pod = fleet.pod_named("chat-70b-2")
    assert pod is not None
    fleet.router.weights[pod.slot] = 0.0
    follow(recovery, 75)
    assert recovery.at is not None
    assert recovery.newest_pod_at is not None
    assert recovery.newest_pod_at < START.timestamp(), "no new pod has relieved it"
    fleet.router.weights[pod.slot] = 1.0
    follow(recovery, 30)
    assert recovery.at is None


@pytest.mark.slow
def test_a_leak_without_impact_is_over_once_a_new_process_serves(fleet: Fleet) -> None:
    recovery = watched(fleet, "gpu-memory-leak", minutes=13)
    follow(recovery, 120)
    assert recovery.at is None
    restart(fleet)
    follow(recovery, 30)
    assert recovery.at is None, "its process is still starting"
    follow(recovery, 240)
    assert recovery.at is not None


def test_a_fault_bound_to_a_place_without_impact_ends_only_by_itself(fleet: Fleet) -> None:
    inject(fleet, "stale-metrics", duration=timedelta(minutes=3))
    recovery = Recovery(fleet, fleet.injections[-1])
    follow(recovery, 240)
    assert recovery.at is None
