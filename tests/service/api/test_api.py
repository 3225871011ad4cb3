"""Every endpoint, on in-memory stores of a fleet during an incident."""

import asyncio
import math
import re
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import httpx
import pytest

from outrider.audit import AuditEvent
from outrider.clock import ManualClock
from outrider.model import ActionStatus, AlertState, EntityKind, Hypothesis, Priority
from outrider.ports import CycleCommit, Silence
from outrider.testing.names import GPU, LOST_GPU, NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.api.routers import incidents
from service.config.api_settings import ApiSettings
from service.config.maintenance_settings import MaintenanceCalendarSettings
from service.oncall.maintenance_calendars import MaintenanceCalendars
from store.memory import MemoryMetricStore, MemoryStateStore

TOKEN = "correct horse"
ADMIN = {"Authorization": f"Bearer {TOKEN}", "X-Outrider-User": "ada"}
DRAIN = "session-1:drain"
READS = (
    "/overview",
    "/services",
    "/services/chat",
    "/alerts",
    "/silences",
    "/incidents",
    f"/incidents/{INCIDENT}",
    f"/incidents/{INCIDENT}/alerts",
    f"/incidents/{INCIDENT}/evidence",
    f"/incidents/{INCIDENT}/graph",
    "/knowledge?name=gpu-lost",
    "/knowledge/path?one=gpu-lost&other=cordon",
    "/plan",
    "/forecasts?history_hours=2",
    "/actions",
    "/remediation",
    "/notifications/dead-letters",
    "/audit",
    "/signals/svc_ttft_seconds/series",
    "/catalog",
    "/topology",
    "/health/targets",
    "/version",
    "/slos",
    "/detectors",
)
WRITES = (
    ("POST", "/alerts/x/resolve"),
    ("POST", "/silences"),
    ("DELETE", "/silences/x"),
    ("POST", f"/incidents/{INCIDENT}/ack"),
    ("POST", f"/actions/{DRAIN}/approve"),
    ("POST", f"/actions/{DRAIN}/reject"),
    ("POST", f"/actions/{DRAIN}/request"),
    ("POST", "/remediation/breaker/reset"),
    ("POST", "/remediation/services/chat/restore"),
    ("POST", "/remediation/pause"),
    ("POST", "/remediation/resume"),
    ("POST", "/notifications/dead-letters/m1/retry"),
)


class Http:
    """Requests straight into the application, no socket."""

    def __init__(self, app) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("testclient", 50000))

    def request(self, method: str, path: str, **parts) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **parts)

        return asyncio.run(ask())

    def get(self, path: str, **parts) -> httpx.Response:
        return self.request("GET", path, **parts)

    def post(self, path: str, **parts) -> httpx.Response:
        return self.request("POST", path, **parts)


class World:
    """The API over a filled store, and the store to look into."""

    def __init__(self, story: Story | None, **settings) -> None:
        self.state, self.metrics = MemoryStateStore(), MemoryMetricStore()
        if story is not None:
            story.fill(self.state, self.metrics)
        self.clock = ManualClock(NOW + timedelta(seconds=5))
        extras = ApiExtras(clock=self.clock)
        self.app = create_app(self.state, self.metrics, ApiSettings(**{"token": TOKEN, **settings}), extras)
        self.http = Http(self.app)

    def get(self, path: str, **query):
        answer = self.http.get(f"/api/v1{path}", params=query or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body=None):
        return self.http.post(f"/api/v1{path}", json=body, headers=ADMIN)


@pytest.fixture(scope="module")
def busy() -> World:
    """For reading only."""
    return World(Story(alerts=250))


@pytest.fixture
def fresh() -> World:
    return World(Story(history=timedelta(minutes=12)))


@pytest.fixture
def empty() -> World:
    return World(None)


def test_overview_has_slos_incidents_plan_and_actions(busy):
    found = busy.get("/overview")
    assert found["as_of"] == "2026-05-04T13:07:30Z"
    chat, code = found["services"]
    assert (chat["service"]["name"], chat["status"], chat["reason"]) == ("chat", "broken", "calls_fail")
    assert (code["status"], code["reason"]) == ("at_risk", "sla_below_target")
    assert chat["success_ratio"]["now"] < 0.99 < chat["success_ratio"]["day"]
    assert 0 < chat["sla_attainment"]["low"] < chat["sla_attainment"]["high"] < 1
    assert chat["incidents"] == [INCIDENT]
    assert code["incidents"] == []
    assert chat["plan"]["target_replicas"] == 11
    assert code["plan"]["target_replicas"] is None
    assert found["incidents"][0]["suspected_cause"]["fault"] == "gpu-lost"
    assert found["incidents"][0]["suspected_cause"]["place"] == "node-3, GPU 2"
    assert [row["service"] for row in found["plan"]] == ["chat", "code"]
    assert {row["status"] for row in found["actions"]} >= {"done", "waiting_approval", "refused"}
    assert found["fleet"] == {"node": 8, "gpu": 64, "replica": 16, "service": 2}
    assert found["monitoring"]["reason"] == "targets_down"


def test_the_24_h_strip_has_a_gap_where_nothing_was_measured(busy):
    strip = busy.get("/services/chat")["strip"]
    assert len(strip) == 48
    assert strip[0]["good_ratio"] is None
    assert strip[-2]["good_ratio"] == 1.0
    assert strip[-1]["good_ratio"] < 1.0


def test_every_read_succeeds_without_nan(busy):
    for path in READS:
        answer = busy.http.get(f"/api/v1{path}")
        assert answer.status_code == 200, (path, answer.text)
        assert "NaN" not in answer.text
        assert TOKEN not in answer.text


def test_every_read_succeeds_on_an_empty_store(empty):
    for path in READS:
        answer = empty.http.get(f"/api/v1{path}")
        assert answer.status_code == (404 if INCIDENT in path or path == "/services/chat" else 200), (path, answer.text)
    found = empty.get("/overview")
    assert found["services"] == found["incidents"] == found["plan"] == found["actions"] == []
    assert found["monitoring"]["reason"] == "no_cycle"


def test_alerts_are_paged_without_losing_or_repeating_one(busy):
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        answer = busy.get("/alerts", limit=60, cursor=cursor)
        seen += [row["fingerprint"] for row in answer["alerts"]]
        cursor, pages = answer["next_cursor"], pages + 1
    assert pages == 5
    assert len(seen) == len(set(seen)) == 253


def test_alerts_are_filtered_by_state_and_priority(busy):
    rows = busy.get("/alerts", priority="P3", state="resolved", limit=1000)["alerts"]
    assert rows
    assert {(row["priority"], row["state"]) for row in rows} == {("P3", "resolved")}


def test_a_filtered_page_reads_only_one_page_from_the_store(busy):
    with mock.patch.object(busy.state, "alerts", wraps=busy.state.alerts) as read:
        busy.get("/alerts", priority="P0", limit=5)
    read.assert_called_once_with(states=None, priorities=[Priority.P0], limit=6, after=None)


def test_an_alert_is_found_by_a_fingerprint_with_slashes(busy):
    fingerprint = busy.get("/alerts", priority="P0")["alerts"][0]["fingerprint"]
    assert "/" in fingerprint
    assert busy.get(f"/alerts/{fingerprint}")["fingerprint"] == fingerprint


def test_an_incident_has_evidence_timeline_and_actions(busy):
    found = busy.get(f"/incidents/{INCIDENT}")
    assert found["hypotheses"][0]["entity"]["name"] == LOST_GPU.name
    assert len(found["hypotheses"][0]["evidence"]) == 2
    assert [row["fault"] for row in found["rejected"]] == ["node-lost", "exporter-down"]
    assert [row["at"] for row in found["timeline"]] == sorted(row["at"] for row in found["timeline"])
    assert len(found["folded"]) == found["alerts"] == 3
    assert len(found["actions"]) == 4
    assert found["messages"][0]["is_page"]


@pytest.mark.parametrize(("language", "owner"), [("en", "hardware team"), ("zh", "硬件团队")])
def test_an_incident_is_explained(busy, language, owner):
    found = busy.get(f"/incidents/{INCIDENT}", lang=language)
    explanation = found["explanation"]
    assert [one["name"] for one in explanation["sections"]][:4] == ["what", "for", "others", "check"]
    assert (explanation["known"], explanation["team"], explanation["team_name"]) == (True, "hardware", owner)
    assert explanation["runbook"] == "docs/runbooks/gpu-lost.md"
    assert explanation["unknown_confidence"] == found["unknown_confidence"] == 0.02


def test_the_graph_of_an_incident_has_cause_and_remedies(busy):
    found = busy.get(f"/incidents/{INCIDENT}/graph", lang="zh")
    assert {one["id"] for one in found["nodes"] if one["role"] == "cause"} == {
        "fault:gpu-lost",
        f"entity:{LOST_GPU.key}",
    }
    ids = {one["id"] for one in found["nodes"]}
    assert all({edge["source"], edge["target"]} <= ids for edge in found["edges"])
    assert "处置" in {edge["label"] for edge in found["edges"]}


def test_the_knowledge_graph_is_queried(busy):
    around = busy.get("/knowledge", name="gpu-lost", limit=5)
    assert len(around["nodes"]) == 5
    assert around["left_out"] > 0
    causes = busy.get("/knowledge/causes", symptom="engine-dead", component="service/chat")
    assert causes["causes"]
    explained = busy.get("/knowledge/explains", fault="gpu-lost", component=LOST_GPU.key)
    assert any(row["entity"]["name"] == "chat" for row in explained["explains"])
    chain = busy.get("/knowledge/path", one="gpu-lost", other="cordon")
    assert [edge["link"] for edge in chain["path"]] == ["remedied_by"]
    refused = busy.http.get("/api/v1/knowledge", params={"name": "gpu-lots"})
    assert refused.status_code == 400
    assert 'did you mean "gpu-lost"' in refused.json()["error"]["message"]


def test_an_incident_names_the_recording_before_it(busy, tmp_path, monkeypatch):
    monkeypatch.setattr(incidents, "flights_of", lambda _: tmp_path)
    assert busy.get(f"/incidents/{INCIDENT}")["recording"] is None
    (tmp_path / INCIDENT).mkdir()
    assert busy.get(f"/incidents/{INCIDENT}")["recording"] == str(tmp_path / INCIDENT)


def test_evidence_shows_the_cause_its_peers_and_the_impact(busy):
    found = busy.get(f"/incidents/{INCIDENT}/evidence")
    charts = {chart["signal"]: chart for chart in found["charts"]}
    present = charts["hw_accel_present"]["series"][0]
    known = [value for value in present["values"] if value is not None]
    assert (known[0], known[-1]) == (8.0, 7.0)
    fault = charts["hw_accel_fault_code"]
    assert [line["role"] for line in fault["series"]] == ["cause", "peers"]
    assert fault["peers"] == len(GPU) - 1
    assert "svc_success_ratio" in charts
    assert all(len(chart["times"]) <= 240 for chart in charts.values())


def test_plan_and_forecast_have_the_values_of_the_dashboard(busy):
    chat, code = busy.get("/plan", lang="zh")["recommendations"]
    assert len(chat["derivation_lines"]) == 6, "the formula, and what decided"
    assert "向上取整" in chat["derivation_lines"][-2]
    assert chat["carries"]["target"] == pytest.approx(chat["carries"]["current"] * 11 / 8)
    assert (code["derivation_lines"], code["reason"]) == ([], "no_calibration")
    forecast = busy.get("/forecasts", history_hours=2)["forecasts"][0]
    assert len(forecast["times"]) == len(forecast["quantiles"]["0.5"]) == 144
    assert any(value is not None for value in forecast["history"]["values"])
    assert "with Prophet the back-test error is 0.108" in forecast["why_model"]
    assert [each["text"] for each in forecast["why"]] == ["plan.why_mix", "plan.why_helps"]
    chinese = busy.get("/forecasts", lang="zh")["forecasts"][0]
    assert "加入 Prophet 后回测误差为 0.108" in chinese["why_model"]
    assert chinese["why"] == forecast["why"]


def test_the_plan_of_a_service_has_one_sentence_and_names_an_open_incident_of_load(fresh):
    chat, code = fresh.get("/plan")["recommendations"]
    assert (chat["state"], chat["load_incidents"]) == ("grow_later", [])
    assert chat["sentence"] == "chat: 8 replicas running, 11 needed; start by 2026-05-04 14:11 UTC (44 GPUs)"
    assert chat["why"] == "sized for the forecast peak"
    assert code["sentence"] == "code: no plan yet: throughput not calibrated"
    lost = fresh.state.incident(INCIDENT)
    service = next(one for one in fresh.state.topology().of_kind(EntityKind.SERVICE) if one.name == "chat")
    surge = replace(lost, id="surge", hypotheses=(Hypothesis(service, "traffic-surge", 0.9),))
    fresh.state.commit(CycleCommit(fresh.state.cycles(limit=1)[0], incidents=(surge,)))
    for path, key in (("/plan", "recommendations"), ("/overview", "plan")):
        chat = fresh.get(path)[key][0]
        assert (chat["load_incidents"], chat["why"]) == (["surge"], None)
        assert "incident of load open (Traffic surge)" in chat["sentence"]


def test_kept_forecasts_are_those_of_a_known_service(busy):
    found = busy.get("/forecasts/llm/chat/kept", hours=24)
    assert found["entity"]["name"] == "chat"
    assert all(row["horizon_seconds"] > 0 for row in found["horizons"])
    assert busy.http.get("/api/v1/forecasts/-/nobody/kept").status_code == 404


def test_pools_of_prefill_and_decode_are_sized(busy):
    path = "/capacity/disaggregated?model=Llama-3.1-8B&gpu=H100&qps=40&prompt=2000&tokens=200&prefill_tp=1&decode_tp=1"
    found = busy.get(path + "&ttft=1&tpot=0.04&lang=zh")
    assert found["kept"]
    assert found["gpus"] == found["prefill"]["gpus"] + found["decode"]["gpus"]
    assert found["derivation"][1].startswith("预填充")
    assert busy.get(path + "&ttft=0.001")["reason"] == "prompt"
    for wrong, status in ((path.replace("H100", "abacus"), 400), (path.replace("qps=40", "qps=nan"), 422)):
        assert busy.http.get(f"/api/v1{wrong}").status_code == status


def test_series_of_a_gauge_and_of_a_histogram(busy):
    key = LOST_GPU.key
    found = busy.get("/signals/hw_accel_temperature_celsius/series", entity=key, step="1m")
    assert [row["entity"]["name"] for row in found["series"]] == [LOST_GPU.name]
    values = found["series"][0]["values"]
    assert values[-1] is None
    assert values[0] > 0
    found = busy.get("/signals/svc_ttft_seconds/series", step="5m", quantile=0.5)
    assert (found["quantile"], len(found["series"])) == (0.5, 2)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/signals/no_such_signal/series", 404),
        ("/signals/engine_up/series?entity=nonsense", 400),
        ("/signals/engine_up/series?step=soon", 400),
        ("/signals/engine_up/series?step=15s&start=2020-01-01T00:00:00Z", 400),
        ("/signals/engine_up/series?start=2026-05-04T13:00:00", 422),
        ("/alerts?limit=0", 422),
        ("/alerts?cursor=abc", 400),
        ("/alerts/none", 404),
        ("/incidents/none", 404),
        ("/nowhere", 404),
    ],
)
def test_invalid_requests_get_one_sentence(busy, path, status):
    answer = busy.http.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert set(answer.json()["error"]) == {"message", "hint"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/alerts?limit=0", "limit: expected at least 1, not '0'"),
        ("/alerts?limit=many", "limit: expected a whole number, not 'many'"),
        ("/alerts?lang=fr", "lang"),
        ("/forecasts/-/chat/kept?hours=0", "hours: expected more than 0"),
        ("/signals/engine_up/series?start=2026-05-04T13:00:00", "start: expected a timestamp with a time zone"),
        ("/signals/engine_up/series?start=soon", "start: expected a timestamp"),
    ],
)
def test_a_wrong_parameter_gets_a_plain_message(busy, path, expected):
    message = busy.http.get(f"/api/v1{path}").json()["error"]["message"]
    assert expected in message
    assert not re.search("Value error|should be|valid (integer|datetime)", message)


def test_language_comes_from_the_query_then_the_header(busy):
    path = f"/api/v1/incidents/{INCIDENT}"
    assert "掉卡" in busy.http.get(path, headers={"Accept-Language": "zh-CN,zh;q=0.9"}).json()["summary"]
    assert "lost" in busy.http.get(path, headers={"Accept-Language": "fr, en;q=0.5"}).json()["summary"]
    assert "lost" in busy.http.get(f"{path}?lang=en", headers={"Accept-Language": "zh"}).json()["summary"]


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_a_write_without_the_token_is_refused_and_audited(fresh, method, path, header):
    before = fresh.state.actions(), fresh.state.paused(), fresh.state.incident(INCIDENT)
    answer = fresh.http.request(method, f"/api/v1{path}", headers=header, json={"rule": "r", "duration_seconds": 60})
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "A change requires the admin token."
    record = fresh.state.audit(1)[0]
    assert (record.event, record.by) == (AuditEvent.WRITE_REFUSED, "testclient")
    assert record.subject == f"{method} /api/v1{path}"
    assert (fresh.state.actions(), fresh.state.paused(), fresh.state.incident(INCIDENT)) == before


def test_an_api_without_a_token_changes_nothing():
    world = World(Story(history=timedelta(minutes=2)), token="")
    answer = world.http.post("/api/v1/remediation/pause", headers={"Authorization": "Bearer "})
    assert answer.status_code == 401
    assert not world.state.paused()


def test_refusals_cannot_fill_the_audit(fresh):
    for _ in range(80):
        assert fresh.http.post("/api/v1/remediation/pause").status_code == 401
    refused = [record for record in fresh.state.audit() if record.event is AuditEvent.WRITE_REFUSED]
    assert len(refused) == 60


def test_a_person_acknowledges_approves_and_pauses(fresh):
    assert fresh.post(f"/incidents/{INCIDENT}/ack").json()["acknowledged_by"] == "ada"
    approved = fresh.post(f"/actions/{DRAIN}/approve").json()
    assert (approved["status"], approved["approved_by"]) == (ActionStatus.INTENDED.value, "ada")
    assert fresh.post(f"/actions/{DRAIN}/reject").status_code == 409
    assert fresh.post("/actions/none/approve").status_code == 404
    assert fresh.post("/remediation/pause").json() == {"paused": True}
    assert fresh.state.paused()
    assert fresh.post("/remediation/resume").json() == {"paused": False}
    events = {record.event for record in fresh.state.audit() if record.by == "ada"}
    assert events >= {AuditEvent.ACKNOWLEDGED, AuditEvent.ACTION_APPROVED, AuditEvent.PAUSED, AuditEvent.RESUMED}


def test_an_action_behind_ten_thousand_newer_ones_is_approved(fresh):
    (waits,) = [found for found in fresh.state.actions() if found.id == DRAIN]
    newer = tuple(replace(waits, id=f"n{number}", decided_at=NOW) for number in range(10_001))
    fresh.state.commit(CycleCommit(fresh.state.cycles(limit=1)[0], actions=newer))
    assert fresh.post(f"/actions/{DRAIN}/approve").json()["approved_by"] == "ada"
    assert fresh.post(f"/actions/{DRAIN}/reject").status_code == 409


def test_an_alert_is_resolved_by_hand_once(fresh):
    fingerprint = fresh.get("/alerts")["alerts"][0]["fingerprint"]
    found = fresh.post(f"/alerts/{fingerprint}/resolve").json()
    assert (found["state"], found["reason"]) == (AlertState.RESOLVED.value, "resolved_by_hand")
    assert fresh.post(f"/alerts/{fingerprint}/resolve").status_code == 409
    assert fresh.post("/alerts/none/resolve").status_code == 404


def test_a_silence_is_made_listed_and_removed(fresh):
    entity = {"cluster": "lab", "kind": "node", "namespace": None, "name": "node-3"}
    made = fresh.post("/silences", {"rule": "gpu-lost", "entity": entity, "duration_seconds": 600, "comment": "known"})
    assert made.status_code == 201
    assert made.json()["until"] == "2026-05-04T13:17:30Z"
    assert [row["id"] for row in fresh.get("/silences")] == [made.json()["id"]]
    assert fresh.http.request("DELETE", f"/api/v1/silences/{made.json()['id']}", headers=ADMIN).status_code == 200
    assert fresh.get("/silences") == []
    assert fresh.http.request("DELETE", "/api/v1/silences/none", headers=ADMIN).status_code == 404
    assert fresh.post("/silences", {"duration_seconds": 600}).status_code == 400
    assert fresh.post("/silences", {"rule": "r", "duration_seconds": -1}).status_code == 422


def test_a_silence_with_matchers_and_a_window_is_previewed_before_it_is_made(fresh):
    firing = [row for row in fresh.get("/alerts")["alerts"] if row["state"] == "firing"]
    clusters = sorted({row["entity"]["cluster"] for row in firing})
    body = {"matchers": [f'cluster=~"{"|".join(clusters)}"'], "duration_seconds": 600}
    shown = fresh.http.post("/api/v1/silences/preview", json=body).json()
    assert (shown["muted"], shown["firing"]) == (len(firing), len(firing))
    assert INCIDENT in shown["incidents"]
    assert fresh.get("/silences") == []
    window = {"start": "03:00", "end": "04:00", "days": ["sun"], "timezone": "Asia/Shanghai"}
    later = fresh.http.post("/api/v1/silences/preview", json={**body, "window": window}).json()
    assert (later["in_force"], later["next"]) == (False, "2026-05-09T19:00:00Z")
    made = fresh.post("/silences", {**body, "window": window, "dependents": True}).json()
    assert (made["window"], made["dependents"], made["in_force"]) == (window, True, False)
    assert fresh.get("/silences")[0]["matchers"] == [f'cluster=~"{"|".join(clusters)}"']


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"matchers": ["rule!=x"]}, 400),
        ({"matchers": ["rule=~("]}, 400),
        ({"matchers": ["rule"]}, 400),
        ({"rule": "r", "dependents": True}, 400),
        ({"matchers": ["a=b"] * 33}, 422),
        ({"rule": "r", "duration_seconds": 31 * 86400}, 400),
        ({"rule": "r", "window": {"start": "25:00", "end": "01:00"}}, 422),
        ({"rule": "r", "window": {"start": "22:00", "end": "01:00", "timezone": "Mars/Base"}}, 422),
    ],
)
def test_a_silence_that_cannot_be_meant_is_refused(fresh, body, status):
    assert fresh.post("/silences", {"duration_seconds": 600, **body}).status_code == status
    assert fresh.get("/silences") == []


def test_a_silence_of_another_source_is_listed_and_ends_there():
    planned = Silence("maintenance/night", None, None, NOW + timedelta(days=1), "configuration", source="maintenance")
    world = World(Story(history=timedelta(minutes=1)), maintenance=(planned,))
    assert [row["source"] for row in world.get("/silences")] == ["maintenance"]
    answer = world.http.request("DELETE", "/api/v1/silences/maintenance/night", headers=ADMIN)
    assert answer.status_code == 409


def test_windows_of_a_maintenance_calendar_are_listed_before_they_begin():
    world = World(Story(history=timedelta(minutes=1)))
    event = "BEGIN:VEVENT\nUID:1\nDTSTART:{:%Y%m%dT%H%M%SZ}\nDURATION:PT1H\nSUMMARY:move\nEND:VEVENT"
    text = "\n".join(["BEGIN:VCALENDAR", event.format(NOW + timedelta(hours=2)), "END:VCALENDAR"])
    calendar = MaintenanceCalendarSettings(name="moves", match=["cluster=edge"], url="https://calendar.example/x.ics")
    MaintenanceCalendars([calendar], world.state, lambda _item: text).run_due(NOW)
    (row,) = world.get("/silences")
    assert (row["source"], row["in_force"], row["comment"]) == ("calendar", False, "moves: move")
    assert world.http.request("DELETE", f"/api/v1/silences/{row['id']}", headers=ADMIN).status_code == 409


def test_reads_need_the_token_away_from_loopback():
    world = World(None, host="0.0.0.0", hosts=("*",))
    assert world.http.get("/api/v1/overview").status_code == 401
    assert world.http.get("/api/v1/overview", headers=ADMIN).status_code == 200
    assert world.http.get("/-/healthy").status_code == 200


def test_an_unknown_host_name_is_rejected(fresh):
    for host, status in (("evil.example", 400), ("localhost:8600", 200), ("127.0.0.1", 200), ("[::1]:8600", 200)):
        answer = fresh.http.get("/api/v1/version", headers={"Host": host})
        assert answer.status_code == status, host


def test_ready_follows_the_cycles(fresh, empty):
    assert fresh.http.get("/-/ready").status_code == 200
    fresh.clock.advance(timedelta(seconds=60))
    late = fresh.http.get("/-/ready")
    assert (late.status_code, late.json()["reason"]) == (503, "no_new_cycle")
    assert fresh.get("/overview")["monitoring"]["reason"] == "no_new_cycle"
    none = empty.http.get("/-/ready")
    assert (none.status_code, none.json()["reason"]) == (503, "no_cycle")
    assert empty.http.get("/-/healthy").json() == {"status": "healthy"}


def test_our_own_metrics_name_routes_not_ids(fresh):
    fresh.get(f"/incidents/{INCIDENT}")
    page = fresh.http.get("/metrics").text
    assert '/incidents/{incident_id}"' in page
    assert INCIDENT not in page


def test_openapi_describes_every_path(fresh):
    paths = fresh.http.get("/api/v1/openapi.json").json()["paths"]
    assert len(paths) >= 25
    assert all(operation.get("description") for path in paths.values() for operation in path.values())


def test_targets_are_listed_down_first(busy):
    found = busy.get("/health/targets", limit=3)
    assert (found["total"], found["up"]) == (24, 23)
    assert [row["up"] for row in found["targets"]] == [False, True, True]
    assert all(row["duration_seconds"] is None or math.isfinite(row["duration_seconds"]) for row in found["targets"])
