"""Detectors on real recordings of one engine: their findings and delays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording.reader import read_fleet, read_recording, target_of_file
from collectors.scrape.result import Scrape
from detectors.engine.liveness import LivenessDetector
from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.load.queueing import QueueingDetector
from detectors.load.saturation import SaturationDetector
from detectors.platform.node_faults import NodeFaultDetector
from detectors.platform.scrape_targets import ScrapeTargetDetector
from outrider.model import EntityKind, Finding, SignalKey
from service.engine.window_cache import WindowCache

RECORDINGS = Path(__file__).parents[1] / "recordings"
SCRAPE = timedelta(seconds=5)
FACTORIES = (
    LivenessDetector,
    SaturationDetector,
    QueueingDetector,
    ScrapeTargetDetector,
    GpuFaultDetector,
    NodeFaultDetector,
)
KILLED = 1795191693.81
RESTARTED_PAGE = 1795191768.86
STOPPED, CONTINUED = 1795230176.228, 1795230251.228
ASLEEP, AWAKE = 1795230820.232, 1795230880.238
FLEET_STOPPED, FLEET_CONTINUED = 1795231388.317, 1795231468.317


@dataclass(frozen=True)
class ObservedFinding:
    """A finding and its scrape."""

    at: float
    scrape: int
    finding: Finding

    @property
    def fault(self) -> str | None:
        return self.finding.fault


def cycles(scrapes: list[Scrape]) -> Iterator[list[Scrape]]:
    """Yields one cycle per scrape interval, with the scrapes of all targets in it."""
    first = scrapes[0].at
    for _, group in groupby(scrapes, key=lambda one: round((one.at - first) / SCRAPE)):
        yield list(group)


@cache
def watch(name: str) -> tuple[ObservedFinding, ...]:
    path = RECORDINGS / name
    if path.is_dir():
        fleet = read_fleet(path)
        targets, scrapes = list(fleet.targets), list(fleet.scrapes())
    else:
        path = RECORDINGS / f"{name}.metrics.jsonl.gz"
        targets = [target_of_file(path)]
        scrapes = list(read_recording(path, targets[0]))
    collector = ScrapeManager(targets)
    detectors = [factory() for factory in FACTORIES]
    needs: dict[EntityKind, list[SignalKey]] = {}
    for detector in detectors:
        needs.setdefault(detector.kind, []).extend(detector.keys)
    cache_ = WindowCache(needs, 130)
    states = {detector.name: detector.initial() for detector in detectors}
    seen = []
    for number, group in enumerate(cycles(scrapes)):
        now = max(scrape.at for scrape in group)
        collected = collector.absorb(group, now)
        cache_.push(now, collected.batches, collected.events)
        topology = collector.topology(now)
        for detector in detectors:
            window = cache_.window(detector.kind, detector.keys, detector.window, SCRAPE)
            states[detector.name], verdicts = detector.detect(states[detector.name], window, topology, now)
            seen += [ObservedFinding(now.timestamp(), number, item) for item in verdicts if isinstance(item, Finding)]
    return tuple(seen)


def times(seen: tuple[ObservedFinding, ...], fault: str) -> list[float]:
    return [item.at for item in seen if item.fault == fault]


def faults(seen: tuple[ObservedFinding, ...]) -> set[str | None]:
    return {item.fault for item in seen}


@pytest.mark.parametrize("name", ["a_idle", "b_steady", "f_prefix"])
def test_a_healthy_engine_does_not_page(name):
    assert [item for item in watch(name) if item.finding.severity.rank <= 2] == []


def test_a_killed_engine_is_dead_within_two_scrapes_until_it_returns():
    seen = watch("g_sigkill")
    assert faults(seen) == {"engine-dead"}
    dead = times(seen, "engine-dead")
    assert KILLED < dead[0] <= KILLED + 2 * SCRAPE.total_seconds()
    assert dead[-1] < RESTARTED_PAGE
    assert len(dead) == len(set(dead)), "one finding a cycle"


def test_a_stopped_core_is_hung_within_six_scrapes():
    hung = times(watch("i_hang"), "engine-hung")
    assert STOPPED < hung[0] <= STOPPED + 6 * SCRAPE.total_seconds()


def test_the_backlog_after_a_hang_is_neither_a_hang_nor_a_surge():
    seen = watch("i_hang")
    assert faults(seen) == {"engine-hung"}
    assert max(times(seen, "engine-hung")) <= CONTINUED + 3 * SCRAPE.total_seconds()


def test_a_sleeping_engine_is_asleep_and_nothing_else():
    seen = watch("l_sleep")
    assert faults(seen) == {"engine-asleep"}
    asleep = times(seen, "engine-asleep")
    assert ASLEEP < asleep[0] <= ASLEEP + 2 * SCRAPE.total_seconds()
    assert asleep[-1] <= AWAKE + SCRAPE.total_seconds()
    assert seen[-1].finding.severity.value == "P1", "requests hang by then"


def test_a_core_that_hangs_while_idle_is_detected_without_its_peer():
    seen = watch("n_fleet_hang")
    assert {(item.fault, item.finding.entity.name) for item in seen} == {("engine-hung", "replica-1")}
    hung = times(seen, "engine-hung")
    assert FLEET_STOPPED < hung[0] <= FLEET_STOPPED + 6 * SCRAPE.total_seconds()
    assert hung[-1] <= FLEET_CONTINUED + 3 * SCRAPE.total_seconds()


@pytest.mark.slow
def test_a_ramp_beyond_capacity_is_load_and_not_an_engine_fault():
    seen = watch("c_ramp")
    assert faults(seen) == {"traffic-surge", None}, "the full cache under it is a symptom"
    assert any(item.fault == "traffic-surge" and item.finding.score > 0.8 for item in seen)
