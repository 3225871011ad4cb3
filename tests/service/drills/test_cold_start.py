"""A platform without history: findings of rules and peers in its first ten minutes."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "simulator"))
from small import coarse_fleet  # type: ignore[import-not-found]

from outrider.model import Alert, AlertState, Stage
from service.drills.private_platform import open_platform
from simulator.faults import Truth, inject
from simulator.world import World

TEN_MINUTES = timedelta(minutes=10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "starts_after"),
    [
        ("engine-dead", timedelta(seconds=60)),  # rules on engine metrics
        ("engine-hung", timedelta(0)),
        ("gpu-power-throttle", timedelta(0)),  # clock far below that of its peers
        ("gpu-slow-peer", timedelta(seconds=150)),  # slower than its peers at the same batch
    ],
)
def test_a_fault_is_detected_within_ten_minutes_of_the_first_cycle(fault: str, starts_after: timedelta) -> None:
    fleet = coarse_fleet()
    platform = open_platform(World([fleet]))
    first = platform.world.now
    truth: Truth | None = None
    firing: dict[str, Alert] = {}
    try:
        while platform.world.now - first < TEN_MINUTES and not firing:
            if truth is None and platform.world.now - first >= starts_after:
                truth = inject(fleet, fault, seed=3, duration=timedelta(minutes=30))
            platform.step()
            alerts = platform.state.alerts(limit=99)
            firing = {
                alert.fault: alert for alert in alerts if alert.state is AlertState.FIRING and alert.fault is not None
            }
        detector_statuses = {status.detector: status for status in platform.state.detector_statuses()}
    finally:
        platform.close()
    assert truth is not None
    assert set(firing) == {fault}, "no other fault"
    assert firing[fault].entity in truth.touches
    learning = {name for name, status in detector_statuses.items() if status.learnt_seconds is not None}
    assert learning, "statistical detectors are listed too"
    assert all(detector_statuses[name].stage is not Stage.ALERTING for name in learning), "they need more history"
