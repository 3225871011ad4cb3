"""``outrider alerts``: writes carry the name of a person, and windows of maintenance are listed as silences are."""

from __future__ import annotations

import getpass

import pytest
import yaml

from outrider.audit import AuditEvent
from outrider.model import AlertState
from outrider.testing.trouble import INCIDENT
from tests.service.cli.incidents.test_remediate import Platform
from tests.service.cli.test_cli import answer

WINDOW = {"name": "firmware", "match": ["node=node-1"], "start": "22:00", "end": "02:00", "timezone": "Asia/Shanghai"}


@pytest.fixture
def platform(tmp_path):
    running = Platform(tmp_path, more=yaml.safe_dump({"maintenance": [WINDOW]}))
    yield running
    running.close()


def command(platform, *arguments):
    return answer("alerts", *arguments, "-o", "json", cwd=platform.folder)


def people(platform, *events):
    return [record.by for record in reversed(platform.state.audit()) if record.event in events]


@pytest.mark.parametrize("options", [("--as", "李"), ()])
def test_the_audit_has_the_name_of_who_acknowledges_resolves_and_silences(platform, options):
    name = options[-1] if options else getpass.getuser()
    firing = platform.state.alerts(states=[AlertState.FIRING])[0]
    assert command(platform, "ack", INCIDENT, *options)["acknowledged_by"] == name
    command(platform, "resolve", firing.fingerprint, *options)
    silence = command(platform, "silence", "--rule", "gpu-lost", *options)
    assert silence["by"] == name
    command(platform, "unsilence", silence["id"], *options)
    events = (AuditEvent.ACKNOWLEDGED, AuditEvent.RESOLVED_BY_HAND, AuditEvent.SILENCED, AuditEvent.UNSILENCED)
    assert people(platform, *events) == [name] * 4


def test_silences_are_listed_with_the_windows_of_maintenance(platform):
    [window] = command(platform, "silences")
    assert (window["source"], window["matchers"], window["window"]["start"]) == (
        "maintenance",
        ['node="node-1"'],
        "22:00",
    )
    silence = command(platform, "silence", "--rule", "gpu-lost")
    assert [item["id"] for item in command(platform, "silences")] == [silence["id"], window["id"]]
