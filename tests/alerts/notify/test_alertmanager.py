"""Alerts of a real Alertmanager: they appear, change severity and end with the incident."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.notify import alertmanager
from outrider.clock import SystemClock
from outrider.model import DeliveryNote, Message, NotifyReason, Priority
from tests.support.messages import a_message
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("alertmanager")]
CONFIG = "route: {receiver: none}\nreceivers: [{name: none}]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    program = shutil.which("prometheus-alertmanager")
    if program is None:
        pytest.skip("missing: prometheus-alertmanager")
    folder, port = tmp_path_factory.mktemp("alertmanager"), free_port()
    (folder / "config.yml").write_text(CONFIG, encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    command = [
        program, f"--config.file={folder / 'config.yml'}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: _answers(url), "Alertmanager is ready")
        yield url
        process.terminate()


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as response:
            return response.status == 200
    except OSError:
        return False


def active(url, incident):
    """The firing alerts of an incident by priority."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=5) as response:
        found = [alert for alert in json.load(response) if alert["labels"].get("incident") == incident]
    return {alert["labels"]["priority"]: alert for alert in found}


def at_now(incident, **fields) -> Message:
    return a_message("en", incident=incident, created_at=SystemClock().now(), **fields)


def test_an_incident_is_one_alert_from_its_page_to_its_end(server):
    notifier = alertmanager.AlertmanagerNotifier(server, labels={"team": "gpu"})
    notifier.send(at_now("inc-a", priority=Priority.P1))
    (alert,) = active(server, "inc-a").values()
    assert alert["labels"]["alertname"] == "OutriderIncident"
    assert alert["labels"]["team"] == "gpu"
    assert alert["annotations"]["summary"].startswith("[P0] Engine hung on replica chat-0")
    assert alert["generatorURL"].startswith("https://outrider.example/incident")
    notifier.send(at_now("inc-a", priority=Priority.P1, reason=NotifyReason.REPEAT))
    assert list(active(server, "inc-a")) == ["P1"]
    notifier.send(at_now("inc-a", reason=NotifyReason.PRIORITY_RAISED))
    assert list(active(server, "inc-a")) == ["P0"]
    notifier.send(at_now("inc-a", reason=NotifyReason.RESOLVED))
    assert active(server, "inc-a") == {}


@pytest.mark.parametrize("hostile", ['a{b="c"}\n# x', "x" * 1_000_000, '<b>"\\', "引擎"])
def test_hostile_labels_reach_alertmanager_as_text(server, hostile):
    notifier = alertmanager.AlertmanagerNotifier(server)
    labels = {"entity": hostile, "fault": hostile}
    incident = f"inc-{len(hostile)}-{ord(hostile[0])}"
    notifier.send(at_now(incident, title=hostile, body=hostile, labels=labels))
    (alert,) = active(server, incident).values()
    assert len(alert["annotations"]["entity"]) <= 500
    assert alert["annotations"]["description"][0] == hostile[0]


def test_a_test_message_ends_by_itself(server):
    message = replace(at_now(None, reason=NotifyReason.TEST), id="test:am")
    document = alertmanager.payload(message)
    (alert,) = document
    assert alert["labels"]["alertname"] == "OutriderTest"
    assert alert["endsAt"] > alert["startsAt"]
    assert (message.created_at + timedelta(minutes=6)).isoformat()[:16] > alert["endsAt"][:16]
    alertmanager.AlertmanagerNotifier(server).send(message)
    assert active(server, "test:am")


def test_a_report_is_no_alert():
    notifier = alertmanager.AlertmanagerNotifier("http://127.0.0.1:1")
    assert notifier.send(a_message(reason=NotifyReason.REPORT)).note is DeliveryNote.NOT_NEEDED
