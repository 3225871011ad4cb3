"""The fast path: pages over HTTP of a small fleet, a real store in a file, decisions before the round ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outrider.clock import ManualClock
from outrider.errors import StoreUnavailableError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    AlertState,
    DecisionReason,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Incident,
)
from outrider.ports import Collected
from service.config.settings import Settings
from service.wiring import platform as wiring
from service.wiring.platform import Platform
from tests.support.gpu_fleet import GpuFleet, gpu_fleet
from tests.support.waiting import until_async

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
NODES = ["node-a", "node-b", "node-c"]
SLOW_SECONDS = 3.0
A = EntityRef("c", EntityKind.NODE, None, "node-a")


class Engine:
    """A platform on the fleet, cycle by cycle."""

    def __init__(self, fleet: GpuFleet, folder: Path, **remediation: Any) -> None:
        document = {
            "cluster": "c",
            "store": {"url": f"sqlite:///{folder}/o.db"},
            "collect": {"targets": fleet.targets(), "spread": "0s"},
            "remediation": {"autonomy": "act", "dry_run": False, **remediation},
        }
        self.fleet, self.clock = fleet, ManualClock(START)
        self.platform: Platform = wiring.platform(Settings.model_validate(document), self.clock)

    @property
    def cordons(self) -> list[Action]:
        return [action for action in self.platform.state.actions() if action.kind is ActionKind.CORDON]

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return self.platform.state.incidents()

    async def cycles(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(STEP)
            await self.platform.cycle.run_in_thread()

    async def until_decided_in_round(self, broken: Callable[[], None]) -> list[Action]:
        """Breaks something, and returns the cordons decided while another target still answers."""
        self.fleet.nodes["node-c"].delay = SLOW_SECONDS
        broken()
        self.clock.advance(STEP)
        running = asyncio.create_task(self.platform.cycle.run_in_thread())

        async def decided() -> list[Action]:
            return await asyncio.to_thread(lambda: self.cordons)

        cordons = await until_async(decided, "a cordon is decided")
        assert not running.done(), "the cycle decided, not the fast path"
        self.fleet.nodes["node-c"].delay = 0.0
        await running
        return cordons


@pytest.fixture
def fleet() -> Iterator[GpuFleet]:
    with gpu_fleet(NODES) as served:
        yield served


def in_engine(fleet: GpuFleet, folder: Path, story: Callable[[Engine], Any], **remediation: Any) -> None:
    engine = Engine(fleet, folder, **remediation)

    async def run() -> None:
        await engine.cycles(3)
        assert engine.incidents == ()
        try:
            await story(engine)
        finally:
            await engine.platform.close()

    asyncio.run(run())


def xid(fleet: GpuFleet, code: int, gpu: int = 3) -> None:
    fleet.nodes["node-a"].xid[gpu] = code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "fault"),
    [
        (lambda fleet: xid(fleet, 79), "gpu-lost"),
        (lambda fleet: xid(fleet, 48), "gpu-xid-hardware"),
        (lambda fleet: fleet.nodes["node-a"].gone.add(3), "gpu-lost"),
        (lambda fleet: fleet.nodes["node-a"].ecc.__setitem__(3, 1), "gpu-ecc-uncorrectable"),
    ],
    ids=["xid-79", "xid-48", "device-gone", "ecc"],
)
def test_a_hard_fault_is_decided_before_the_round_ends_and_once(
    fleet: GpuFleet, tmp_path: Path, sign: Callable[[GpuFleet], None], fault: str
) -> None:
    async def story(engine: Engine) -> None:
        (cordon,) = await engine.until_decided_in_round(lambda: sign(fleet))
        assert cordon.target == A
        await engine.cycles(3)
        (incident,) = engine.incidents
        assert incident.suspected_cause is not None
        assert incident.suspected_cause.fault == fault
        assert incident.pages <= 1
        assert len([message for message in engine.platform.state.messages() if message.is_page]) == incident.pages
        assert [action.id for action in engine.cordons] == [cordon.id], "the cycle does not decide again"
        firing = engine.platform.state.alerts(states=[AlertState.FIRING])
        assert len({(alert.rule, alert.entity) for alert in firing}) == len(firing)
        opened = [record for record in engine.platform.state.audit() if record.event == "incident_opened"]
        assert len(opened) == 1

    in_engine(fleet, tmp_path, story)


@pytest.mark.slow
def test_the_states_of_the_detectors_are_those_of_a_run_without_fast_path(fleet: GpuFleet, tmp_path: Path) -> None:
    counts: list[dict[str, Any]] = []

    async def story(engine: Engine) -> None:
        xid(fleet, 0)
        await engine.cycles(1)
        xid(fleet, 79)
        await engine.cycles(4)
        states = engine.platform.cycle.parts.detection.memory.states
        names = ("present", "lost_since")
        counts.append({name: repr(states["gpu-faults"].arrays[name].tolist()) for name in names})  # NaN is not NaN
        events = engine.platform.metrics.events(START, engine.clock.now() + STEP)
        counts[-1]["events"] = len([event for event in events if event.kind is EventKind.XID])
        xid(fleet, 0)

    for number, fast in enumerate((True, False)):
        folder = tmp_path / str(number)
        folder.mkdir()
        in_engine(fleet, folder, story, fast_path=fast)
    assert counts[0] == counts[1]
    assert counts[0]["events"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda fleet: xid(fleet, 13),
        lambda fleet: xid(fleet, 43),
        lambda fleet: xid(fleet, 63),
        lambda fleet: fleet.nodes["node-a"].gone.update(range(8)),
    ],
    ids=["xid-13", "xid-43", "xid-63", "no-device-left"],
)
def test_a_doubtful_page_waits_for_the_cycle(
    fleet: GpuFleet, tmp_path: Path, change: Callable[[GpuFleet], None]
) -> None:
    async def story(engine: Engine) -> None:
        decided: list[bool] = []
        offered: list[Collected] = []
        fast_path = engine.platform.fast_path
        assert fast_path is not None
        engine.platform.cycle.decide_early = lambda *_: decided.append(True) or True  # type: ignore[method-assign]
        engine.platform.collector.on_early(lambda page: (offered.append(page), fast_path.offer(page)))
        change(fleet)
        await engine.cycles(2)
        fast_path.close()
        assert offered, "the page is read early, because it changed"
        assert decided == []

    in_engine(fleet, tmp_path, story)


@pytest.mark.slow
def test_a_sticky_gauge_after_a_restart_is_not_a_fault(fleet: GpuFleet, tmp_path: Path) -> None:
    xid(fleet, 79)

    async def story(engine: Engine) -> None:
        fleet.nodes["node-a"].ecc[0] = 0
        await engine.cycles(3)
        assert engine.incidents == ()
        assert engine.cordons == []

    in_engine(fleet, tmp_path, story)


@pytest.mark.slow
def test_a_failed_early_decision_falls_back_to_the_cycle(fleet: GpuFleet, tmp_path: Path) -> None:
    async def story(engine: Engine) -> None:
        state, failed = engine.platform.cycle.parts.state, []
        commit = state.commit

        def refuse(given: Any) -> None:
            if given.early:
                failed.append(given)
                raise StoreUnavailableError("the database is locked")
            commit(given)

        state.commit = refuse  # type: ignore[method-assign]
        xid(fleet, 79)
        await engine.cycles(2)
        assert failed
        assert [action.target for action in engine.cordons] == [A]
        (incident,) = engine.incidents
        assert incident.resolved_at is None

    in_engine(fleet, tmp_path, story)


@pytest.mark.slow
def test_a_kernel_log_line_is_decided_between_two_cycles(fleet: GpuFleet, tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("")

    async def story(engine: Engine) -> None:
        gpu = EntityRef("c", EntityKind.GPU, None, fleet.nodes["node-a"].uuid(2))
        engine.clock.advance(timedelta(seconds=4))
        event = Event("k", EventKind.XID, gpu, engine.clock.now(), "kernel_log", "79", {}, "k")
        assert engine.platform.fast_path is not None
        engine.platform.fast_path.offer(Collected(events=(event,)))

        async def decided() -> list[Action]:
            return await asyncio.to_thread(lambda: engine.cordons)

        (cordon,) = await until_async(decided, "a cordon is decided")
        assert (cordon.target, cordon.decided_at) == (A, engine.clock.now())

    in_engine(fleet, tmp_path, story)


@pytest.mark.slow
def test_the_kill_switch_holds_an_early_decision(fleet: GpuFleet, tmp_path: Path) -> None:
    switch = tmp_path / "stop"

    async def story(engine: Engine) -> None:
        switch.touch()
        (cordon,) = await engine.until_decided_in_round(lambda: xid(fleet, 79))
        assert (cordon.status, cordon.reason) == (ActionStatus.REFUSED, DecisionReason.KILL_SWITCH)

    in_engine(fleet, tmp_path, story, kill_switch_file=str(switch))
