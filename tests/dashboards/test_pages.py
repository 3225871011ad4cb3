"""Every dashboard page in Streamlit's own test harness, against a real API on loopback."""

import re
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
import uvicorn
from streamlit.testing.v1 import AppTest

import dashboards
from dashboards import client, session
from outrider.clock import ManualClock
from outrider.model import (
    ActionStatus,
    AlarmRate,
    BreakerState,
    DecisionReason,
    DetectorStatus,
    EntityKind,
    EntityRef,
    GuardAnswer,
    NoVerdictReason,
    ShadowFinding,
    Stage,
    StageReason,
    Verdict,
)
from outrider.ports import CycleCommit
from outrider.records.drill import Drill
from outrider.testing.names import NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from store.memory import MemoryChangeLog, MemoryMetricStore, MemoryStateStore

APP = str(Path(dashboards.__file__).with_name("app.py"))
TOKEN = "correct horse"
REPLICA = EntityRef("prod", EntityKind.REPLICA, "serving", "somewhere-else")


class Api:
    """A running API and its state."""

    def __init__(self, story: Story | None, **settings: Any) -> None:
        self.state, metrics = MemoryStateStore(), MemoryMetricStore()
        if story is not None:
            story.fill(self.state, metrics)
        self.ledger = MemoryChangeLog()
        extras = ApiExtras(clock=ManualClock(NOW + timedelta(seconds=5)), change_log=self.ledger)
        app = create_app(self.state, metrics, ApiSettings(token=TOKEN, **settings), extras)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def serve(story: Story | None, **settings: Any) -> Iterator[Api]:
    api = Api(story, **settings)
    yield api
    api.close()


@pytest.fixture(autouse=True)
def _main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running page becomes the main module, which processes started by later tests would run again."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="module")
def empty() -> Iterator[Api]:
    yield from serve(None)


@pytest.fixture(scope="module")
def many() -> Iterator[Api]:
    yield from serve(Story(history=timedelta(minutes=30), alerts=3000))


@pytest.fixture(scope="module")
def incident() -> Iterator[Api]:
    """Read-only API."""
    yield from serve(Story(history=timedelta(minutes=30)))


@pytest.fixture
def fresh() -> Iterator[Api]:
    yield from serve(Story(history=timedelta(minutes=2)))


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    st.cache_data.clear()
    session.options.cache_clear()
    yield
    client._connections().close()
    st.cache_data.clear()
    st.cache_resource.clear()
    session.options.cache_clear()


def only(name: str) -> None:
    """A script that draws one page: the test harness cannot switch to pages that are functions."""
    from dashboards import session
    from dashboards.views import capacity, detectors, drills, incident, oncall, silences

    pages = {
        "incident": incident,
        "capacity": capacity,
        "drills": drills,
        "detectors": detectors,
        "oncall": oncall,
        "silences": silences,
    }
    pages[name].page(session.viewer())


@pytest.fixture
def opened(monkeypatch):
    def open_page(url: str, page: str = "", *, token: str = "", **query: str) -> AppTest:
        monkeypatch.setattr("sys.argv", ["app.py", "--api-url", url])
        if page:
            app = AppTest.from_function(only, default_timeout=30, args=(page,))
        else:
            app = AppTest.from_file(APP, default_timeout=30)
        for name, value in query.items():
            app.query_params[name] = value
        if token:
            app.session_state["token"] = token
        return checked(app.run())

    return open_page


def checked(app: AppTest) -> AppTest:
    assert not app.exception, app.exception[0].stack_trace
    return app


def text(app: AppTest) -> str:
    """All readable text of the page, tags removed."""
    return re.sub(r"<[^>]+>", " ", " ".join(node.proto.body for node in app.get("html")))


def charts(app: AppTest) -> int:
    return len(app.get("plotly_chart"))


def button(app: AppTest, label: str):
    return next(result for result in app.button if result.label == label)


def test_overview_shows_violated_slos(incident, opened):
    page = text(opened(incident.url))
    assert "SLO violated: 1 of 2 services" in page
    assert "GPU lost" in page
    assert "node-3, GPU 2" in page
    assert "waiting for approval" in page
    assert "no plan yet: throughput not calibrated" in page


def test_overview_in_chinese(incident, opened):
    page = text(opened(incident.url, lang="zh"))
    assert "违反 SLO：2 个服务中的 1 个" in page
    assert "未恢复的事件" in page
    assert "GPU 掉卡" in page


def test_the_language_selection_overrides_the_address(incident, opened):
    app = opened(incident.url, lang="en")
    app.get("button_group")[0].set_value("zh")
    assert "违反 SLO：2 个服务中的 1 个" in text(checked(app.run()))


@pytest.mark.slow
def test_a_link_with_the_incident_opens_its_page(incident, opened):
    page = text(opened(incident.url, incident=INCIDENT))
    assert "Root cause" in page
    assert "Confidence 94 %" in page
    assert "根因" in text(opened(incident.url, incident=INCIDENT, lang="zh"))


def test_incident_page_shows_cause_evidence_and_alternatives_ruled_out(incident, opened):
    app = opened(incident.url, "incident", incident=INCIDENT)
    page = text(app)
    for wanted in (
        "GPUs visible on the node: 7, expected 8",
        "ruled out because",
        "Owner: hardware team",
        "docs/runbooks/gpu-lost.md",
        "Node lost",
        "other targets of the node answer",
    ):
        assert wanted in page
    assert charts(app) == 8
    assert "Grouped alerts: 3" in page
    assert all(result.disabled for result in app.button if result.label in ("Acknowledge", "Approve", "Reject"))


@pytest.mark.slow
def test_an_action_for_two_people_shows_who_approved_and_takes_the_viewers_name(fresh, opened):
    (drain,) = [action for action in fresh.state.actions() if action.status is ActionStatus.WAITING_APPROVAL]
    two = replace(drain, id="two", approvals_needed=2, approvals=("ann",))
    fresh.state.commit(CycleCommit(fresh.state.cycles(limit=1)[0], actions=(two,)))
    app = opened(fresh.url, token=TOKEN)
    assert "1 of 2 approvals (ann)" in text(app)
    app.button("yes-two").click()
    checked(app.run())
    assert "an approval needs a name" in text(app)
    next(field for field in app.text_input if field.label == "Your name").set_value("张伟")
    checked(app.run())
    app.button("yes-two").click()
    checked(app.run())
    approved = fresh.state.action("two")
    assert (approved.status, approved.approvals) == (ActionStatus.INTENDED, ("ann", "张伟"))


@pytest.mark.slow
def test_a_recommendation_has_no_approval_button(fresh, opened):
    (drain,) = [action for action in fresh.state.actions() if action.status is ActionStatus.WAITING_APPROVAL]
    objection = GuardAnswer("freeze", Verdict.REFUSED, DecisionReason.FREEZE, "holidays")
    idea = replace(drain, id="idea", status=ActionStatus.PROPOSED, objections=(objection,))
    fresh.state.commit(CycleCommit(fresh.state.cycles(limit=1)[0], actions=(idea,)))
    app = opened(fresh.url, "incident", token=TOKEN, incident=INCIDENT)
    assert "frozen (holidays)" in text(app)
    assert not [found for found in app.button if found.key == "yes-idea"]
    app.button("ask-idea").click()
    checked(app.run())
    assert fresh.state.action("idea").status is ActionStatus.WAITING_APPROVAL


@pytest.mark.slow
def test_a_person_pauses_resumes_and_resets_the_breaker(fresh, opened):
    breaker = BreakerState(opened_at=NOW, unsuccessful=4, performed=6)
    fresh.state.commit(CycleCommit(fresh.state.cycles(limit=1)[0], breaker=breaker))
    app = opened(fresh.url, token=TOKEN)
    assert "4 of 6 actions failed or did not help" in text(app)
    assert "Autonomy: approve · dry run" in text(app)
    app.button("remediation-reset").click()
    checked(app.run())
    assert not fresh.state.breaker().is_open
    app.button("remediation-pause").click()
    checked(app.run())
    assert fresh.state.paused()
    assert "Remediation is paused" in text(app)
    app.button("remediation-resume").click()
    checked(app.run())
    assert not fresh.state.paused()


@pytest.mark.slow
def test_without_the_token_nobody_pauses(fresh, opened):
    app = opened(fresh.url)
    assert app.button("remediation-pause").disabled


@pytest.mark.slow
def test_with_the_token_a_person_acknowledges_and_approves(fresh, opened):
    app = opened(fresh.url, "incident", incident=INCIDENT, token=TOKEN)
    checked(button(app, "Acknowledge").click().run())
    assert fresh.state.incident(INCIDENT).acknowledged_by == "admin"
    checked(button(app, "Approve").click().run())
    assert fresh.state.actions()[0].status.value != "waiting_approval"
    assert "Approve" not in [result.label for result in checked(app.run()).button]


@pytest.mark.slow
def test_a_wrong_token_is_reported(fresh, opened):
    whole = opened(fresh.url, token="wrong")
    assert "Wrong admin token." in [shown.value for shown in whole.error]
    app = opened(fresh.url, "incident", incident=INCIDENT, token="wrong")
    assert button(app, "Acknowledge").disabled
    assert fresh.state.incident(INCIDENT).acknowledged_at is None


def test_an_incident_opens_from_the_list(incident, opened):
    app = opened(incident.url, "incident")
    assert "Open incidents: 1" in text(app)
    checked(button(app, "Open").click().run())
    assert "Root cause" in text(app)
    checked(button(app, "All incidents").click().run())
    assert "Open incidents: 1" in text(app)


def test_an_unknown_incident_is_reported(incident, opened):
    assert "No such incident" in text(opened(incident.url, "incident", incident="none"))


def test_capacity_page_shows_forecast_plan_and_arithmetic(incident, opened):
    app = opened(incident.url, "capacity")
    page = text(app)
    assert "chat: 8 replicas running, 11 needed; start by 2026-05-04 14:11 UTC (44 GPUs)" in page
    assert "rounded up to 11 replicas" in page
    assert "with Prophet the back-test error is 0.108" in page
    assert charts(app) == 1
    app.selectbox[0].set_value("code")
    assert "code: no plan yet" in text(checked(app.run()))


@pytest.mark.parametrize(
    ("page", "message"),
    [("", "Waiting for the first data"), ("incident", "No incidents yet."), ("capacity", "No capacity plan yet")],
)
def test_an_empty_store_is_reported(empty, opened, page, message):
    result = text(opened(empty.url, page))
    assert message in result
    assert "No open incidents" not in result


@pytest.mark.parametrize("page", ["", "incident", "capacity"])
def test_without_an_api_one_card_reports_it(opened, page):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    result = text(opened(f"http://127.0.0.1:{port}", page))
    assert result.count("The Outrider API is unreachable.") == 1
    assert "outrider serve" in result


def test_many_alerts_are_counted_not_listed(many, opened):
    app = opened(many.url)
    assert "Alerts firing: 1000+" in text(app)
    assert len(text(app)) < 20_000


def test_the_detectors_page_reports_that_no_cycle_has_run(empty, opened):
    assert "No cycle has run yet." in text(opened(empty.url, "detectors"))


def test_the_detectors_page_shows_stages_and_missing_verdicts(fresh, opened):
    held = ShadowFinding(EntityRef("prod", EntityKind.GPU, None, "GPU-odd<b>"), ("hw_accel_power_watts",), NOW)
    tried = DetectorStatus(
        "seasonal-gpu", EntityKind.GPU, Stage.SHADOW, StageReason.ON_TRIAL, NOW - timedelta(hours=3), 8, 1,
        {NoVerdictReason.NO_EXPECTATION: 2}, None, 43200.0, 172800.0, AlarmRate(0.25, 0.5, 1.2, 9.0), (held,),
    )  # fmt: skip
    ready = DetectorStatus(
        "liveness", EntityKind.REPLICA, Stage.ALERTING, StageReason.NEEDS_NO_PAST, NOW,
        everyone_silent=NoVerdictReason.NO_VALUES,
    )  # fmt: skip
    newest = fresh.state.cycles(limit=1)[0]
    fresh.state.commit(CycleCommit(replace(newest, id="detectors"), detector_statuses=(tried, ready)))
    page = text(opened(fresh.url, "detectors"))
    for part in ("1 of 2 detectors alerting; 1 in shadow mode", "0.5 of 2 d", "0.5, budget 0.25", "no baseline yet 2"):
        assert part in page
    assert "all: no data" in page
    assert "GPU-odd&lt;b&gt;" in page
    assert "影子运行" in text(opened(fresh.url, "detectors", lang="zh"))


def test_a_silence_is_previewed_made_and_ended_on_its_page(fresh, opened):
    app = opened(fresh.url, "silences", token=TOKEN)
    assert "No silences." in text(app)
    app.text_area(key="silence_matchers").input('rule=~".+"')
    checked(app.button(key="silence-preview").click().run())
    assert "Would mute" in text(app)
    assert not fresh.state.silences(NOW)
    app.text_input(key="silence_comment").input("<b>upgrade</b>")
    checked(app.button(key="silence-create").click().run())
    (silence,) = fresh.state.silences(NOW)
    assert [str(matcher) for matcher in silence.matchers] == ['rule=~".+"']
    page = text(app)
    assert "&lt;b&gt;upgrade&lt;/b&gt;" in page
    checked(app.button(key=f"silence-end-{silence.id}").click().run())
    assert not fresh.state.silences(NOW)


def test_a_silence_of_everything_is_refused_on_the_page_with_the_reason(fresh, opened):
    app = opened(fresh.url, "silences", token=TOKEN, lang="zh")
    app.text_area(key="silence_matchers").input("rule!=x")
    app.button(key="silence-create").click().run()
    assert "select every alert" in app.error[0].value
    assert not fresh.state.silences(NOW)


def test_the_drill_page_explains_why_drills_are_unavailable(empty, opened):
    page = text(opened(empty.url, "drills"))
    assert "Fault injection is not available here." in page
    assert "outrider demo" in page
    assert "尚无演练记录" in text(opened(empty.url, "drills", lang="zh"))


def test_the_drill_page_compares_ground_truth_and_findings(fresh, opened):
    (result,) = fresh.state.incidents()
    cause = result.suspected_cause
    right = Drill(
        "a", cause.fault, cause.entity, 7, result.opened_at - timedelta(seconds=30), NOW - timedelta(seconds=5), "ann"
    )
    missed = Drill("b", "engine-hung", REPLICA, 7, NOW - timedelta(hours=1), NOW - timedelta(minutes=50), "ann")
    begun = Drill("c", "gpu-lost", REPLICA, 7, NOW - timedelta(seconds=20), NOW + timedelta(minutes=9), "admin")
    for drill in (right, missed, begun):
        fresh.state.save_drill(drill)
    page = text(opened(fresh.url, "drills"))
    assert "Truth" in page
    assert "✓" in page
    assert "after 30 s" in page
    assert page.count("not detected") == 1
    assert "not yet" in page, "what is under way may still be found"
    assert "started by an administrator" in page
    assert "Engine hung" in page
    app = opened(fresh.url, "drills")
    assert [result.label for result in app.button] == ["Stop the drill"]
    assert app.button[0].disabled


def test_a_negative_state_without_an_incident_is_not_a_failure(fresh, opened):
    def state(name, entity, start, end):
        return Drill(name, "engine-idle", entity, 7, start, end, "schedule", game_day="tuesday", negative=True)

    (result,) = fresh.state.incidents()
    fresh.state.save_drill(state("a", REPLICA, NOW - timedelta(hours=1), NOW - timedelta(minutes=50)))
    page = text(opened(fresh.url, "drills"))
    assert "correctly no incident" in page
    assert "no fault" in page
    assert "✕" not in page
    cause = result.suspected_cause.entity
    fresh.state.save_drill(state("b", cause, result.opened_at - timedelta(seconds=30), NOW + timedelta(minutes=9)))
    st.cache_data.clear()
    page = text(opened(fresh.url, "drills"))
    assert "false incident after 30 s" in page
    assert "started by game day tuesday" in page
    assert "演练日 tuesday" in text(opened(fresh.url, "drills", lang="zh"))


def test_audit_findings_are_on_the_overview_in_the_viewers_language(fresh, opened):
    assert "Workload audit" not in text(opened(fresh.url))
    facts = {"found": {"en": "No readiness <probe>.", "zh": "没有就绪探针。"}, "do": {"en": "Add one.", "zh": "添加。"}}
    finding = {"rule": "x", "severity": "high", "namespace": "serving", "workload": "chat", **facts}
    fresh.ledger.put_document("workload_audit", {"findings": [finding]}, NOW)
    st.cache_data.clear()
    shown = text(opened(fresh.url))
    assert "Workload audit: 1 finding" in shown
    assert "serving/chat" in shown
    assert "Add one." in shown
    assert "&lt;probe&gt;" in shown


@pytest.mark.slow
def test_feedback_is_sent_from_the_incident_page(fresh, opened):
    app = opened(fresh.url, "incident", token=TOKEN, incident=INCIDENT)
    assert "No feedback yet" in text(app)
    app.selectbox(key=f"judge-cause-{INCIDENT}").select("gpu-lost")
    app.text_input(key=f"judge-comment-{INCIDENT}").input("<b>the card</b>")
    app.text_input(key="judge-name").input("ann")
    checked(app.button(key=f"judge-wrong_cause-{INCIDENT}").click().run())
    given = fresh.state.feedback(incident=INCIDENT)
    assert len(given) == len(fresh.state.incident(INCIDENT).alerts) > 1
    assert {(one.verdict, one.cause, one.comment, one.by) for one in given} == {
        ("wrong_cause", "gpu-lost", "<b>the card</b>", "ann")
    }
    assert f"ann: wrong cause · {len(given)} alerts" in text(app)
    assert "&lt;b&gt;the card" in text(app)
    one = fresh.state.incident(INCIDENT).alerts[0]
    app.selectbox(key=f"judge-about-{INCIDENT}").select(one)
    checked(app.button(key=f"judge-useful-{INCIDENT}").click().run())
    (changed,) = [each for each in fresh.state.feedback(incident=INCIDENT) if each.verdict == "useful"]
    assert (changed.fingerprint, changed.cause) == (one, None), "the right cause goes with a wrong one alone"


def test_without_the_token_there_is_no_feedback(incident, opened):
    app = opened(incident.url, "incident", incident=INCIDENT, lang="zh")
    buttons = [button(app, label) for label in ("有用", "无用", "根因有误")]
    assert all(one.disabled for one in buttons)
    assert "还没有评价" in text(app)
