"""Times of day on the clock of the users: summer time shifts no hour of a learned profile."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from detectors.anomaly.seasonal import SeasonalDetector
from detectors.load.gateway import GatewayDetector
from detectors.registry import make_all
from detectors.statistics.baseline import Baseline
from detectors.statistics.wall_clock import wall_seconds
from outrider.model import EntityKind

SIGNAL = "svc_requests_per_second"
STEP = 300.0
BERLIN, SHANGHAI = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Shanghai")


def office(times, zone):
    """Forty requests per second from nine to five on the clock of the zone, two at other times."""
    hours = np.array([wall_seconds(float(at), zone) % 86400.0 / 3600.0 for at in times])
    return np.where((hours >= 9) & (hours < 17), 40.0, 2.0)


def taught(zone, configured, until):
    """A baseline of twelve days before a local midnight."""
    baseline = Baseline((SIGNAL,), week=False)
    baseline.set_zone(configured)
    memory, times = baseline.empty(1), until.timestamp() - STEP * np.arange(12 * 288, 0, -1)
    for at, value in zip(times, office(times, zone), strict=True):
        baseline.learn(memory, np.array([[value]]), float(at), STEP)
    return baseline, memory


def error(zone, configured, morning):
    """Error of the expected level over the hours around nine on the day that begins at ``morning``."""
    baseline, memory = taught(zone, configured, morning)
    times = morning.timestamp() + np.arange(7.5, 10.5, 0.25) * 3600.0
    times = times[np.abs(np.array([wall_seconds(float(at), zone) % 86400.0 / 3600.0 for at in times]) - 9.0) >= 0.5]
    truth = office(times, zone)
    expected = np.array([baseline.usual(memory, float(at)).level[0, 0] for at in times])
    return float(np.abs(expected - truth).sum() / truth.sum())


@pytest.mark.parametrize(
    ("zone", "morning"),
    [
        (BERLIN, datetime(2026, 3, 29, tzinfo=BERLIN)),  # clocks go forward in the first hours of this day
        (BERLIN, datetime(2026, 10, 25, tzinfo=BERLIN)),  # and back
        (SHANGHAI, datetime(2026, 3, 29, tzinfo=SHANGHAI)),
    ],
)
def test_the_profile_of_the_day_follows_the_clock_of_the_users(zone, morning):
    assert error(zone, zone, morning.astimezone(UTC)) < 0.1


def test_in_utc_summer_time_shifts_the_profile_of_the_day():
    assert error(BERLIN, UTC, datetime(2026, 3, 29, tzinfo=BERLIN).astimezone(UTC)) > 0.2


def test_slots_are_half_hours_of_the_zone():
    at = datetime(2026, 7, 1, 22, 15, tzinfo=UTC).timestamp()
    slots = []
    for zone in (UTC, BERLIN, SHANGHAI, ZoneInfo("Asia/Kolkata")):
        baseline = Baseline((SIGNAL,))
        baseline.set_zone(zone)
        slots.append(baseline.slot(at))
    assert slots == [44, 0, 12, 7]


def test_every_profile_of_the_day_gets_the_time_zone():
    detectors = [one for one in make_all(zone=SHANGHAI) if getattr(one, "_baseline", None) is not None]
    assert all(one._baseline._zone is SHANGHAI for one in detectors)
    ensembles = [one._ensemble for one in detectors if hasattr(one, "_ensemble")]
    assert ensembles
    assert all(one._residuals._baseline._zone is SHANGHAI for one in ensembles)


@pytest.mark.parametrize("make", [GatewayDetector, lambda: SeasonalDetector(EntityKind.SERVICE, (SIGNAL,))])
def test_hours_learned_in_another_time_zone_are_dropped(make):
    plain, moved = make(), make()
    moved.set_zone(SHANGHAI)
    state = plain._state((), {}, {}) if isinstance(plain, SeasonalDetector) else plain.initial()
    assert plain.restored(state) == (state, "")
    assert moved.restored(state)[1] == "it was learned in another time zone"
