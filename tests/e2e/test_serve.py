"""``outrider serve`` end to end: real processes, ports and store; a killed engine, a second engine, SIGTERM.

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
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def children_of(pid):
    """Returns the command lines of the child processes by pid."""
    children = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                children[int(folder.name)] = (folder / "cmdline").read_text()
    return children


class LiveFleet:
    """Two replicas on one node in real time, served from its own thread."""

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
    """A running ``outrider serve`` and its fleet."""

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
        """Process id of the engine, from its lock file."""
        return int((self.config.parent / "store" / "outrider.engine.lock").read_text() or 0)

    def get(self, path, url=None):
        """Returns the response, None without one."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get((url or self.api) + path, timeout=10)
        return None

    def ok(self, path, url=None):
        response = self.get(path, url)
        return response if response is not None and response.status_code == 200 else None

    def post(self, path, token=None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.post(f"{self.api}/api/v1{path}", headers=headers, timeout=10)

    def run(self, *arguments):
        """Runs ``outrider ARGUMENTS`` in its own process."""
        command = [sys.executable, "-m", "service.cli", *arguments, "--config", str(self.config), "-o", "json"]
        return subprocess.run(
            command, cwd=self.config.parent, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )

    def read(self, query):
        with wiring_stores.state_reader(self.settings) as store:
            return query(store)

    def firing(self):
        return self.read(lambda store: store.alerts(states=[AlertState.FIRING]))

    def cycles(self):
        """Returns the ids of all cycles, newest first."""
        return [cycle.id for cycle in self.read(lambda store: store.cycles(limit=10_000))]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    api_port, dashboard_port = free_ports(2)
    live = LiveFleet()
    document = {
        "cluster": live.listed["cluster"],
        "store": {"url": f"sqlite:///{folder}/store/outrider.db"},
        "collect": {"interval": "1s", "targets": live.listed["targets"]},
        "api": {"port": api_port},
        "dashboard": {"port": dashboard_port},
    }
    config = folder / "outrider.yaml"
    config.write_text(yaml.safe_dump(document))
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


def test_serve_becomes_ready(platform):
    until(lambda: platform.ok("/-/ready"), "/-/ready returns 200")
    assert platform.ok("/-/healthy")


def test_the_overview_shows_the_targets_up(platform):
    expected = len(platform.live.listed["targets"])

    def all_up():
        monitoring = platform.ok("/api/v1/overview").json()["monitoring"]
        return monitoring["targets"] == monitoring["targets_up"] == expected and monitoring["fresh"]

    until(all_up, f"all {expected} targets are up")


def test_the_api_has_an_openapi_document_and_metrics(platform):
    document = platform.ok("/api/v1/openapi.json").json()
    assert "/api/v1/overview" in document["paths"]
    assert "outrider_" in platform.ok("/metrics").text


def test_the_dashboard_responds(platform):
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


def test_a_second_engine_on_the_store_is_refused(platform):
    done = platform.run("run-engine")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["message"] == f"another engine (process {platform.engine}) works on this store"
    assert error["hint"]
    assert error["message"] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dead_engine_alerts_and_is_acknowledged(platform):
    inject(platform.live.fleet, "engine-dead", "chat-70b-1", duration=timedelta(minutes=30))
    until(lambda: [alert for alert in platform.firing() if alert.fault == "engine-dead"], "engine-dead fires")
    (alert,) = [alert for alert in platform.firing() if alert.fault == "engine-dead"]
    assert alert.entity.name == "chat-70b-1"
    done = platform.run("alerts", "ack", alert.fingerprint)
    assert done.returncode == 0, done.stderr
    incident = json.loads(done.stdout)
    assert incident["id"] == alert.incident
    assert incident["acknowledged_at"] is not None
    done = platform.run("alerts", "silence", "--rule", "engine-dead", "--for", "30m", "--comment", "a test")
    assert done.returncode == 0, done.stderr
    (silence,) = platform.read(lambda store: store.silences(SystemClock().now()))
    assert silence.rule == "engine-dead"


def test_a_killed_engine_is_restarted_without_loss(platform):
    (alert,) = [alert for alert in platform.firing() if alert.fault == "engine-dead"]
    incidents = [incident.id for incident in platform.read(lambda store: store.incidents())]
    before, killed = platform.cycles(), platform.engine
    assert killed in children_of(platform.process.pid)
    os.kill(killed, signal.SIGKILL)
    until(lambda: platform.engine not in {0, killed}, "another engine holds the lock")
    assert platform.engine in children_of(platform.process.pid)
    until(lambda: len(set(platform.cycles()) - set(before)) >= 5, "five more cycles have run")
    assert set(before) <= set(platform.cycles())
    (after,) = [alert for alert in platform.firing() if alert.fault == "engine-dead"]
    assert (after.fingerprint, after.starts_at, after.incident) == (alert.fingerprint, alert.starts_at, alert.incident)
    assert [incident.id for incident in platform.read(lambda store: store.incidents())] == incidents
    assert platform.read(lambda store: store.incident(alert.incident)).acknowledged_at is not None
    until(lambda: platform.ok("/-/ready"), "the API is ready again")


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
    assert platform.read(lambda store: store.cycles(limit=1)), "stored cycles can be read"
