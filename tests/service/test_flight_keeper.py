"""What led to a loud incident is kept by itself, once, within its bounds, and replays to the same cause."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.collect import Collector
from collectors.flight_ring import FlightRing
from collectors.targets import targets_of
from outrider.clock import ManualClock
from outrider.model import CycleRecord, Incident, Layer, Priority
from outrider.ports import CycleCommit
from outrider.topology import Topology
from service import replay, wiring
from service.collect_settings import FlightSettings
from service.event_source import pages_of
from service.flight_keeper import AFTER, FlightKeeper
from service.settings import Settings
from simulator.exporters import serve
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.spec import default_spec
from store.memory import MemoryMetricStore, MemoryStateStore

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
CYCLE = CycleRecord("c", START, 0.1, 1, 1, 1, 0, 0, 0)


async def lived(folder: Path) -> tuple[list[Path], list[Path], str]:
    """A platform sees an engine die; (recordings, recordings of a second look, name of the engine)."""
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
    platform = wiring.platform(settings, clock, lockstep=True)
    source = pages_of(platform.collector)
    assert isinstance(source, Collector)
    assert platform.flight is not None
    try:
        truth = inject(fleet, "engine-dead", start=fleet.now + 3 * STEP)
        for _ in range(12):
            await platform.cycle.run()
            platform.flight._ring.flush()
            clock.advance(STEP)
            fleet.step(STEP)
            await server.sync()
        looks = [
            platform.flight.look(clock.now(), source.topology(clock.now()), settings.cluster, source.targets)
            for _ in range(2)
        ]
        return looks[0], looks[1], truth.entity.name
    finally:
        await platform.close()
        await server.close()


def test_a_recording_kept_for_an_incident_replays_to_it(tmp_path: Path) -> None:
    kept, again, victim = asyncio.run(lived(tmp_path))
    assert len(kept) == 1
    assert again == []
    assert kept[0].parent == tmp_path / "flight" / "incidents"
    assert len(list(kept[0].glob("*.gz"))) == 10
    result = replay.replay([kept[0]], adapter="vllm", emit=["incidents"], settings=Settings(), language="en")
    causes = [one["suspected_cause"] for one in result["incidents"]]
    assert ("engine-dead", victim) in [(cause["fault"], cause["entity"]["name"]) for cause in causes if cause]


def incident(name: str, opened: datetime, priority: Priority) -> Incident:
    return Incident(name, Layer.ENGINE, priority, opened, (), (), (), (), opened)


@pytest.mark.parametrize(
    ("priority", "age", "kept"),
    [
        (Priority.P0, AFTER, True),
        (Priority.P1, 10 * AFTER, True),
        (Priority.P1, AFTER / 2, False),  # its beginning is not over yet
        (Priority.P2, AFTER, False),
        (Priority.P0, timedelta(hours=2), False),  # the ring holds it no more
    ],
)
def test_only_loud_incidents_whose_scrapes_are_there(
    tmp_path: Path, priority: Priority, age: timedelta, kept: bool
) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    state.commit(CycleCommit(CYCLE, incidents=(incident("i", START - age, priority),)))
    keeper = FlightKeeper(ring, state, MemoryMetricStore(), FlightSettings(), tmp_path / "kept")
    targets = targets_of("c", [{"name": "t", "adapter": "vllm"}])
    assert bool(keeper.look(START, Topology.build((), (), {}, START), "c", targets)) is kept


def test_the_oldest_recordings_go_first(tmp_path: Path) -> None:
    state, ring = MemoryStateStore(), FlightRing(tmp_path / "ring")
    keeper = FlightKeeper(ring, state, MemoryMetricStore(), FlightSettings(incidents=2), tmp_path / "kept")
    targets = targets_of("c", [{"name": "t", "adapter": "vllm"}])
    for number in range(4):
        opened = START + number * STEP
        loud = incident(str(number), opened, Priority.P0)
        state.commit(CycleCommit(replace(CYCLE, id=str(number)), incidents=(loud,)))
        keeper.look(opened + AFTER, Topology.build((), (), {}, START), "c", targets)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["2", "3"]
