"""Heartbeats to a dead man's switch: sent while the loop runs with fresh values, and only then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import ManualClock
from outrider.errors import StoreUnavailableError
from outrider.model import CycleRecord
from outrider.ports import Collected
from outrider.topology import Topology
from service.config.settings import Settings
from service.engine.liveness import Liveness
from service.runtime.heartbeat import HeartbeatSender
from service.wiring import platform
from tests.support.json_server import Response, json_server
from tests.support.ports import free_port

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
INTERVAL = timedelta(seconds=15)


def record(at: datetime = NOW, *, values: int = 10, targets: int = 3, up: int = 3) -> CycleRecord:
    return CycleRecord("c", at, 0.1, targets, up, values, 0, 0, 0)


class Loop:
    """The liveness after some cycles, on a clock of its own."""

    def __init__(self, *records: CycleRecord) -> None:
        self.clock = ManualClock(NOW)
        self.liveness = Liveness(self.clock, INTERVAL)
        for item in records:
            self.liveness.note(item)

    def is_alive(self, after: timedelta = timedelta(0)) -> bool:
        self.clock.advance(after)
        return self.liveness.is_alive()


@pytest.mark.parametrize(
    ("loop", "after", "alive"),
    [
        (Loop(record()), 0, True),
        (Loop(record()), 3, True),
        (Loop(record()), 4, False),
        (Loop(record(values=0)), 0, False),
        (Loop(record(up=0)), 0, False),
        (Loop(record(targets=0, up=0)), 0, True),
        (Loop(record(up=0), record()), 0, True),
        (Loop(), 0, False),
    ],
)
def test_the_loop_is_alive_while_cycles_are_recent_and_bring_values(loop, after, alive):
    assert loop.is_alive(after * INTERVAL) is alive


def test_a_clock_that_steps_does_not_stop_the_heartbeat():
    loop = Loop(record(NOW + timedelta(hours=2)))
    for hours in (-1, 0, 5):
        loop.clock.set(NOW + timedelta(hours=hours))
        loop.liveness.note(record(loop.clock.now()))
        assert loop.is_alive(INTERVAL)


class NoSource:
    """Brings nothing."""

    async def collect(self, at: datetime) -> Collected:
        return Collected()

    async def close(self) -> None:
        """Nothing to release."""


def test_a_cycle_that_the_store_does_not_accept_is_no_sign_of_life():
    clock = ManualClock(NOW)
    cycle, noted = platform.cycle_in_memory(Settings(), NoSource(), clock, interval=INTERVAL), []
    cycle.on_record = noted.append
    cycle.run_stages(clock.advance(INTERVAL), Collected(topology=Topology()))
    assert len(noted) == 1

    def unavailable(_commit):
        raise StoreUnavailableError("down", hint="")

    cycle.parts.state.commit = unavailable
    with pytest.raises(StoreUnavailableError):
        cycle.run_stages(clock.advance(INTERVAL), Collected(topology=Topology()))
    assert len(noted) == 1


def test_the_switch_is_requested_with_get_while_the_loop_runs():
    with json_server() as server:
        server.responses["GET /ping/uuid"] = Response()
        loop = Loop(record())
        sender = HeartbeatSender([f"{server.url}/ping/uuid"], loop.liveness)
        for after in (timedelta(0), INTERVAL, timedelta(minutes=5)):
            loop.clock.advance(after)
            sender.run_due(loop.clock.now())
        assert server.sent("GET") == ["/ping/uuid"] * 2


def test_a_switch_that_fails_keeps_no_request_from_another():
    with json_server() as server:
        server.responses.update({"GET /a": Response(500), "GET /b": Response()})
        urls = [f"http://127.0.0.1:{free_port()}/gone", f"{server.url}/a", "http://[bad", f"{server.url}/b"]
        HeartbeatSender(urls, Loop(record()).liveness, timedelta(seconds=2)).run_due(NOW)
        assert server.sent("GET") == ["/a", "/b"]
