"""``outrider serve`` as people run it: real processes, real ports, a real store; killed, asked to end, asked twice.

The tests of this file share one platform and run in their order; the last one ends it.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml

from outrider.clock import SystemClock
from outrider.model import AlertState
from service.config import settings as settings_file
from service.wiring import stores as wiring_stores
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.servers import http
from simulator.spec.fleets import PoolSpec, default_spec

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def free_ports(count):
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def until(ask, what):
    """Ask again and again until the answer is truthy; the answer."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := ask():
            return found
        time.sleep(0.1)
    pytest.fail(f"waited {PATIENCE:.0f} s in vain until {what}")


def children_of(pid):
    """The processes started by one, by what the kernel says."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


class LiveFleet:
    """Two replicas on one node whose time follows the clock, served from a thread of their own."""

    def __init__(self) -> None:
        spec = default_spec()
        service = replace(spec.services[0], replicas=2, ceiling=2)
        spec = replace(spec, pools=(PoolSpec("h100-a", "NVIDIA H100 80GB HBM3", 1),), services=(service,))
        self.fleet = Fleet(spec, seed=1, start=SystemClock().now())
        self.listed = None
        self._served, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self._thread.start()
        assert self._served.wait(30)

    async def _live(self):
        server = await http.serve(self.fleet)
        self.listed = server.targets()
        self._served.set()
        while not self._stop.is_set():
            self.fleet.step(timedelta(seconds=1))
            await asyncio.sleep(1)
        await server.close()

    def close(self):
        self._stop.set()
        self._thread.join()


@dataclass
class Platform:
    """A running ``outrider serve`` and what it watches."""

    process: subprocess.Popen
    live: LiveFleet
    config: Path
    settings: settings_file.Settings
    stopped: bool = False

    @property
    def api(self):
        return f"http://127.0.0.1:{self.settings.api.port}"

    @property
    def token(self):
        return (self.config.parent / "store" / "admin.token").read_text().strip()

    @property
    def engine(self):
        """The process of the engine, as its lock says."""
        return int((self.config.parent / "store" / "outrider.engine.lock").read_text() or 0)

    def get(self, path, url=None):
        """The answer, None when nobody answers."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get((url or self.api) + path, timeout=10)
        return None

    def ok(self, path, url=None):
        answer = self.get(path, url)
        return answer if answer is not None and answer.status_code == 200 else None

    def post(self, path, token=None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.post(f"{self.api}/api/v1{path}", headers=headers, timeout=10)

    def run(self, *arguments):
        """One ``outrider ARGUMENTS`` in a process of its own."""
        command = [sys.executable, "-m", "service.cli", *arguments, "--config", str(self.config), "-o", "json"]
        return subprocess.run(
            command, cwd=self.config.parent, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )

    def read(self, ask):
        with wiring_stores.state_reader(self.settings) as store:
            return ask(store)

    def firing(self):
        return self.read(lambda store: store.alerts(states=[AlertState.FIRING]))

    def cycles(self):
        """Ids of every cycle, newest first."""
        return [cycle.id for cycle in self.read(lambda store: store.cycles(limit=10_000))]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    api_port, dashboard_port = free_ports(2)
    live = LiveFleet()
    written = {
        "cluster": live.listed["cluster"],
        "store": {"url": f"sqlite:///{folder}/store/outrider.db"},
        "collect": {"interval": "1s", "targets": live.listed["targets"]},
        "api": {"port": api_port},
        "dashboard": {"port": dashboard_port},
    }
    config = folder / "outrider.yaml"
    config.write_text(yaml.safe_dump(written))
    command = [sys.executable, "-m", "service.cli", "serve", "--config", str(config)]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
        running = Platform(process, live, config, settings_file.load(config))
        try:
            yield running
        finally:
            process.terminate()
            process.wait(60)
            live.close()


@pytest.mark.slow
def test_it_gets_ready(platform):
    until(lambda: platform.ok("/-/ready"), "/-/ready answers 200")
    assert platform.ok("/-/healthy")


def test_the_overview_shows_the_targets_up(platform):
    expected = len(platform.live.listed["targets"])

    def all_up():
        found = platform.ok("/api/v1/overview").json()["monitoring"]
        return found["targets"] == found["targets_up"] == expected and found["fresh"]

    until(all_up, f"all {expected} targets are up")


def test_the_api_describes_itself_and_its_own_state(platform):
    described = platform.ok("/api/v1/openapi.json").json()
    assert "/api/v1/overview" in described["paths"]
    assert "outrider_" in platform.ok("/metrics").text


def test_the_dashboard_answers(platform):
    url = f"http://127.0.0.1:{platform.settings.dashboard.port}"
    until(lambda: platform.ok("/_stcore/health", url), "Streamlit is healthy")


def test_a_change_needs_the_token(platform):
    for wrong in (None, "guessed"):
        refused = platform.post("/remediation/pause", wrong)
        assert refused.status_code == 401
        assert "token" in refused.json()["error"]["message"]
    assert platform.post("/remediation/pause", platform.token).status_code == 200
    assert platform.read(lambda store: store.paused()) is True
    assert platform.post("/remediation/resume", platform.token).status_code == 200
    assert platform.read(lambda store: store.paused()) is False
    assert platform.token not in (platform.config.parent / "serve.log").read_text()


@pytest.mark.slow
def test_a_second_engine_on_the_store_is_refused(platform):
    done = platform.run("run-engine")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["message"] == f"another engine (process {platform.engine}) works on this store"
    assert error["hint"]
    assert error["message"] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_dead_engine_is_told_and_acknowledged_by_its_alert(platform):
    inject(platform.live.fleet, "engine-dead", "chat-70b-1", duration=timedelta(minutes=30))
    until(lambda: [one for one in platform.firing() if one.fault == "engine-dead"], "engine-dead fires")
    (alert,) = [one for one in platform.firing() if one.fault == "engine-dead"]
    assert alert.entity.name == "chat-70b-1"
    done = platform.run("alerts", "ack", alert.fingerprint)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["id"] == alert.incident
    assert said["acknowledged_at"] is not None
    done = platform.run("alerts", "silence", "--rule", "engine-dead", "--for", "30m", "--comment", "a test")
    assert done.returncode == 0, done.stderr
    (silence,) = platform.read(lambda store: store.silences(SystemClock().now()))
    assert silence.rule == "engine-dead"


@pytest.mark.slow
def test_a_killed_engine_is_started_again_and_loses_nothing(platform):
    (alert,) = [one for one in platform.firing() if one.fault == "engine-dead"]
    incidents = [one.id for one in platform.read(lambda store: store.incidents())]
    before, killed = platform.cycles(), platform.engine
    assert killed in children_of(platform.process.pid)
    os.kill(killed, signal.SIGKILL)
    until(lambda: platform.engine not in {0, killed}, "another engine holds the lock")
    assert platform.engine in children_of(platform.process.pid)
    until(lambda: len(set(platform.cycles()) - set(before)) >= 5, "five more cycles have run")
    assert set(before) <= set(platform.cycles())
    (after,) = [one for one in platform.firing() if one.fault == "engine-dead"]
    assert (after.fingerprint, after.starts_at, after.incident) == (alert.fingerprint, alert.starts_at, alert.incident)
    assert [one.id for one in platform.read(lambda store: store.incidents())] == incidents
    assert platform.read(lambda store: store.incident(alert.incident)).acknowledged_at is not None
    until(lambda: platform.ok("/-/ready"), "the API is ready again")


@pytest.mark.slow
def test_sigterm_ends_everything(platform):
    children = children_of(platform.process.pid)
    assert len(children) == 3
    last = platform.engine
    platform.process.send_signal(signal.SIGTERM)
    assert platform.process.wait(60) == 0
    for child in children:
        assert not Path(f"/proc/{child}").exists()
    assert last in children
    assert platform.get("/-/healthy") is None
    assert platform.read(lambda store: store.cycles(limit=1)), "and what was written can be read"
