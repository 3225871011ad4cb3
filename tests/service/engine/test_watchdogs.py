"""Absent heartbeats of other monitors open a monitoring incident that names what is silent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import ManualClock
from outrider.model import AlertState, Layer, NotifyReason
from outrider.ports import Collected
from outrider.records.heartbeats import NEVER, Watchdog
from outrider.records.silences import parse_matcher
from outrider.topology import Topology
from service.config.settings import Settings
from service.engine.cycle import Cycle
from service.engine.watchdogs import findings
from service.wiring import platform

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
WITHIN = timedelta(minutes=10)
PROMETHEUS = Watchdog("prometheus", (parse_matcher("alertname=Watchdog"),), WITHIN)


def names(heartbeats, now, since=START):
    return [item.entity.name for item in findings([PROMETHEUS], heartbeats, since, "c", now)]


@pytest.mark.parametrize(
    ("last", "now", "silent"),
    [
        (START + timedelta(minutes=30), START + timedelta(minutes=40), []),
        (START + timedelta(minutes=30), START + timedelta(minutes=41), ["prometheus"]),
        (None, START + timedelta(minutes=9), []),
        (None, START + timedelta(minutes=11), ["prometheus"]),
        (START - timedelta(hours=5), START + timedelta(minutes=9), []),  # the engine was down, too
        (START - timedelta(hours=5), START + timedelta(minutes=11), ["prometheus"]),
        (NEVER, START + timedelta(seconds=1), ["prometheus"]),
        (START + timedelta(hours=9), START + timedelta(minutes=30), ["prometheus"]),  # from before a step of the clock
    ],
)
def test_a_heartbeat_is_absent_after_its_time(last, now, silent):
    assert names({} if last is None else {PROMETHEUS.key: last}, now) == silent


def test_a_watchdog_is_selected_by_its_labels_and_source():
    assert PROMETHEUS.selects({"alertname": "Watchdog"}, "alertmanager")
    assert not PROMETHEUS.selects({"alertname": "Other"}, "alertmanager")
    assert not Watchdog("cron", (), WITHIN).selects({}, "alertmanager")


class World:
    """The cycle on a store in memory with one watchdog."""

    def __init__(self) -> None:
        watchdog = {"name": "prometheus-eu", "match": ["alertname=Watchdog"], "within": "2m"}
        self.clock = ManualClock(START)
        self.settings = Settings(watchdogs=[watchdog])
        self.cycle = platform.cycle_in_memory(self.settings, NoSource(), self.clock, interval=STEP)
        self.state = self.cycle.parts.state

    def restart(self) -> None:
        """Another engine takes over with the same store."""
        cycle = platform.cycle_in_memory(self.settings, NoSource(), self.clock, interval=STEP)
        self.cycle = Cycle(replace(cycle.parts, state=self.state))

    def step(self, count: int) -> None:
        for _ in range(count):
            self.cycle.run_stages(self.clock.advance(STEP), Collected(topology=Topology()))


class NoSource:
    """Brings nothing."""

    async def collect(self, at: datetime) -> Collected:
        return Collected()

    async def close(self) -> None:
        """Nothing to release."""


def test_a_silent_monitor_pages_with_its_name_and_ends_with_its_next_heartbeat():
    world = World()
    world.step(7)
    assert not world.state.alerts()
    world.step(4)
    (incident,) = world.state.incidents(open_only=True)
    assert incident.layer is Layer.MONITORING
    (alert,) = world.state.alerts(states=[AlertState.FIRING])
    assert (alert.rule, alert.entity.name) == ("watchdog-absent", "prometheus-eu")
    (page,) = [message for message in world.state.messages() if message.is_page]
    assert "prometheus-eu" in page.title
    assert "no heartbeat of prometheus-eu for more than 2m" in page.body
    world.state.beat("watchdog/prometheus-eu", world.clock.now())
    world.step(6)
    assert not world.state.incidents(open_only=True)
    assert world.state.messages()[0].reason is NotifyReason.RESOLVED


def test_a_monitor_that_keeps_sending_is_never_reported():
    world = World()
    for _ in range(20):
        world.state.beat("watchdog/prometheus-eu", world.clock.now())
        world.step(2)
    assert not world.state.alerts()


def test_a_monitor_that_was_silent_before_a_failover_stays_reported_until_it_sends():
    world = World()
    world.step(12)
    (before,) = world.state.alerts(states=[AlertState.FIRING])
    world.restart()
    world.step(6)  # within the time that a new engine waits for a first heartbeat
    (after,) = world.state.alerts(states=[AlertState.FIRING])
    assert (after.fingerprint, after.starts_at) == (before.fingerprint, before.starts_at)
    assert len([message for message in world.state.messages() if message.is_page]) == 1
    world.state.beat("watchdog/prometheus-eu", world.clock.now())
    world.step(6)
    assert not world.state.incidents(open_only=True)
