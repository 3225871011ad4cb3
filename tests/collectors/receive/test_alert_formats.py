"""Webhook formats of other monitors: what is read, what is limited, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from collectors.receive.alert_formats import alertmanager, cloudevents, json_mapping
from collectors.receive.alert_formats.json_mapping import JsonMapping
from collectors.receive.alert_formats.record import (
    MOST_LABEL_BYTES,
    MOST_LABELS,
    SEVERITIES,
    AlertRules,
    known_faults,
    received,
)
from collectors.receive.protocol import ReceiveError, RejectionReason
from outrider.model import AlertState, Priority
from outrider.vocabulary.faults import faults
from outrider.wire.alertmanager import ORIGIN_LABEL

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RULES = AlertRules(origin="prod", code_faults={"79": "gpu-lost"})


def webhook(*alerts: dict[str, Any], **more: Any) -> bytes:
    """A delivery of Alertmanager 0.25, as recorded."""
    document = {
        "receiver": "outrider",
        "status": "firing",
        "alerts": list(alerts),
        "groupLabels": {"alertname": "KubeNodeNotReady"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://am:9093",
        "version": "4",
        "groupKey": '{}:{alertname="KubeNodeNotReady"}',
        "truncatedAlerts": 0,
    }
    return json.dumps(document | more).encode()


def alert(labels: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    entry = {
        "status": "firing",
        "labels": {"alertname": "KubeNodeNotReady", "node": "n1", "severity": "critical"} | (labels or {}),
        "annotations": {"summary": "Node is not ready.", "runbook_url": "https://runbooks.example/node"},
        "startsAt": "2026-03-01T11:58:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prom:9090/graph?g0.expr=up",
        "fingerprint": "f9a3a5b2c1d0e4f7",
    }
    return entry | more


def read(body: bytes, rules: AlertRules = RULES) -> alertmanager.DecodedAlerts:
    return alertmanager.decode("alertmanager", body, rules, NOW)


def test_an_alert_of_alertmanager_is_read_with_its_fingerprint_priority_and_fault():
    first = read(webhook(alert())).alerts[0]
    assert (first.fingerprint, first.name, first.priority, first.fault) == (
        "f9a3a5b2c1d0e4f7", "KubeNodeNotReady", Priority.P1, "node-lost",
    )  # fmt: skip
    assert first.starts_at == datetime(2026, 3, 1, 11, 58, 0, 123456, tzinfo=UTC)
    assert (first.summary, first.runbook) == ("Node is not ready.", "https://runbooks.example/node")
    assert first.expires_at == NOW + RULES.expires_after


def test_an_end_has_its_time_and_no_expiry():
    over = read(webhook(alert(status="resolved", endsAt="2026-03-01T11:59:00Z"))).alerts[0]
    assert (over.state, over.ends_at, over.expires_at) == (AlertState.RESOLVED, NOW - timedelta(minutes=1), None)


def test_a_start_in_the_future_is_the_time_of_arrival():
    first = read(webhook(alert(startsAt="2026-03-02T00:00:00Z"))).alerts[0]
    assert first.starts_at == NOW


@pytest.mark.parametrize(
    "text", ["", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+08:00", "soon", "1970-01-01T00:00:00Z"]
)
def test_a_missing_start_is_the_time_of_arrival(text):
    assert read(webhook(alert(startsAt=text))).alerts[0].starts_at == NOW


def test_alerts_that_the_source_left_out_are_one_visible_alert_until_none_is():
    delivery = read(webhook(alert(), truncatedAlerts=42))
    about = delivery.notes[-1]
    assert (delivery.truncated, about.name, about.priority, about.is_firing) == (
        42, alertmanager.TRUNCATED, Priority.P3, True,
    )  # fmt: skip
    over = read(webhook(alert())).notes[-1]
    assert over.resolves_group
    assert (over.group, over.is_firing) == (about.group, False)


def test_the_note_about_truncated_alerts_is_in_the_language_of_messages():
    document = webhook(alert(), truncatedAlerts=42)
    assert (
        read(document, AlertRules(language="en")).notes[-1].summary == "42 alerts of this group not sent (max_alerts)"
    )
    assert read(document, AlertRules(language="zh")).notes[-1].summary == "该分组有 42 条告警未发送（max_alerts）"


def test_an_alert_that_this_outrider_emitted_is_dropped_and_counted():
    delivery = read(webhook(alert({ORIGIN_LABEL: "prod"}), alert({ORIGIN_LABEL: "other"})))
    assert delivery.looped == 1
    assert [item.labels.get(ORIGIN_LABEL) for item in delivery.alerts] == ["other"]


def test_a_message_that_our_own_channel_posted_is_dropped_by_its_link():
    rules = AlertRules(own_url="https://outrider.example")
    own = alert({"alertname": "OutriderIncident"}, generatorURL="https://outrider.example/incident?incident=inc-1")
    other = alert(generatorURL="https://outrider.example.evil/graph")
    delivery = read(webhook(own, other), rules)
    assert (delivery.looped, len(delivery.alerts)) == (1, 1)


def test_an_alert_of_another_outrider_with_the_same_address_of_its_dashboard_is_no_loop():
    rules = AlertRules(origin="prod", own_url="http://127.0.0.1:8501")
    other = alert({ORIGIN_LABEL: "edge"}, generatorURL="http://127.0.0.1:8501/incident?incident=inc-1")
    delivery = read(webhook(other), rules)
    assert (delivery.looped, len(delivery.alerts)) == (0, 1)


def test_the_priority_of_another_outrider_is_kept():
    assert read(webhook(alert({"priority": "P0", "severity": "critical"}))).alerts[0].priority is Priority.P0


def test_a_megabyte_of_labels_is_cut_with_a_digest_and_stays_distinct():
    first = read(webhook(alert({"log": "x" * 1_000_000}, fingerprint=""))).alerts[0]
    other = read(webhook(alert({"log": "x" * 1_000_000 + "y"}, fingerprint=""))).alerts[0]
    assert len(first.labels["log"].encode()) <= MOST_LABEL_BYTES
    assert first.labels["log"] != other.labels["log"]
    assert first.fingerprint != other.fingerprint


def test_the_number_of_labels_is_limited():
    first = read(webhook(alert({f"l{number:04}": "v" for number in range(5000)}))).alerts[0]
    assert len(first.labels) == MOST_LABELS


def test_markup_is_kept_as_text_and_links_are_links():
    entry = alert({"node": "<script>alert(1)</script>"}, generatorURL="javascript:alert(1)")
    first = read(webhook(entry)).alerts[0]
    assert first.labels["node"] == "<script>alert(1)</script>"
    assert first.url == ""


def test_an_entry_without_labels_is_a_problem_and_the_others_are_read():
    delivery = read(webhook({"status": "firing"}, alert()))
    assert delivery.problems == ["alert 0 has no labels"]
    assert delivery.alerts[0].name == "KubeNodeNotReady"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"alerts": 3}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_delivery_is_refused(body):
    with pytest.raises(ReceiveError) as refused:
        read(body)
    assert refused.value.reason is RejectionReason.MALFORMED


def test_more_alerts_than_a_delivery_may_hold_are_refused():
    with pytest.raises(ReceiveError) as refused:
        read(webhook(*[alert()] * 3), AlertRules(most_alerts=2))
    assert refused.value.reason is RejectionReason.TOO_LARGE


def test_configured_priorities_and_faults_come_first():
    rules = AlertRules(priorities={"critical": Priority.P0}, faults={"KubeNodeNotReady": "network-loss"})
    first = read(webhook(alert()), rules).alerts[0]
    assert (first.priority, first.fault) == (Priority.P0, "network-loss")


def test_an_unknown_severity_is_a_p2():
    assert read(webhook(alert({"severity": "purple"}))).alerts[0].priority is Priority.P2
    assert set(SEVERITIES.values()) == set(Priority)


def test_every_known_alert_name_has_a_fault_of_the_catalog():
    assert set(known_faults().values()) <= set(faults())


def test_grafana_is_read_with_its_panel_as_link():
    entry = alert(
        {"grafana_folder": "llm", "__alert_rule_uid__": "u1"},
        panelURL="https://grafana/d/1?viewPanel=2",
        values={"A": 1.5},
        valueString="[ var='A' value=1.5 ]",
    )
    first = alertmanager.decode("grafana", webhook(entry, version="1", orgId=1, state="alerting"), RULES, NOW).alerts[0]
    assert (first.source, first.url) == ("grafana", "https://grafana/d/1?viewPanel=2")
    assert "__alert_rule_uid__" not in first.labels


# --- CloudEvents ------------------------------------------------------------------------------------


def health_event(**more: Any) -> dict[str, Any]:
    """A health event as NVSentinel's exporter writes it (transformer/cloudevents.go)."""
    health = {
        "version": 1,
        "agent": "syslog-health-monitor",
        "componentClass": "GPU",
        "checkName": "SysLogsXIDError",
        "isFatal": True,
        "isHealthy": False,
        "message": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "recommendedAction": 24,
        "errorCode": ["79"],
        "entitiesImpacted": [
            {"entityType": "PCI", "entityValue": "0000:17:00.0"},
            {"entityType": "GPU_UUID", "entityValue": "GPU-1234"},
        ],
        "generatedTimestamp": "2026-03-01T11:59:30Z",
        "nodeName": "gpu-node-42",
        "gpuUUID": "GPU-1234",
    }
    return {
        "specversion": "1.0",
        "type": "com.nvidia.nvsentinel.health.v1",
        "source": "nvsentinel://prod/healthevents",
        "id": "8c5f",
        "time": "2026-03-01T11:59:30Z",
        "data": {"metadata": {"cluster": "prod", "environment": "production"}, "healthEvent": health | more},
    }


def events(body: Any, **headers: str) -> cloudevents.DecodedAlerts:
    named = {"content-type": "application/cloudevents+json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return cloudevents.decode(named, json.dumps(body).encode(), RULES, NOW)


def test_a_health_event_of_nvsentinel_is_an_alert_on_its_gpu():
    first = events(health_event()).alerts[0]
    assert (first.source, first.name, first.priority, first.fault) == (
        "nvsentinel", "SysLogsXIDError", Priority.P1, "gpu-lost",
    )  # fmt: skip
    assert first.labels["gpu_uuid"] == "GPU-1234"
    assert first.labels["recommended_action"] == "restart_node"
    assert first.expires_at is None


def test_a_recovery_that_names_the_gpu_less_fully_ends_the_same_alert():
    fault = events(health_event()).alerts[0]
    entities = [{"entityType": "GPU_UUID", "entityValue": "GPU-1234"}]
    over = events(health_event(isHealthy=True, isFatal=False, errorCode=[], entitiesImpacted=entities)).alerts[0]
    assert (over.id, over.is_firing, over.resolves_group) == (fault.id, False, False)


def test_a_recovery_of_the_whole_check_ends_all_its_alerts():
    fault = events(health_event()).alerts[0]
    over = events(health_event(isHealthy=True, errorCode=[], entitiesImpacted=None)).alerts[0]
    assert (over.resolves_group, over.group) == (True, fault.group)


def test_binary_and_batched_events_are_read():
    event = health_event()
    binary = events(event["data"], content_type="application/json", ce_specversion="1.0", ce_type=event["type"])
    batched = events([event, event], content_type="application/cloudevents-batch+json")
    assert len(binary.alerts) == 1
    assert len(batched.alerts) == 2
    assert binary.alerts[0].id == batched.alerts[0].id


def test_events_of_other_types_are_problems():
    delivery = events(health_event() | {"type": "com.example.other"})
    assert not delivery.alerts
    assert "com.example.other" in delivery.problems[0]


def test_a_body_without_events_is_refused():
    with pytest.raises(ReceiveError):
        events({"hello": "world"})


# --- mapped JSON ------------------------------------------------------------------------------------

ZABBIX = JsonMapping(
    name=("{trigger.name}",),
    items="events",
    status=("{status}",),
    fingerprint=("{trigger.id}",),
    severity=("{severity}",),
    labels={"node": ("{host.visible}", "{host.name}"), "site": ("{body.site}",)},
    summary=("{trigger.name} on {host.name}",),
    starts_at=("{clock}",),
)


def mapped(document: Any, mapping: JsonMapping = ZABBIX) -> json_mapping.DecodedAlerts:
    return json_mapping.decode("zabbix", json.dumps(document).encode(), mapping, RULES, NOW)


def test_json_is_read_by_its_mapping():
    event = {"trigger": {"name": "Disk full", "id": 7}, "status": "PROBLEM", "severity": "High", "host": {"name": "n1"}}
    first = mapped({"site": "fra", "events": [event]}).alerts[0]
    assert (first.name, first.fingerprint, first.priority) == ("Disk full", "7", Priority.P1)
    assert first.labels == {"alertname": "Disk full", "node": "n1", "site": "fra"}
    assert first.summary == "Disk full on n1"
    over = mapped({"events": [event | {"status": "RESOLVED"}]}).alerts[0]
    assert (over.id, over.is_firing) == (first.id, False)


def test_a_single_alert_and_a_truth_value_as_status_are_read():
    mapping = JsonMapping(name=("{check}",), status=("{healthy}",), resolved=("true",))
    assert mapped({"check": "api", "healthy": False}, mapping).alerts[0].is_firing
    assert not mapped({"check": "api", "healthy": True}, mapping).alerts[0].is_firing


def test_an_item_without_a_name_is_a_problem():
    assert mapped({"events": [{}]}).problems == ["alert 0 has none of {trigger.name}"]


def test_a_mapping_that_finds_no_list_refuses_the_delivery():
    with pytest.raises(ReceiveError, match="events"):
        mapped({"alerts": []})


_json = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(_json, _json)
def test_no_delivery_crashes_a_decoder(value: Any, other: Any):
    bodies = [
        webhook(alert({"any": value}), {"labels": value, "annotations": other}, truncatedAlerts=other),
        webhook(alert(startsAt=value, fingerprint=other, annotations=value, status=other)),
    ]
    for body in bodies:
        assert all(item.name and item.fingerprint for item in read(body).alerts)
    events(health_event(entitiesImpacted=value, errorCode=other, recommendedAction=value, generatedTimestamp=other))
    mapped({"events": [{"trigger": {"name": "x"}, "status": value, "host": other}]})


def test_a_record_never_ends_before_it_starts():
    reported = alertmanager.ReportedAlert(
        "x", False, {"a": "b"}, ends_at="2020-01-01T00:00:00Z", starts_at="2026-03-01T11:00:00Z"
    )
    over = received("s", reported, RULES, NOW)
    assert over.ends_at == over.starts_at
