"""An API that is killed while it receives alerts: every answered delivery is stored, and none is stored in part."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.model import AlertState
from store.factory import open_state
from tests.support.ports import free_port
from tests.support.waiting import until

KILLS, SENDERS, ALERTS = 3, 4, 5
TOKEN = "push token"


@pytest.mark.slow
def test_answered_deliveries_survive_kills_whole_and_a_repetition_is_no_second_alert(tmp_path):
    senders, random_ = Senders(), random.Random(3)
    url = f"sqlite:///{tmp_path}/outrider.db"
    for _ in range(KILLS):
        with api(tmp_path, url) as (process, port):
            senders.send_until(port, len(senders.answered) + random_.randrange(5, 60), process)
        present = stored(url)
        assert senders.answered <= set(present), "an answered delivery is not stored"
        assert set(present.values()) == {ALERTS}, "a delivery is stored in part"
    with api(tmp_path, url) as (_, port):  # the senders repeat what was not answered
        for node in sorted(senders.begun):
            assert deliver(port, node) == 200
    assert stored(url) == dict.fromkeys(senders.begun, ALERTS)


class Senders:
    """Deliveries from several threads; each has a node of its own."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.answered: set[int] = set()
        self._nodes = itertools.count()

    def send_until(self, port: int, answered: int, process: subprocess.Popen[bytes]) -> None:
        """Kills the API as soon as so many deliveries were answered, while others are in progress."""
        threads = [threading.Thread(target=self._send, args=(port, process)) for _ in range(SENDERS)]
        for thread in threads:
            thread.start()
        until(lambda: len(self.answered) >= answered, "enough deliveries are answered")
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()

    def _send(self, port: int, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            node = next(self._nodes)
            self.begun.add(node)
            if deliver(port, node) == 200:
                self.answered.add(node)


def deliver(port: int, node: int) -> int:
    """Sends the alerts of one node; returns the status."""
    alerts = [
        {
            "status": "firing",
            "labels": {"alertname": f"A{number}", "node": f"n{node}"},
            "fingerprint": f"{node}/{number}",
        }
        for number in range(ALERTS)
    ]
    return status(port, json.dumps({"version": "4", "groupKey": "g", "alerts": alerts}))


def status(port: int, body: str = '{"alerts": []}') -> int:
    """The status of one request, 0 without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/api/v1/received/alertmanager", body, {"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def stored(url: str) -> dict[int, int]:
    """The number of stored alerts by node."""
    state = open_state(url)
    try:
        alerts = state.received_alerts(states=[AlertState.FIRING], limit=100_000)
    finally:
        state.close()
    return Counter(int(alert.labels["node"].removeprefix("n")) for alert in alerts)


@contextmanager
def api(folder: Path, url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs the API process on the store."""
    port, file = free_port(), folder / "outrider.yaml"
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    document = {"store": {"url": url}, "receive": {"token_file": str(folder / "token")}, "api": {"port": port}}
    file.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    open_state(url).close()  # creates the tables, as outrider serve does
    command = [sys.executable, "-m", "service.cli", "run-api", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    log = (folder / "api.log").open("wb")
    with log, subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process:
        try:
            until(lambda: status(port) or process.poll() is not None, "the API responds")
            yield process, port
        finally:
            process.kill()
