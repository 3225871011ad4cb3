"""Recordings around P0 and P1 incidents: written once, within limits, and replayable to the same cause."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.mapping.target import Target, targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording import reader
from collectors.recording.ring_buffer import FlightRing
from collectors.scrape.result import Scrape
from detectors.rca.incident_lifecycle import PRIORITY_RAISED
from outrider.clock import ManualClock
from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Priority,
    TimelineEntry,
)
from outrider.ports import CycleCommit
from outrider.topology import Topology
from service.config.collect_settings import FlightSettings
from service.config.settings import Settings
from service.ops import replay
from service.recorder.incident_recordings import AFTER, IncidentRecorder, high_priority_since
from service.wiring import platform as wiring_platform
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.servers.http import serve
from simulator.spec.fleets import default_spec
from store.memory import MemoryMetricStore, MemoryStateStore

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
CYCLE = CycleRecord("c", START, 0.1, 1, 1, 1, 0, 0, 0)


async def run_until_incident(folder: Path) -> tuple[list[Path], list[Path], str]:
    """Runs a platform while an engine dies. Returns (recordings, those of a second call, name of the engine)."""
    fleet = Fleet(default_spec(), seed=3, start=START)
    fleet.step(STEP)
    server = await serve(fleet)
    listed = server.targets()
    settings = Settings.model_validate(
        {
            "cluster": listed["cluster"],
            "store": {"url": f"sqlite:///{folder}/o.db"},
            "collect": {"targets": listed["targets"], "flight": {"targets": 10}},
        }
    )
    clock = ManualClock(fleet.now)
    platform = wiring_platform.platform(settings, clock, lockstep=True)
    source = platform.collector.pages
    assert isinstance(source, ScrapeManager)
    assert platform.flight is not None
    try:
        truth = inject(fleet, "engine-dead", start=fleet.now + 3 * STEP)
        for _ in range(12):
            await platform.cycle.run()
            platform.flight._ring.flush()
            clock.advance(STEP)
            fleet.step(STEP)
            await server.sync()
        results = [
            platform.flight.record_due(clock.now(), source.topology(clock.now()), settings.cluster, source.targets)
            for _ in range(2)
        ]
        return results[0], results[1], truth.entity.name
    finally:
        await platform.close()
        await server.close()


@pytest.mark.slow
def test_the_recording_of_an_incident_replays_to_it(tmp_path: Path) -> None:
    recordings, again, victim = asyncio.run(run_until_incident(tmp_path))
    assert len(recordings) == 1
    assert again == []
    assert recordings[0].parent == tmp_path / "flight" / "incidents"
    assert len(list(recordings[0].glob("*.gz"))) == 10
    result = replay.replay([recordings[0]], adapter="vllm", emit=["incidents"], settings=Settings(), language="en")
    causes = [incident["suspected_cause"] for incident in result["incidents"]]
    assert ("engine-dead", victim) in [(cause["fault"], cause["entity"]["name"]) for cause in causes if cause]


def incident(name: str, opened: datetime, priority: Priority) -> Incident:
    return Incident(name, Layer.ENGINE, priority, opened, (), (), (), (), opened)


@pytest.mark.parametrize(
    ("priority", "age", "recorded"),
    [
        (Priority.P0, AFTER, True),
        (Priority.P1, 10 * AFTER, True),
        (Priority.P1, AFTER / 2, False),  # too early
        (Priority.P2, AFTER, False),
        (Priority.P0, timedelta(hours=2), False),  # no longer in the ring buffer
    ],
)
def test_only_recent_high_priority_incidents_are_recorded(
    tmp_path: Path, priority: Priority, age: timedelta, recorded: bool
) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    state.commit(CycleCommit(CYCLE, incidents=(incident("i", START - age, priority),)))
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(), tmp_path / "kept")
    targets = targets_of("c", [{"name": "t", "adapter": "vllm"}])
    assert bool(recorder.record_due(START, Topology.build((), (), {}, START), "c", targets)) is recorded


def test_the_oldest_recordings_are_deleted_first(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(incidents=2), tmp_path / "kept")
    targets = targets_of("c", [{"name": "t", "adapter": "vllm"}])
    for number in range(4):
        opened = START + number * STEP
        loud = incident(str(number), opened, Priority.P0)
        state.commit(CycleCommit(replace(CYCLE, id=str(number)), incidents=(loud,)))
        recorder.record_due(opened + AFTER, Topology.build((), (), {}, START), "c", targets)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["2", "3"]


TARGETS = targets_of(
    "c",
    [
        {"name": f"chat-{number}", "adapter": "vllm", "labels": {"service": "chat", "pod": f"p{number}", "node": "n"}}
        for number in range(3)
    ],
)
NOTHING = Topology.build((), (), {}, START)


def add_scrapes(ring: FlightRing, at: datetime, *targets: Target) -> None:
    ring.add([Scrape(target, at, f"a {target.name[-1]}\n".encode(), None, 0.1) for target in targets])
    ring.flush()


def record_names(recorder: IncidentRecorder, now: datetime, *targets: Target) -> list[str]:
    return sorted(path.name for path in recorder.record_due(now, NOTHING, "c", targets))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("room", [10, 1])
def test_the_target_that_died_is_in_the_recording(tmp_path: Path, room: int, restarted: bool) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    for number in range(-20, 0):
        add_scrapes(ring, START + number * STEP, *TARGETS)
    add_scrapes(ring, START, *TARGETS[1:])  # the pod of the first was evicted and left discovery
    pod = EntityRef("c", EntityKind.POD, "default", "p0")
    opened_incident = replace(incident("i", START, Priority.P0), hypotheses=(Hypothesis(pod, "pod-evicted", 0.9),))
    state.commit(CycleCommit(CYCLE, incidents=(opened_incident,)))
    if restarted:
        ring.close()
        ring = FlightRing(tmp_path / "ring")
        add_scrapes(ring, START + STEP, *TARGETS[1:])
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(targets=room), tmp_path / "kept")
    assert record_names(recorder, START + AFTER, *TARGETS[1:]) == ["i"]
    fleet = reader.read_fleet(tmp_path / "kept" / "i")
    (dead,) = [target for target in fleet.targets if target.name == "chat-0"]
    assert (dead.adapter, dead.entity, dead.labels) == ("vllm", TARGETS[0].entity, TARGETS[0].labels)
    assert len([scrape for scrape in fleet.scrapes() if scrape.target.name == "chat-0"]) == 20
    assert len(fleet.targets) == min(room, 3)


def test_a_target_that_left_long_ago_is_not_in_the_recording(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    add_scrapes(ring, START - timedelta(minutes=31), *TARGETS)
    add_scrapes(ring, START, *TARGETS[1:])
    state.commit(CycleCommit(CYCLE, incidents=(incident("i", START, Priority.P0),)))
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(), tmp_path / "kept")
    assert record_names(recorder, START + AFTER, *TARGETS[1:]) == ["i"]
    assert [target.name for target in reader.read_fleet(tmp_path / "kept" / "i").targets] == ["chat-1", "chat-2"]


def test_in_a_storm_the_highest_priorities_are_recorded(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    loud = [incident(f"loud-{number}", START - number * STEP, Priority.P0) for number in range(2)]
    later = [incident(f"later-{number}", START + timedelta(seconds=1), Priority.P1) for number in range(150)]
    quiet = [incident(f"quiet-{number}", START + timedelta(seconds=2), Priority.P2) for number in range(150)]
    state.commit(CycleCommit(CYCLE, incidents=(*loud, *later, *quiet)))
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(incidents=3), tmp_path / "kept")
    names = record_names(recorder, START + 2 * AFTER, *TARGETS)
    assert [name for name in names if "later" not in name] == ["loud-0", "loud-1"]
    assert len(names) == 3
    assert record_names(recorder, START + 3 * AFTER, *TARGETS) == [], "skipped incidents do not replace them"


def test_a_recording_starts_from_the_raised_priority(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    for number in range(-5, 2):
        add_scrapes(ring, START + number * STEP, *TARGETS)
    opened = START - timedelta(hours=3)
    raised = TimelineEntry(START, PRIORITY_RAISED, {"old": "P2", "new": "P1"})
    once_more = TimelineEntry(START + STEP, PRIORITY_RAISED, {"old": "P1", "new": "P0"})
    opened_incident = replace(incident("i", opened, Priority.P0), timeline=(raised, once_more))
    state.commit(CycleCommit(CYCLE, incidents=(opened_incident,)))
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(), tmp_path / "kept")
    assert record_names(recorder, START + AFTER / 2, *TARGETS) == []
    assert record_names(recorder, START + AFTER, *TARGETS) == ["i"]
    assert len(list(reader.read_fleet(tmp_path / "kept" / "i").scrapes())) == 7 * 3
    always = replace(opened_incident, timeline=(once_more,))
    assert (high_priority_since(always), high_priority_since(replace(opened_incident, priority=Priority.P2))) == (
        opened,
        None,
    )


def test_without_a_cause_the_targets_of_the_alerts_are_recorded(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    add_scrapes(ring, START, *TARGETS)
    alert = Alert(
        "f", "r", Priority.P1, TARGETS[1].entity, AlertState.FIRING, AlertReason.STILL_TRUE, START, START, incident="i"
    )
    opened_incident = replace(incident("i", START, Priority.P1), alerts=("f",))
    state.commit(CycleCommit(CYCLE, alerts=(alert,), incidents=(opened_incident,)))
    recorder = IncidentRecorder(ring, state, MemoryMetricStore(), FlightSettings(targets=1), tmp_path / "kept")
    assert record_names(recorder, START + AFTER, *TARGETS) == ["i"]
    assert [target.name for target in reader.read_fleet(tmp_path / "kept" / "i").targets] == ["chat-1"]
