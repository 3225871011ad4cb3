"""A platform that knows nothing yet: what rules and peers find in its first ten minutes, with no history at all."""

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


@pytest.mark.parametrize(
    ("fault", "begins"),
    [
        ("engine-dead", timedelta(seconds=60)),  # rules on what the engine says, which was there before
        ("engine-hung", timedelta(0)),
        ("gpu-power-throttle", timedelta(0)),  # held far below the clock of its peers
        ("gpu-slow-peer", timedelta(seconds=150)),  # slower than its peers at the same batch
    ],
)
def test_a_fault_is_found_and_named_within_ten_minutes_of_the_first_cycle(fault: str, begins: timedelta) -> None:
    fleet = coarse_fleet()
    platform = open_platform(World([fleet]))
    first = platform.world.now
    truth: Truth | None = None
    told: dict[str, Alert] = {}
    try:
        while platform.world.now - first < TEN_MINUTES and not told:
            if truth is None and platform.world.now - first >= begins:
                truth = inject(fleet, fault, seed=3, duration=timedelta(minutes=30))
            platform.step()
            alerts = platform.state.alerts(limit=99)
            told = {one.fault: one for one in alerts if one.state is AlertState.FIRING and one.fault is not None}
        standings = {one.detector: one for one in platform.state.standings()}
    finally:
        platform.close()
    assert truth is not None
    assert set(told) == {fault}, "this one, and none beside it"
    assert told[fault].entity in truth.touches
    needs_past = {name for name, one in standings.items() if one.learnt_seconds is not None}
    assert needs_past, "the statistical ones stand there, too"
    assert all(standings[name].stage is not Stage.ALERTING for name in needs_past), "they have learnt too little"
