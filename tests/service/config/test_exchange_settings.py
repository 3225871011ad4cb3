"""Settings of the exchange with other monitors: received alerts, Alertmanagers, heartbeats, watchdogs."""

from __future__ import annotations

import pytest

from outrider.model import Priority
from service.config import settings as settings_file
from service.sources.receiving import ingest_settings

FILE = """
receive:
  alerts:
    secret_files: {zabbix: SECRET}
    priorities: {Disaster: P0}
    faults: {HostGone: node-lost}
    json_sources:
      zabbix: {name: "{name}", labels: {node: ["{host}", "{ip}"]}}
alertmanager:
  urls: ["http://am-0:9093", "https://am-1/prefix"]
  every: 15s
heartbeat:
  urls: ["https://hc-ping.com/uuid"]
watchdogs:
  - {name: prometheus, match: [alertname=Watchdog], within: 5m}
  - {name: backup job}
"""


def review(tmp_path, text=FILE):
    secret = tmp_path / "secret"
    secret.write_text("shared\n", encoding="utf-8")
    path = tmp_path / "o.yaml"
    path.write_text(text.replace("SECRET", str(secret)), encoding="utf-8")
    settings, problems, _ = settings_file.review(path)
    return settings, [f"{problem.key}: {problem.message}" for problem in problems]


def test_the_settings_reach_the_endpoints(tmp_path):
    settings, problems = review(tmp_path)
    assert problems == []
    alerts = ingest_settings(settings).alerts
    assert alerts.secrets == {"zabbix": "shared"}
    assert alerts.rules.priority("disaster") is Priority.P0
    assert alerts.rules.fault("HostGone") == "node-lost"
    assert alerts.rules.code_faults["79"] == "gpu-lost"
    assert alerts.rules.language == settings.notify.language
    assert alerts.rules.own_url == "", "other Outriders have the same default"
    assert alerts.mappings["zabbix"].labels == {"node": ("{host}", "{ip}")}
    assert [watchdog.name for watchdog in alerts.watchdogs] == ["prometheus", "backup job"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("node-lost}", "node-lots}", "unknown fault"),
        ("zabbix: {name", "Zab bix: {name", "lowercase letters"),
        ("{zabbix: SECRET}", "{nagios: SECRET}", "no source is named"),
        ("http://am-0:9093", "am-0:9093", "expected a URL"),
        ("https://am-1/prefix", "https://am-1/api/v2", "without /api/v2"),
        ("every: 15s", "every: 1s", "too short"),
        ("https://hc-ping.com/uuid", "http://[bad", "expected a URL"),
        ("alertname=Watchdog", "alertname=~(", "regular expression"),
        ("alertname=Watchdog", "alertname!=x", "selects every alert"),
        ("backup job", "prometheus", "duplicate name"),
        ("P0}", "P9}", "P0"),
    ],
)
def test_mistakes_are_named(tmp_path, before, after, message):
    assert before in FILE
    _, problems = review(tmp_path, FILE.replace(before, after))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(("alerts", "warned"), [("true", True), ("false", False)])
def test_a_channel_to_an_alertmanager_that_receives_every_alert_is_a_warning(tmp_path, alerts, warned):
    text = """
alertmanager: {urls: ["http://am-0:9093/"], alerts: ALERTS}
notify:
  channels: {am: {type: alertmanager, url: "http://am-0:9093"}}
"""
    path = tmp_path / "o.yaml"
    path.write_text(text.replace("ALERTS", alerts), encoding="utf-8")
    _, problems, warnings = settings_file.review(path)
    assert problems == []
    assert ("notify.channels.am" in {warning.key for warning in warnings}) is warned
