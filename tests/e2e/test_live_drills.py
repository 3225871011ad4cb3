"""Drills on a running platform: injected through its API into a fleet served over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from outrider.clock import parse_rfc3339
from outrider.errors import UnavailableError
from outrider.model import EntityKind, EntityRef
from outrider.records.drill import Drill
from service.api.app import create_app
from service.config.api_settings import ApiSettings
from service.config.settings import GameDaySettings
from service.drills import remote_drill, scenario_choice
from service.drills.control import FaultControl
from service.ops import demo
from service.runtime import game_days
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec

pytestmark = pytest.mark.slow

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
TOKEN = {"Authorization": "Bearer secret"}


@dataclass
class Running:
    """A served fleet with its platform, on a loop of its own thread, and the platform's API."""

    demo: demo.Demo
    client: httpx.Client
    loop: asyncio.AbstractEventLoop

    def step(self, cycles: int = 1) -> None:
        for _ in range(cycles):
            asyncio.run_coroutine_threadsafe(self.demo.step(), self.loop).result(timeout=60)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.client.post(f"/api/v1{path}", json=body, headers=TOKEN)

    def drills(self) -> dict[str, Any]:
        document: dict[str, Any] = self.client.get("/api/v1/drills").json()
        return document


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The API on a free loopback port."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    with contextlib.closing(server.config.bind_socket()) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def running(request, tmp_path) -> Iterator[Running]:
    days = [request.param] if hasattr(request, "param") else []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout=60)

    with contextlib.chdir(tmp_path):
        monitored = on_loop(demo.monitor(Fleet(default_spec(), seed=7, start=START), days=days))
        settings = ApiSettings(token="secret", control_url=monitored.server.base_url)
        app = create_app(monitored.platform.state, monitored.platform.metrics, settings)
        try:
            with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
                yield Running(monitored, client, loop)
        finally:
            on_loop(monitored.close())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def test_a_drill_shows_ground_truth_and_findings(running: Running) -> None:
    running.step(2)
    assert running.drills()["possible"]
    assert len(running.drills()["known"]) >= 60
    started = running.post("/drills", {"fault": "engine-hung", "seconds": 600, "seed": 7}).json()
    assert started["fault"] == "engine-hung"
    assert not started["detected"]
    running.step(8)
    (drill,) = running.drills()["drills"]
    assert drill["entity"]["kind"] == "replica"
    assert drill["detected"]
    assert drill["suspected_cause"] == {"entity": drill["entity"], "fault": "engine-hung"}
    assert drill["named_entity_correct"]
    assert drill["named_fault_correct"]
    messages = running.demo.platform.state.messages()
    assert messages
    assert all(message.title.startswith("DRILL: ") and message.labels["drill"] == "drill" for message in messages)
    incident = running.client.get("/api/v1/incidents").json()["incidents"][0]
    assert "drill" not in incident["summary"].lower()
    assert incident["drill"] == "drill"
    assert running.client.get(f"/api/v1/incidents/{incident['id']}").json()["drill"] == "drill"
    assert [incident["drill"] for incident in running.client.get("/api/v1/overview").json()["incidents"]] == ["drill"]


def test_a_stopped_drill_restores_the_fleet(running: Running) -> None:
    started = running.post("/drills", {"fault": "gpu-thermal-throttle", "seconds": 600}).json()
    running.step(2)
    fleet = running.demo.fleet
    assert fleet.injections
    stopped = running.post(f"/drills/{started['id']}/stop").json()
    assert stopped["stopped"]
    running.step(1)
    assert not fleet.injections
    assert (fleet.effects.gpus.cooling_factor == 1.0).all()
    again = running.post(f"/drills/{started['id']}/stop")
    assert again.status_code == 400
    assert "is over" in again.json()["error"]["message"]
    audited = [record.event for record in running.demo.platform.state.audit()]
    assert {"drill_started", "drill_stopped"} <= set(audited)
    (window,) = running.demo.platform.state.drill_windows(START)
    assert window.ends_at < START + timedelta(minutes=2), "the drill's window ends with it"


@pytest.mark.parametrize(
    ("order", "status", "message"),
    [
        ({"fault": "gpu-lots"}, 400, "gpu-lots"),
        ({"fault": "gpu-lost", "entity": "GPU-nowhere"}, 400, "GPU-nowhere"),
        ({"fault": "gpu-lost", "seconds": 0}, 422, "seconds"),
        ({"fault": "gpu-lost", "sedes": 3}, 422, "sedes"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason(
    running: Running, order: dict[str, Any], status: int, message: str
) -> None:
    response = running.post("/drills", order)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert running.drills()["drills"] == []


def test_injecting_a_fault_needs_the_token(running: Running) -> None:
    assert running.client.post("/api/v1/drills", json={"fault": "gpu-lost"}).status_code == 401
    assert running.client.post("/api/v1/drills/any/stop").status_code == 401
    assert running.post("/drills/any/stop").status_code == 404


def test_a_platform_without_a_simulated_fleet_refuses_drills(running: Running) -> None:
    state, metrics = running.demo.platform.state, running.demo.platform.metrics
    with served(create_app(state, metrics, ApiSettings(token="secret"))) as url:
        assert httpx.get(f"{url}/api/v1/drills").json()["possible"] is False
        refused = httpx.post(f"{url}/api/v1/drills", json={"fault": "gpu-lost"}, headers=TOKEN)
    assert refused.status_code == 409
    with pytest.raises(UnavailableError):
        FaultControl("http://127.0.0.1:9").known()


def silent(_stage: str, _share: float) -> None:
    """Ignores progress."""


def test_the_command_line_follows_a_drill_over_the_api(running: Running) -> None:
    url = str(running.client.base_url)
    result = remote_drill.drill(
        scenario_choice.find("exporter-down"),
        api=url,
        token="secret",
        seed=3,
        progress=silent,
        sleep=lambda _: running.step(4),
    )
    assert set(result) >= {"detected", "detect_seconds", "pages", "false_pages", "passed", "recover_seconds"}
    assert result["truth"]["entity"]["kind"] == "node"


def test_an_interrupted_drill_over_the_api_is_ended(running: Running) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    running.step()
    with pytest.raises(KeyboardInterrupt):
        remote_drill.drill(
            scenario_choice.find("engine-hung"),
            api=str(running.client.base_url),
            token="secret",
            seed=3,
            progress=silent,
            sleep=interrupted,
        )
    (fault,) = FaultControl(running.demo.server.base_url).listed()
    assert not fault["running"]
    with pytest.raises(UnavailableError, match="no API responds"):
        remote_drill.Api("http://127.0.0.1:9", "secret").get("/overview")


def test_a_terminated_drill_over_the_api_is_ended(running: Running) -> None:
    running.step()
    with pytest.raises(KeyboardInterrupt):
        remote_drill.drill(
            scenario_choice.find("engine-hung"),
            api=str(running.client.base_url),
            token="secret",
            seed=3,
            progress=silent,
            sleep=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        )
    (fault,) = FaultControl(running.demo.server.base_url).listed()
    assert not fault["running"]


def test_a_negative_state_without_an_incident_passes(running: Running) -> None:
    running.step(2)
    result = remote_drill.drill(
        scenario_choice.find("engine-idle"),
        api=str(running.client.base_url),
        token="secret",
        seed=3,
        progress=silent,
        sleep=lambda _: running.step(4),
    )
    assert result["passed"]
    assert result["negative"]
    assert (result["truth"]["fault"], result["truth"]["state"]) == (None, "engine-idle")
    (drill,) = running.drills()["drills"]
    assert (drill["negative"], drill["detected"], drill["passed"]) == (True, False, True)


def test_the_path_is_stored_when_the_drill_starts(running: Running) -> None:
    running.step(2)
    started = running.post("/drills", {"fault": "gpu-lost", "seconds": 300}).json()
    (stored,) = running.demo.platform.state.drills()
    (fault,) = FaultControl(running.demo.server.base_url).listed()
    names = {entity.name for entity in stored.path}
    assert {entity["name"] for entity in fault["touches"]} <= names
    assert len(names) > len(fault["touches"])
    assert running.client.get(f"/api/v1/drills/{started['id']}").json()["fault"] == "gpu-lost"


def test_the_control_endpoint_refuses_invalid_numbers(running: Running) -> None:
    endpoint = running.demo.server.base_url + "/control/faults"
    for seconds in ("Infinity", "NaN", "1e300"):
        response = httpx.post(endpoint, content=f'{{"fault": "gpu-lost", "seconds": {seconds}}}')
        assert response.status_code == 400
        assert "seconds" in response.json()["error"]["message"]


SOON = GameDaySettings(name="now", faults=["engine-hung"], day="wed", hour=12, window="6m", lasts="2m", seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("running", [SOON], indirect=True)
def test_a_game_day_of_the_demo_is_hidden_until_it_starts(running: Running) -> None:
    opens = game_days.last_opening(SOON, START)
    moment, _ = game_days.draw_order(SOON, opens)
    assert opens == START < moment
    while running.demo.fleet.now < moment - running.demo.interval:
        running.step()
        assert running.drills()["drills"] == []
        assert FaultControl(running.demo.server.base_url).listed() == []
    running.step(3)
    (drill,) = running.drills()["drills"]
    assert (drill["game_day"], drill["by"], drill["stopped"]) == ("now", "schedule", False)
    assert moment <= parse_rfc3339(drill["starts_at"]) <= moment + game_days.MAX_DELAY


def test_a_future_game_day_is_hidden(running: Running) -> None:
    running.step()
    entity = EntityRef("c", EntityKind.NODE, None, "node-1")
    later = running.demo.fleet.now + timedelta(minutes=5)
    secret = Drill("d", "node-lost", entity, 1, later, later + timedelta(minutes=9), "schedule", game_day="tuesday")
    running.demo.platform.state.save_drill(secret)
    assert running.drills()["drills"] == []
    assert running.client.get("/api/v1/drills/d").status_code == 404
