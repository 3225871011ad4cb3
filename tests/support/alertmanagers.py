"""Real Alertmanagers from Debian's package, on free loopback ports."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.metric_servers import MetricServer
from tests.support.ports import free_port
from tests.support.waiting import until

PROGRAM = "prometheus-alertmanager"


@dataclass(slots=True)
class Alertmanager:
    """A running Alertmanager."""

    server: MetricServer
    gossip: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The base URL."""
        return self.server.url

    def get(self, path: str) -> Any:
        """The JSON at a path of the API v2."""
        return json.loads(self.server.get(f"/api/v2{path}"))

    def alerts(self, origin: str) -> dict[str, dict[str, Any]]:
        """The active alerts of one origin by ``alertname`` and entity, silenced ones included."""
        found = self.get("/alerts?active=true&silenced=true&inhibited=true")
        return {
            "/".join(filter(None, (item["labels"]["alertname"], item["labels"].get("entity")))): item
            for item in found
            if item["labels"].get("outrider_origin") == origin
        }

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request to the API v2; returns its JSON, None without one."""
        request = urllib.request.Request(
            f"{self.url}/api/v2{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@contextmanager
def alertmanager(
    folder: Path, *, webhook: str = "", token: str = "", peers: tuple[int, ...] = ()
) -> Iterator[Alertmanager]:
    """Runs an Alertmanager that notifies a webhook, if one is given, as fast as it can."""
    port, gossip = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    receiver: dict[str, Any] = {"name": "outrider"}
    if webhook:
        access = {"authorization": {"credentials": token}} if token else {}
        receiver["webhook_configs"] = [{"url": webhook, "send_resolved": True, "http_config": access}]
    config = {
        "route": {
            "receiver": "outrider",
            "group_by": ["job"],
            "group_wait": "100ms",
            "group_interval": "500ms",
            "repeat_interval": "1h",
        },
        "receivers": [receiver],
    }
    file = folder / "alertmanager.yml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    options = [
        f"--config.file={file}",
        f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--cluster.listen-address=127.0.0.1:{gossip}",
        "--cluster.settle-timeout=1s",
        "--cluster.gossip-interval=50ms",
        "--cluster.pushpull-interval=1s",
        *(f"--cluster.peer=127.0.0.1:{peer}" for peer in peers),
    ]
    server = MetricServer((PROGRAM, *options), port, "/-/ready")
    server.start()
    try:
        yield Alertmanager(server, gossip)
    finally:
        server.stop()


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Alertmanager, Alertmanager]]:
    """Runs two Alertmanagers as one cluster."""
    with ExitStack() as stack:
        first = stack.enter_context(alertmanager(folder / "first"))
        second = stack.enter_context(alertmanager(folder / "second", peers=(first.gossip,)))
        until(lambda: len(second.get("/status")["cluster"]["peers"]) == 2, "both Alertmanagers form a cluster")
        yield first, second
