"""Heartbeats to a dead man's switch: sent while the loop runs with fresh values, and only then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import StoreUnavailableError
from outrider.model import CycleRecord
from outrider.ports import CycleCommit
from service.engine.liveness import Liveness
from service.runtime.heartbeat import HeartbeatSender
from store.memory import MemoryStateStore
from tests.support.json_server import Response, json_server
from tests.support.ports import free_port

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
INTERVAL = timedelta(seconds=15)


def store(at: datetime = NOW, *, values: int = 10, targets: int = 3, up: int = 3) -> MemoryStateStore:
    state = MemoryStateStore()
    state.commit(CycleCommit(CycleRecord("c", at, 0.1, targets, up, values, 0, 0, 0)))
    return state


class Unavailable(MemoryStateStore):
    """A store that cannot be read."""

    def cycles(self, limit=100):
        raise StoreUnavailableError("down", hint="")


@pytest.mark.parametrize(
    ("state", "alive"),
    [
        (store(), True),
        (store(NOW - 3 * INTERVAL), True),
        (store(NOW - 4 * INTERVAL), False),
        (store(NOW + 4 * INTERVAL), False),
        (store(values=0), False),
        (store(up=0), False),
        (store(targets=0, up=0), True),
        (MemoryStateStore(), False),
        (Unavailable(), False),
    ],
)
def test_the_loop_is_alive_while_cycles_are_recent_and_bring_values(state, alive):
    assert Liveness(state, INTERVAL).is_alive(NOW) is alive


def test_the_switch_is_requested_with_get_while_the_loop_runs():
    with json_server() as server:
        server.responses["GET /ping/uuid"] = Response()
        sender = HeartbeatSender([f"{server.url}/ping/uuid"], Liveness(store(), INTERVAL))
        sender.run_due(NOW)
        sender.run_due(NOW + INTERVAL)
        sender.run_due(NOW + timedelta(minutes=5))
        assert server.sent("GET") == ["/ping/uuid"] * 2


def test_a_switch_that_fails_keeps_no_request_from_another():
    with json_server() as server:
        server.responses.update({"GET /a": Response(500), "GET /b": Response()})
        urls = [f"http://127.0.0.1:{free_port()}/gone", f"{server.url}/a", "http://[bad", f"{server.url}/b"]
        HeartbeatSender(urls, Liveness(store(), INTERVAL), timedelta(seconds=2)).run_due(NOW)
        assert server.sent("GET") == ["/a", "/b"]
