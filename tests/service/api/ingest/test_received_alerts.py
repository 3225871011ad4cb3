"""Webhooks of other monitors: authentication, limits, storms, duplicates, and the list of received alerts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from collectors.receive.alert_formats.json_mapping import JsonMapping
from outrider.clock import ManualClock
from outrider.errors import StoreUnavailableError
from outrider.model import AlertState
from outrider.records.heartbeats import NEVER, Watchdog
from outrider.records.silences import parse_matcher
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import AlertIngestSettings, ApiSettings, IngestSettings
from service.config.settings import Settings
from service.wiring import alerting
from store.memory import MemoryMetricStore, MemoryStateStore
from tests.support.messages import a_message
from tests.support.senders import START
from tests.support.vendors.registry import VENDORS
from tests.support.vendors.server import serving

ADMIN, PUSH, SECRET = "admin token", "push token", "shared secret"
HEALTH = {
    "ce-specversion": "1.0",
    "ce-type": "com.nvidia.nvsentinel.health.v1",
    "ce-source": "nvsentinel://c/healthevents",
}


class World:
    """The API with a state store in memory and a clock of its own."""

    def __init__(self, state: MemoryStateStore | None = None, **limits: Any) -> None:
        self.clock = ManualClock(START)
        self.state = state or MemoryStateStore()
        self.extras = ApiExtras(clock=self.clock)
        alerts = AlertIngestSettings(
            mappings={
                "outrider": JsonMapping(name=("{title}",), url=("{link}",)),
                "zabbix": JsonMapping(name=("{name}",), labels={"node": ("{host}",)}),
            },
            watchdogs=(
                Watchdog("prometheus", (parse_matcher("alertname=Watchdog"),), timedelta(minutes=10)),
                Watchdog("cron", (), timedelta(hours=1)),
            ),
            secrets={"grafana": SECRET, "alertmanager": SECRET, "zabbix": SECRET},
            **limits,
        )
        settings = ApiSettings(token=ADMIN, cluster="c", ingest=IngestSettings(token=PUSH, alerts=alerts))
        self.app = create_app(self.state, MemoryMetricStore(), settings, self.extras)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, f"/api/v1{path}", content=body, headers=headers)

        return asyncio.run(send())

    def post(self, source: str, document: Any, token: str = PUSH, **headers: str) -> httpx.Response:
        authorized = {"Authorization": f"Bearer {token}"} if token else {}
        return self.request("POST", f"/received/{source}", json.dumps(document).encode(), authorized | headers)

    def metrics(self) -> str:
        return generate_latest(self.extras.registry).decode()


def vendor_channel(vendor: Any) -> dict[str, Any]:
    return {"type": vendor.channel_type, **vendor.settings()}


def delivery(*names: str, status: str = "firing", **more: Any) -> dict[str, Any]:
    alerts = [
        {"status": status, "labels": {"alertname": "Down", "node": name}, "fingerprint": name, "annotations": {}}
        for name in names
    ]
    return {"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "alerts": alerts, "groupLabels": {}} | more


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def test_a_delivery_is_stored_and_listed():
    world = World()
    response = world.post("alertmanager", delivery("n1", "n2"))
    assert (response.status_code, response.json()["new"]) == (200, 2)
    listed = world.request("GET", "/received?state=firing").json()["received"]
    assert {row["labels"]["node"] for row in listed} == {"n1", "n2"}
    assert listed[0]["deliveries"] == 1


def test_a_duplicate_delivery_is_one_alert_and_the_end_resolves_it():
    world = World()
    for _ in range(3):
        world.post("alertmanager", delivery("n1"))
    assert world.post("alertmanager", delivery("n1", status="resolved")).json()["resolved"] == 1
    (row,) = world.request("GET", "/received").json()["received"]
    assert (row["state"], row["deliveries"]) == ("resolved", 3)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_delivery_without_a_valid_token_is_refused_and_audited(token):
    world = World()
    assert world.post("alertmanager", delivery("n1"), token=token).status_code == 401
    assert not world.state.received_alerts()
    assert [record.event for record in world.state.audit()] == ["write_refused"]


def test_the_admin_token_is_accepted_too():
    assert World().post("alertmanager", delivery("n1"), token=ADMIN).status_code == 200


def test_a_signed_delivery_needs_no_token():
    world, body = World(), json.dumps(delivery("n1")).encode()
    sent = {"X-Grafana-Alerting-Signature": signature(body)}
    assert world.request("POST", "/received/grafana", body, sent).status_code == 200
    stamp = str(int(START.timestamp()))
    timed = {
        "X-Grafana-Alerting-Signature": signature(stamp.encode() + b":" + body),
        "X-Grafana-Alerting-Timestamp": stamp,
    }
    assert world.request("POST", "/received/grafana", body, timed).status_code == 200
    hub = {"X-Hub-Signature-256": f"sha256={signature(body)}"}
    assert world.request("POST", "/received/alertmanager", body, hub).status_code == 200
    own = {"X-Outrider-Timestamp": stamp, "X-Outrider-Signature": f"sha256={signature(stamp.encode() + b'.' + body)}"}
    assert world.request("POST", "/received/alertmanager", body, own).status_code == 200


def test_forged_and_replayed_signatures_are_refused():
    world, body = World(), json.dumps(delivery("n1")).encode()
    forged = {"X-Grafana-Alerting-Signature": signature(body, "another secret")}
    assert world.request("POST", "/received/grafana", body, forged).status_code == 401
    old = str(int((START - timedelta(minutes=6)).timestamp()))
    replayed = {
        "X-Grafana-Alerting-Signature": signature(old.encode() + b":" + body),
        "X-Grafana-Alerting-Timestamp": old,
    }
    assert world.request("POST", "/received/grafana", body, replayed).status_code == 401
    unsigned = {"X-Outrider-Signature": signature(b"." + body)}
    assert world.request("POST", "/received/grafana", body, unsigned).status_code == 401
    assert not world.state.received_alerts()


def test_a_signature_for_a_source_without_a_secret_does_not_count():
    world, body = World(), json.dumps([]).encode()
    sent = {"X-Hub-Signature-256": f"sha256={signature(body, '')}", **HEALTH}
    assert world.request("POST", "/received/cloudevents", body, sent).status_code == 401


def test_a_storm_is_limited_by_429_and_the_sender_may_go_on_after_the_wait():
    world = World(per_minute=10)
    assert world.post("alertmanager", delivery(*(f"n{number}" for number in range(8)))).status_code == 200
    refused = world.post("alertmanager", delivery(*(f"m{number}" for number in range(8))))
    assert refused.status_code == 429
    wait = int(refused.headers["Retry-After"])
    assert 0 < wait <= 60
    assert "receive.alerts.per_minute" in refused.text
    world.clock.advance(timedelta(seconds=wait))
    assert world.post("alertmanager", delivery(*(f"m{number}" for number in range(8)))).status_code == 200
    assert 'outcome="too_fast"' in world.metrics()


def test_a_sender_that_names_other_tenants_has_one_allowance():
    world = World(per_minute=2)
    statuses = [
        world.post("alertmanager", delivery(f"n{number}"), **{"X-Scope-OrgID": f"team-{number}"}).status_code
        for number in range(3)
    ]
    assert statuses == [200, 200, 429]


def test_too_many_firing_alerts_are_refused_for_now_and_ends_are_accepted():
    world = World(most_firing=2)
    world.post("alertmanager", delivery("n1", "n2"))
    refused = world.post("alertmanager", delivery("n3"))
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    assert world.post("alertmanager", delivery("n1", status="resolved")).status_code == 200
    assert world.post("alertmanager", delivery("n3")).status_code == 200


def test_a_body_beyond_the_limit_is_413():
    world = World(body_bytes=1000)
    assert world.post("alertmanager", delivery("n" * 2000)).status_code == 413


def test_malformed_bodies_are_400_and_partly_valid_ones_207():
    world = World()
    assert world.post("alertmanager", {"no": "alerts"}).status_code == 400
    mixed = delivery("n1") | {"alerts": [*delivery("n1")["alerts"], {"labels": {}}]}
    response = world.post("alertmanager", mixed)
    assert (response.status_code, response.json()["refused"]) == (207, ["alert 1 has no labels"])
    assert len(world.state.received_alerts()) == 1


def test_alerts_of_our_own_are_dropped_and_counted():
    world = World()
    own = delivery("n1")
    own["alerts"][0]["labels"]["outrider_origin"] = f"c-{world.state.installation()}"
    response = world.post("alertmanager", own)
    assert (response.status_code, response.json()["looped"], response.json()["accepted"]) == (200, 1, 0)
    assert 'outrider_received_alerts_total{outcome="looped",source="alertmanager"} 1.0' in world.metrics()


@pytest.mark.parametrize("name", ["webhook", "alertmanager"])
def test_a_message_of_a_channel_is_dropped_by_the_outrider_that_sent_it_and_accepted_by_any_other(name):
    sender, other = World(), World()  # of the same cluster, with the same address of the dashboard
    with serving(VENDORS[name]()) as vendor:
        settings = Settings.model_validate({"cluster": "c", "notify": {"channels": {name: vendor_channel(vendor)}}})
        alerting.notifiers(settings, sender.state.installation())[name].send(a_message(link="http://127.0.0.1:8501/i"))
        (sent,) = vendor.accepted
    sent = {"version": "4", "alerts": [{"status": "firing", **sent[0]}]} if name == "alertmanager" else sent
    source = name if name == "alertmanager" else "json/outrider"
    assert [(w.post(source, sent).json()["looped"], len(w.state.received_alerts())) for w in (sender, other)] == [
        (1, 0), (0, 1),
    ]  # fmt: skip


def test_what_the_source_left_out_is_counted_and_visible():
    world = World()
    world.post("alertmanager", delivery("n1", truncatedAlerts=42))
    assert 'outrider_received_alerts_total{outcome="truncated",source="alertmanager"} 42.0' in world.metrics()
    names = [alert.name for alert in world.state.received_alerts(states=[AlertState.FIRING])]
    assert "AlertsTruncated" in names
    world.post("alertmanager", delivery("n1"))
    assert [alert.name for alert in world.state.received_alerts(states=[AlertState.FIRING])] == ["Down"]


def test_json_of_a_configured_source_is_mapped_and_others_are_404():
    world = World()
    assert world.post("json/zabbix", {"name": "Disk full", "host": "n1"}).json()["new"] == 1
    assert world.post("json/nagios", {}).status_code == 404


def test_a_cloudevent_in_binary_mode_is_read():
    world = World()
    health = {"nodeName": "n1", "checkName": "GpuMemWatch", "isHealthy": False, "isFatal": True, "entitiesImpacted": []}
    response = world.post("cloudevents", {"metadata": {"cluster": "c"}, "healthEvent": health}, **HEALTH)
    assert response.json()["new"] == 1
    (alert,) = world.state.received_alerts()
    assert (alert.source, alert.fault) == ("nvsentinel", "gpu-ecc-uncorrectable")


class Unavailable(MemoryStateStore):
    """A store whose writes of received alerts fail."""

    def receive_alerts(self, alerts, most_open):
        raise StoreUnavailableError("the database is down", hint="start it")


def test_an_unavailable_store_is_503_so_that_the_sender_repeats():
    response = World(Unavailable()).post("alertmanager", delivery("n1"))
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)


def test_without_ingestion_there_is_no_endpoint():
    app = create_app(MemoryStateStore(), MemoryMetricStore(), ApiSettings(token=ADMIN), ApiExtras())

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/api/v1/received/alertmanager", headers={"Authorization": f"Bearer {ADMIN}"})

    assert asyncio.run(send()).status_code == 409


def test_a_clock_that_steps_back_loses_no_alert():
    world = World()
    world.post("alertmanager", delivery("n1"))
    world.clock.advance(-timedelta(hours=2))
    world.post("alertmanager", delivery("n2"))
    world.post("alertmanager", delivery("n1", status="resolved"))
    assert [alert.fingerprint for alert in world.state.received_alerts(states=[AlertState.FIRING])] == ["n2"]


def test_a_watchdog_alert_is_a_heartbeat_and_its_end_is_one_that_never_was():
    world = World()
    watchdog = delivery("n1")
    watchdog["alerts"][0]["labels"]["alertname"] = "Watchdog"
    response = world.post("alertmanager", watchdog)
    assert (response.json()["accepted"], world.state.received_alerts()) == (1, ())
    assert world.state.heartbeats() == {"watchdog/prometheus": START}
    watchdog["alerts"][0]["status"] = "resolved"
    world.post("alertmanager", watchdog)
    assert world.state.heartbeats() == {"watchdog/prometheus": NEVER}


def test_a_storm_of_a_sender_refuses_its_alerts_but_not_its_heartbeat():
    world = World(per_minute=2)
    world.post("alertmanager", delivery("n1", "n2"))
    world.clock.advance(timedelta(milliseconds=1))
    mixed = delivery("n3", "n4")
    mixed["alerts"][0]["labels"]["alertname"] = "Watchdog"
    assert world.post("alertmanager", mixed).status_code == 429
    assert world.state.heartbeats() == {"watchdog/prometheus": world.clock.now()}
    assert {alert.fingerprint for alert in world.state.received_alerts()} == {"n1", "n2"}


def test_a_heartbeat_by_its_own_endpoint_needs_the_token_and_a_known_name():
    world = World()
    assert world.post("heartbeat/cron", None).json()["at"] == "2026-11-21T08:00:00Z"
    assert world.state.heartbeats() == {"watchdog/cron": START}
    assert world.post("heartbeat/cron", None, token="").status_code == 401
    assert world.post("heartbeat/backup", None).status_code == 404
