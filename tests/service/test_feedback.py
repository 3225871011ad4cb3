"""Verdicts through the API and the command line."""

import json
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from dashboards.components.format import observation
from outrider.audit import AuditEvent
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import AlertReason, AlertState, EntityKind, EntityRef, Priority
from outrider.ports import CycleCommit
from outrider.records.feedback import Feedback, Usefulness
from outrider.testing.names import LOST_GPU
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.cli.core import client
from service.cli.core.common import Context, Output
from service.cli.incidents import feedback
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from tests.service.api.test_api import ADMIN, NOW, World
from tests.service.cli.test_cli import answer, run

OTHER = {**ADMIN, "X-Outrider-User": "bob"}
LOST = "gpu-lost"


@pytest.fixture
def fresh():
    return World(Story(history=timedelta(minutes=3), alerts=3))


def fired(world):
    return next(one for one in world.get("/alerts")["alerts"] if one["state"] == "firing")


def give(world, alert, body, headers=ADMIN):
    return world.http.post(f"/api/v1/alerts/{alert['fingerprint']}/feedback", json=body, headers=headers)


def test_a_verdict_is_stored_with_its_alert_and_its_person(fresh):
    alert = fired(fresh)
    given = give(fresh, alert, {"verdict": "wrong_cause", "cause": LOST, "comment": "the card was out"}).json()
    assert given["changed"] == 1
    (found,) = fresh.get("/feedback")["feedback"]
    assert given["feedback"] == [found]
    assert (found["verdict"], found["cause"], found["by"]) == ("wrong_cause", LOST, "ada")
    assert (found["fingerprint"], found["rule"], found["starts_at"]) == (
        alert["fingerprint"], alert["rule"], alert["starts_at"],
    )  # fmt: skip
    assert fresh.state.audit(1)[0].event is AuditEvent.FEEDBACK_GIVEN


def test_a_second_verdict_replaces_that_of_the_same_person_only(fresh):
    alert = fired(fresh)
    give(fresh, alert, {"verdict": "useful"})
    assert give(fresh, alert, {"verdict": "useful"}).json()["changed"] == 0
    assert give(fresh, alert, {"verdict": "not_useful"}).json()["changed"] == 1
    give(fresh, alert, {"verdict": "useful"}, OTHER)
    give(fresh, alert, {"verdict": "useful", "by": "eve"}, OTHER)
    assert {(one["by"], one["verdict"]) for one in fresh.get("/feedback")["feedback"]} == {
        ("ada", "not_useful"), ("bob", "useful"), ("eve", "useful"),
    }  # fmt: skip
    (row,) = fresh.get("/feedback/precision")
    assert (row["rule"], row["judged"], row["useful"], row["precision"]) == (alert["rule"], 1, 1, 1.0)


def test_a_verdict_on_an_incident_covers_all_its_fired_alerts(fresh):
    members = fresh.state.incident(INCIDENT).alerts
    answered = fresh.post(f"/incidents/{INCIDENT}/feedback", {"verdict": "not_useful"})
    assert answered.status_code == 200, answered.text
    given = answered.json()["feedback"]
    assert {one["fingerprint"] for one in given} == set(members)
    assert {one["incident"] for one in given} == {INCIDENT}
    assert len(fresh.get("/feedback", incident=INCIDENT)["feedback"]) == len(members)
    assert len(fresh.get("/feedback", rule=given[0]["rule"], limit=1)["feedback"]) == 1
    assert fresh.get(f"/incidents/{INCIDENT}")["feedback"] == fresh.get("/feedback", incident=INCIDENT)["feedback"]


def test_an_earlier_occurrence_is_judged_by_its_start(fresh):
    alert = fresh.state.alert(fired(fresh)["fingerprint"])
    old = replace(
        alert, starts_at=NOW - timedelta(hours=5), state=AlertState.RESOLVED, ends_at=NOW - timedelta(hours=4)
    )
    waits = replace(alert, starts_at=NOW, state=AlertState.PENDING, reason=AlertReason.CONDITION_SEEN)
    fresh.state.commit(CycleCommit(fresh.state.cycles(1)[0], alerts=(old, waits)))
    path = {"fingerprint": alert.fingerprint}
    assert give(fresh, path, {"verdict": "useful"}).json()["feedback"][0]["starts_at"] == serialization.instant(
        alert.starts_at
    ), "the newest that fired"
    then = serialization.instant(old.starts_at)
    assert give(fresh, path, {"verdict": "useful", "starts_at": then}).json()["feedback"][0]["starts_at"] == then
    pending = give(fresh, path, {"verdict": "useful", "starts_at": serialization.instant(NOW)})
    assert (pending.status_code, "has not fired" in pending.text) == (400, True)
    never = give(fresh, path, {"verdict": "useful", "starts_at": "2020-01-01T00:00:00Z"})
    assert never.status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"verdict": "splendid"}, 422, "verdict"),
        ({"verdict": "useful", "cause": LOST}, 400, "belongs to the verdict wrong_cause"),
        ({"verdict": "wrong_cause", "cause": "gpu-lots"}, 400, "gpu-lost"),
        ({"verdict": "useful", "starts_at": "yesterday"}, 422, "starts_at"),
        ({"verdict": "useful", "mood": "bad"}, 422, "mood"),
    ],
)
def test_an_invalid_verdict_is_refused_with_a_sentence(fresh, body, status, message):
    refused = give(fresh, fired(fresh), body)
    assert refused.status_code == status
    assert message in refused.json()["error"]["message"]
    assert fresh.get("/feedback")["feedback"] == []


def test_verdicts_need_the_token_as_an_acknowledgement_does(fresh):
    for path in (f"/incidents/{INCIDENT}/feedback", f"/alerts/{fired(fresh)['fingerprint']}/feedback"):
        refused = fresh.http.post(f"/api/v1{path}", json={"verdict": "useful"})
        assert refused.status_code == 401
    unknown = fresh.post("/alerts/inc-nope/feedback", {"verdict": "useful"})
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (404, "no incident has the id 'inc-nope'")
    assert fresh.post("/incidents/nope/feedback", {"verdict": "useful"}).status_code == 404
    assert fresh.post("/alerts/nope/feedback", {"verdict": "useful"}).status_code == 404


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/.outrider/outrider.db"))
    with wiring_stores.stores(settings) as (state, metrics):
        Story(history=timedelta(minutes=2), alerts=2).fill(state, metrics)
        world = World(None)
        world.app.state.context = replace(world.app.state.context, state=state)
        for word in ("not_useful", "useful"):
            alert = fired(world)
            give(world, alert, {"verdict": word, "comment": "备注"}).raise_for_status()
    return tmp_path


def test_verdicts_and_precision_are_read_without_an_api(store):
    (found,) = answer("feedback", "list", "-o", "json", cwd=store)
    assert (found["verdict"], found["by"], found["comment"]) == ("useful", "ada", "备注")
    assert answer("feedback", "list", "--rule", "kv-cache-full", "-o", "json", cwd=store) == []
    (row,) = answer("feedback", "precision", "-o", "json", cwd=store)
    assert (row["rule"], row["judged"], row["precision"]) == (found["rule"], 1, 1.0)
    assert row["low"] == pytest.approx(0.2065, abs=1e-4)
    later = answer("feedback", "precision", "--since", "2030-01-01T00:00:00Z", "-o", "json", cwd=store)
    assert later == []
    table = run("feedback", "precision", "-o", "table", cwd=store).stdout
    assert "100% (21% - 100%)" in table
    assert "有用" in run("feedback", "list", "-o", "table", "--lang", "zh", cwd=store).stdout


def test_giving_feedback_needs_the_api_and_valid_arguments(store):
    done = run("feedback", "give", INCIDENT, "useful", "-o", "json", cwd=store)
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "no API responds" in error["message"]
    assert all(named in error["hint"] for named in ("outrider serve", "outrider demo", "--config"))
    nobody = answer("feedback", "give", "inc-nope", "useful", cwd=store, code=2)["error"]
    assert nobody["message"] == "no incident has the id 'inc-nope'"
    assert "outrider incidents list" in nobody["hint"]
    wrong = run("feedback", "give", INCIDENT, "splendid", "-o", "json", cwd=store)
    assert (wrong.returncode, "error" in json.loads(wrong.stdout)) == (2, True)
    spell = run("feedback", "give", INCIDENT, "useful", "--starts-at", "2026-05-04T12:00:00Z", "-o", "json", cwd=store)
    assert (spell.returncode, "applies to alerts" in spell.stdout) == (2, True)
    since = run("feedback", "list", "--since", "monday", "-o", "json", cwd=store)
    assert (since.returncode, "--since" in since.stdout) == (2, True)


def test_an_unknown_rule_or_incident_is_refused_and_an_empty_list_is_explained(store):
    no_rule = answer("feedback", "list", "--rule", "kv-cache-ful", cwd=store, code=2)["error"]
    assert 'did you mean "kv-cache-full"' in no_rule["message"]
    no_incident = answer("feedback", "list", "--incident", "inc-none", cwd=store, code=2)["error"]
    assert "outrider incidents list" in no_incident["hint"]
    for options in (("--rule", "kv-cache-full"), ("--since", "2030-01-01T00:00:00Z")):
        shown = run("feedback", "list", *options, "-o", "table", cwd=store).stdout
        assert ("no verdict matches" in shown, "no verdicts yet" in shown) == (True, False)


def test_a_gpu_has_its_short_name_in_the_feedback_table(store, monkeypatch, capsys):
    (found,) = answer("feedback", "list", "-o", "json", cwd=store)
    card = {**found, "entity": serialization.entity(LOST_GPU)}
    monkeypatch.setattr("service.cli.core.client.write", lambda *_: {"changed": 1, "feedback": [card]})
    monkeypatch.chdir(store)
    context = Context(config=None, output=Output.TABLE, language="en", progress=False)
    feedback.give(context, INCIDENT, Usefulness.USEFUL)
    assert f"  {LOST_GPU.name[:12]}…{LOST_GPU.name[-6:]}  " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "language", "shown"),
    [
        (2, "en", "verdicts stored: 2"),
        (1, "en", "verdicts stored: 1 of 2 alerts"),
        (0, "en", "no change"),
        (2, "zh", "已写入评价：2 条"),
        (1, "zh", "已写入评价：2 条告警中的 1 条"),
        (0, "zh", "没有变化"),
    ],
)
def test_the_effect_of_a_verdict_is_reported(store, monkeypatch, capsys, changed, language, shown):
    with wiring_stores.state_reader(
        Settings(store=StoreSettings(url=f"sqlite:///{store}/.outrider/outrider.db"))
    ) as state:
        given = [serialization.feedback(one) for one in state.feedback()] * 2
    monkeypatch.setattr("service.cli.core.client.write", lambda *_: {"changed": changed, "feedback": given})
    monkeypatch.chdir(store)
    context = Context(config=None, output=Output.TABLE, language=language, progress=False)
    feedback.give(context, INCIDENT, Usefulness.USEFUL)
    *_, verdict, later = capsys.readouterr().out.splitlines()
    assert verdict.startswith(shown)
    assert later.startswith("The incident is still open" if language == "en" else "事件仍未恢复")


def test_a_repeated_verdict_covers_alerts_added_since(fresh):
    found = fresh.state.incident(INCIDENT)
    late = replace(
        fresh.state.alert(found.alerts[0]), fingerprint="late0", rule="users-wait", incident=INCIDENT, starts_at=NOW
    )
    fresh.post(f"/incidents/{INCIDENT}/feedback", {"verdict": "useful"})
    grown = replace(found, alerts=(*found.alerts, "late0"))
    fresh.state.commit(CycleCommit(fresh.state.cycles(1)[0], alerts=(late,), incidents=(grown,)))
    assert "users-wait" not in {row["rule"] for row in fresh.get("/feedback/precision")}
    again = fresh.post(f"/incidents/{INCIDENT}/feedback", {"verdict": "useful"}).json()
    assert again["changed"] == 1
    assert "users-wait" in {row["rule"] for row in fresh.get("/feedback/precision")}


def _judged(folder, kind, useful, useless):
    """A store with so many verdicts on alerts of ``anomaly``, each an occasion of its own."""
    with wiring_stores.stores(Settings(store=StoreSettings(url=f"sqlite:///{folder}/.outrider/outrider.db"))) as (
        state,
        _,
    ):
        words = [Usefulness.USEFUL] * useful + [Usefulness.NOT_USEFUL] * useless
        state.save_feedback([
            Feedback(f"{kind}{number}", NOW - timedelta(hours=number + 1), "anomaly",
                     EntityRef("c", kind, None, f"{kind}-{number}"), Priority.P3, word, "ada", NOW)
            for number, word in enumerate(words)
        ])  # fmt: skip


def test_a_budget_needs_verdicts_and_reports_their_number(store):
    none = answer("feedback", "propose", "anomaly", cwd=store, code=1)
    assert (none["reason"], none["budgets"]) == ("too_few_for_budget", [])
    assert "0 occurrences have a verdict" in none["said"]
    assert "10 and 3" in none["said"]
    _judged(store, EntityKind.GPU, 2, 4)
    few = answer("feedback", "propose", "anomaly", cwd=store, code=1)
    assert (few["reason"], few["judged"], few["useless"]) == ("too_few_for_budget", 6, 4)
    (gpu,) = few["budgets"]
    assert (gpu["enough"], gpu["judged"], gpu["judged_not_useful"], gpu["proposed"]) == (False, 6, 4, gpu["now"])
    shown = run("feedback", "propose", "anomaly", "-o", "table", cwd=store).stdout
    assert "detect.alarms_per_entity_day.gpu" in shown
    assert "6 occurrences have a verdict, 4 not useful" in shown
    assert (
        "不基于指标数值" not in run("feedback", "propose", "anomaly", "-o", "table", "--lang", "zh", cwd=store).stdout
    )


def test_only_an_entity_kind_with_enough_verdicts_gets_a_budget(store):
    _judged(store, EntityKind.GPU, 4, 8)
    _judged(store, EntityKind.REPLICA, 0, 2)
    found = answer("feedback", "propose", "anomaly", cwd=store)
    gpu, other = sorted(found["budgets"], key=lambda one: one["key"])
    assert (found["reason"], gpu["enough"], other["enough"]) == ("budget", True, False)
    assert gpu["proposed"] == pytest.approx(gpu["now"] / 2, rel=0.05)
    assert other["proposed"] == other["now"]
    later = answer("feedback", "propose", "anomaly", "--since", "2030-01-01T00:00:00Z", cwd=store, code=1)
    assert later["judged"] == 0


def test_useful_alarms_keep_their_budget(store):
    _judged(store, EntityKind.GPU, 9, 3)
    found = answer("feedback", "propose", "anomaly", cwd=store, code=1)
    assert (found["reason"], found["budgets"][0]["enough"]) == ("budget_stays", True)


def test_an_unknown_id_is_reported_with_the_command_that_lists_ids(store, monkeypatch):
    (store / "token").write_text("t")
    (store / "outrider.yaml").write_text(f"api: {{token_file: {store}/token}}\n")
    world = World(Story(history=timedelta(minutes=1)))

    def through_api(method, url, *, json, params, headers, timeout):
        del headers, timeout
        return world.http.request(method, httpx.URL(url).path, json=json, params=params, headers=ADMIN)

    monkeypatch.setattr(httpx, "request", through_api)
    context = Context(config=store / "outrider.yaml", output=Output.JSON, language="en", progress=False)
    with pytest.raises(UsageError) as refused:
        client.write(context, "POST", "/alerts/deadbeef/feedback", {"verdict": "useful"})
    assert refused.value.message == "no alert has the fingerprint 'deadbeef'"
    assert refused.value.hint == "outrider alerts list shows them"


def test_an_incident_is_shown_with_the_evidence_of_its_cause(store):
    story = answer("incidents", "show", INCIDENT, cwd=store)
    evidence = story["hypotheses"][0]["evidence"]
    shown = run("incidents", "show", INCIDENT, "-o", "table", cwd=store).stdout
    lines = shown.split("Evidence:\n")[1].splitlines()
    assert len(lines) == len(evidence) > 0
    assert lines == [f"- {observation(one, 'en')}" for one in evidence]
    assert "证据：" in run("incidents", "show", INCIDENT, "-o", "table", "--lang", "zh", cwd=store).stdout
