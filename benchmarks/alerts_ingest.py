"""Alerts received by webhook on one core: accepted per second, latency, and grouping by the engine beside it.

Outrider runs as in production, with its API and its engine on SQLite, all bound to one core. A delivery in the format
of Alertmanager holds ten alerts of one node. An answer means that the alerts are on disk. Grouped: the engine has put
them into incidents. The peer is a real Alertmanager on the same core with the same alerts; it keeps them in memory.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, main, print_progress, quick, result
from tests.support.ports import free_port

TARGET, LATENCY_SECONDS = 500.0, 0.250
CORE = 0
NAMES = (
    "KubeNodeNotReady", "KubeletDown", "NodeNetworkDown", "PodsNotReady", "GpuExporterDown", "NodeExporterDown",
    "DiskUnreachable", "KubeProxyDown", "ContainerRuntimeDown", "HighTtft",
)  # fmt: skip
CONNECTIONS = 4
_WAIT = 120.0


@dataclass(slots=True)
class Target:
    """A server under load: where deliveries go, and their format."""

    port: int
    path: str
    body: Callable[[int], bytes]
    headers: dict[str, str] = field(default_factory=dict)


def alerts_of(node: int) -> list[dict[str, object]]:
    """Returns the alerts of one delivery."""
    now = datetime.now(UTC).isoformat()
    return [
        {
            "labels": {
                "alertname": name,
                "node": f"gpu-{node}",
                "severity": "critical",
                "cluster": "prod",
                "job": "k8s",
            },
            "annotations": {"summary": f"{name} on gpu-{node}", "description": "x" * 200},
            "startsAt": now,
            "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
        }
        for name in NAMES
    ]


def delivery(node: int) -> bytes:
    """Returns a webhook body, version 4."""
    alerts = [
        {**alert, "status": "firing", "fingerprint": f"{node:08x}{number:08x}"}
        for number, alert in enumerate(alerts_of(node))
    ]
    document = {"version": "4", "groupKey": f"node-{node}", "truncatedAlerts": 0, "status": "firing", "alerts": alerts}
    return json.dumps(document).encode()


@contextmanager
def outrider(folder: Path) -> Iterator[tuple[Target, Callable[[], tuple[int, int]]]]:
    """Runs ``outrider serve`` on one core; yields the target, and (alerts in incidents, incidents) on request."""
    port = free_port()
    (folder / "token").write_text("push", encoding="utf-8")
    config = {
        "store": {"url": f"sqlite:///{folder}/outrider.db"},
        "receive": {"token_file": str(folder / "token"), "alerts": {"per_minute": 10_000_000, "most_firing": 200_000}},
        "api": {"port": port},
        "dashboard": {"enabled": False},
        "log": {"level": "error"},
    }
    file = folder / "outrider.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    program = [sys.executable, "-m", "service.cli", "serve", "--config", str(file)]
    with _bound(program, port, "/-/healthy"):
        headers = {"Authorization": "Bearer push", "Content-Type": "application/json"}

        def grouped() -> tuple[int, int]:
            rows = _get(port, "/api/v1/incidents?open=true&limit=1000")["incidents"]
            return sum(row["alerts"] for row in rows), len(rows)

        yield Target(port, "/api/v1/received/alertmanager", delivery, headers), grouped


@contextmanager
def alertmanager(folder: Path) -> Iterator[Target]:
    """Runs a real Alertmanager on the same core, with grouping by node."""
    port, file = free_port(), folder / "alertmanager.yml"
    route = {"receiver": "none", "group_by": ["node"], "group_wait": "5s", "group_interval": "15s"}
    file.write_text(json.dumps({"route": route, "receivers": [{"name": "none"}]}), encoding="utf-8")
    program = [
        "prometheus-alertmanager", f"--config.file={file}", f"--storage.path={folder}/am",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    headers = {"Content-Type": "application/json"}
    with _bound(program, port, "/-/ready"):
        yield Target(port, "/api/v2/alerts", lambda node: json.dumps(alerts_of(node)).encode(), headers)


@contextmanager
def _bound(program: list[str], port: int, ready: str) -> Iterator[None]:
    """Runs a program, with all that it starts, on one core."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    bound = ["taskset", "-c", str(CORE), *program]
    process = subprocess.Popen(
        bound, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        _until(lambda: _status(port, ready) == 200, f"{program[0]} responds")
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _get(port: int, path: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _until(condition: Callable[[], object], awaited: str) -> None:
    end = time.monotonic() + _WAIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain until {awaited}")
        time.sleep(0.2)


class Load:
    """Sends deliveries from several connections, and keeps the latency of each."""

    def __init__(self, target: Target) -> None:
        """Nodes count up, so that every delivery is new."""
        self._target, self._lock, self._node = target, threading.Lock(), 0
        self.seconds: list[float] = []
        self.failed = 0

    def closed(self, seconds: float) -> float:
        """Sends as fast as the answers come; returns alerts per second."""
        before, begun = len(self.seconds), time.perf_counter()
        end = begun + seconds
        self._in_threads(lambda connection: self._until(connection, end))
        return (len(self.seconds) - before) * len(NAMES) / (time.perf_counter() - begun)

    def open(self, seconds: float, per_second: float) -> float:
        """Sends at a fixed rate; returns the 95th percentile of the latency, from the time at which each was due."""
        count = round(seconds * per_second / len(NAMES))
        due = [index * len(NAMES) / per_second for index in range(count)]
        self.seconds, begun, position = [], time.perf_counter(), iter(due)

        def work(connection: http.client.HTTPConnection) -> None:
            while True:
                with self._lock:
                    at = next(position, None)
                if at is None:
                    return
                time.sleep(max(0.0, begun + at - time.perf_counter()))
                self._send(connection, begun + at)

        self._in_threads(work, connections=16)
        return float(np.percentile(self.seconds, 95))

    @property
    def sent(self) -> int:
        """Alerts sent so far."""
        return self._node * len(NAMES)

    def _until(self, connection: http.client.HTTPConnection, end: float) -> None:
        while (now := time.perf_counter()) < end:
            self._send(connection, now)

    def _send(self, connection: http.client.HTTPConnection, due: float) -> None:
        with self._lock:
            self._node += 1
            node = self._node
        connection.request("POST", self._target.path, self._target.body(node), self._target.headers)
        response = connection.getresponse()
        response.read()
        with self._lock:
            self.failed += response.status != 200
            self.seconds.append(time.perf_counter() - due)

    def _in_threads(self, work: Callable[[http.client.HTTPConnection], None], connections: int = CONNECTIONS) -> None:
        opened = [http.client.HTTPConnection("127.0.0.1", self._target.port, timeout=60) for _ in range(connections)]
        threads = [threading.Thread(target=work, args=(connection,)) for connection in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for connection in opened:
            connection.close()


def run() -> list[Result]:
    """Returns alerts/s that are durable and grouped, and the p95 latency at the target rate; peer: Alertmanager."""
    seconds = 3.0 if quick() else 10.0
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {CORE})  # the senders leave that core to the server
    with tempfile.TemporaryDirectory() as folder:
        peer_rate = peer_p95 = None
        if shutil.which("prometheus-alertmanager"):
            with alertmanager(Path(folder)) as target:
                peer_p95, peer_rate, _ = _measured(target, seconds)
        with outrider(Path(folder)) as (target, grouped):
            p95, rate, load = _measured(target, seconds)
            print_progress(f"sent {load.sent} alerts; waiting until they are in incidents")
            begun = time.perf_counter()
            expected = min(load.sent, 1000 * len(NAMES))  # the list shows a thousand incidents
            _until(lambda: grouped()[0] >= expected * 0.99, "the alerts are grouped")
            waited, (in_incidents, incidents) = time.perf_counter() - begun, grouped()
        note = (
            f"{load.sent} alerts sent, {load.failed} failed; the newest {incidents} incidents hold {in_incidents}; "
            f"all were grouped {waited:.0f} s after the last was sent (a cycle is 15 s)"
        )
    peer = "Alertmanager 0.25, in memory"
    return [
        result(
            "alerts_ingest", rate, "alerts/s", TARGET, rate >= TARGET and not load.failed, peer, peer_rate,
            rate / peer_rate if peer_rate else None, note=note,
        ),
        result(
            "alerts_ingest_p95", p95, "s at 500 alerts/s", LATENCY_SECONDS, p95 <= LATENCY_SECONDS, peer, peer_p95,
            peer_p95 / p95 if peer_p95 else None,
        ),
    ]  # fmt: skip


def _measured(target: Target, seconds: float) -> tuple[float, float, Load]:
    """Returns the p95 latency at the target rate, the highest rate, and the load."""
    load = Load(target)
    load.closed(min(2.0, seconds))  # warm-up
    p95 = load.open(seconds, TARGET)
    return p95, load.closed(seconds), load


if __name__ == "__main__":
    main(run)
