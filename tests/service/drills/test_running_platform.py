"""Drills on a running platform: scoring, marking, game days and refusals."""

import os
import signal
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outrider.audit import AuditEvent
from outrider.clock import rfc3339
from outrider.errors import UnavailableError, UsageError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Fact,
    Hypothesis,
    Incident,
    Layer,
    Message,
    NotifyReason,
    Priority,
    Verdict,
)
from outrider.ports import CycleCommit
from outrider.records.drill import Drill, DrillWindow
from service.config.settings import GameDaySettings, Settings
from service.drills import remote_drill, running_platform, scenario_choice
from service.drills.control import FaultControl
from service.engine import drill_marking
from service.runtime import game_days
from simulator.servers.request_parsing import MOST_SECONDS, duration
from store.memory import MemoryStateStore

T0 = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ENGINE = EntityRef("main", EntityKind.REPLICA, "llm", "chat-0")
NODE = EntityRef("main", EntityKind.NODE, None, "node-1")
ELSEWHERE = EntityRef("other", EntityKind.NODE, None, "node-9")


def drill(name: str, start: datetime = T0, *, entity: EntityRef = ENGINE, **more) -> Drill:
    fault = more.pop("fault", "engine-hung")
    return Drill(name, fault, entity, 7, start, start + 10 * MINUTE, "ann", path=(entity, NODE), **more)


def alert(entity: EntityRef, name: str = "a") -> Alert:
    return Alert(name, "rule", Priority.P1, entity, AlertState.FIRING, AlertReason.WAITING_TIME_OVER, T0, T0)


def incident(name: str, opened: datetime, priority: Priority = Priority.P1, cause: EntityRef | None = NODE) -> Incident:
    causes = (Hypothesis(cause, "node-lost", 0.9),) if cause else ()
    return Incident(name, Layer.ENGINE, priority, opened, causes, (), ("a",), (), opened)


def message(name: str | None, priority: Priority = Priority.P2) -> Message:
    return Message("m", "im", NotifyReason.OPENED, priority, name, "title", "body", T0)


def store(*incidents: Incident, messages: tuple[Message, ...] = ()) -> MemoryStateStore:
    state = MemoryStateStore()
    cycle = CycleRecord("c", T0, 0.1, 1, 1, 1, 0, 0, 0)
    state.commit(CycleCommit(cycle=cycle, incidents=incidents, messages=messages))
    return state


def test_one_incident_counts_for_one_of_two_overlapping_drills() -> None:
    state = store(incident("i", T0 + 3 * MINUTE))
    first, second = drill("first"), drill("second", T0 + MINUTE, entity=NODE)
    results = running_platform.judge(state, [second, first], [])
    assert [(result["id"], result["incident"]) for result in results] == [("second", None), ("first", "i")]


@pytest.mark.parametrize(
    ("opened", "right"),
    [
        ([], True),
        ([incident("i", T0 + MINUTE)], False),
        ([incident("i", T0 + MINUTE, Priority.P3)], True),
        ([incident("i", T0 + 20 * MINUTE)], True),
        ([incident("i", T0 + MINUTE, cause=ELSEWHERE)], True),
    ],
)
def test_a_negative_state_passes_without_a_high_priority_incident(opened: list[Incident], right: bool) -> None:
    state = drill("idle", fault="engine-idle", negative=True)
    (result,) = running_platform.judge(store(*opened), [state], [])
    assert result["negative"]
    assert (result["passed"], result["detected"]) == (right, not right)


def test_the_incident_of_a_fault_does_not_fail_a_concurrent_negative_state() -> None:
    state = store(incident("i", T0 + 3 * MINUTE))
    fault, idle = drill("fault"), drill("idle", fault="engine-idle", negative=True)
    results = {result["id"]: result for result in running_platform.judge(state, [fault, idle], [])}
    assert results["fault"]["incident"] == "i"
    assert results["idle"]["passed"]


def test_a_message_of_any_priority_counts_as_notified() -> None:
    opened = incident("i", T0 + MINUTE, Priority.P2)
    (result,) = running_platform.judge(store(opened, messages=(message("i"),)), [drill("a")], [])
    assert result["notified"]
    (result,) = running_platform.judge(store(opened), [drill("a")], [])
    assert not result["notified"]


def act(kind: ActionKind, minutes: float) -> Action:
    at = T0 + minutes * MINUTE
    return Action(
        "act-1", "session", kind, ENGINE, {}, "i", False, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS,
        ActionStatus.DONE, at, started_at=at, ended_at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "minutes", "right"),
    [
        (ActionKind.RESTART_POD, 2, True),
        (ActionKind.RESTART_POD, 3.5, False),  # the pod was starting already
        (ActionKind.SCALE, 2, False),  # not in the playbook
        (ActionKind.SHIFT_TRAFFIC, 2, False),  # it starts no pod
    ],
)
def test_a_drill_is_remediated_by_an_action_that_can_have_ended_it(kind, minutes, right) -> None:
    state = store(incident("i", T0 + MINUTE))
    state.commit(CycleCommit(cycle=CycleRecord("d", T0, 0.1, 1, 1, 1, 0, 0, 0), actions=(act(kind, minutes),)))
    recovered = {"id": "a", "recovered_at": rfc3339(T0 + 4 * MINUTE), "pod_created_at": rfc3339(T0 + 3 * MINUTE)}
    (result,) = running_platform.judge(state, [drill("a")], [recovered])
    assert (result["remediated"], result["recovered_at"]) == (right, recovered["recovered_at"])


def test_decisions_see_only_time_cluster_and_name_of_a_drill() -> None:
    assert [field.name for field in fields(DrillWindow)] == ["cluster", "starts_at", "ends_at", "name"]
    state = MemoryStateStore()
    state.save_drill(drill("engine-hung@1", game_day="tuesday"))
    (window,) = state.drill_windows(T0)
    assert window == DrillWindow("main", T0, T0 + 10 * MINUTE, "tuesday")


def test_only_drills_read_the_ground_truth() -> None:
    root = Path(remote_drill.__file__).parents[2]
    parts = ("alerts", "collectors", "detectors", "planner", "remediation", "reports", "service")
    files = {file.relative_to(root).as_posix(): file for part in parts for file in (root / part).rglob("*.py")}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    assert {name for name, text in texts.items() if ".drills(" in text} == {"service/api/routers/drills.py"}
    assert {name for name, text in texts.items() if "control/faults" in text} == {"service/drills/control.py"}
    importers = {name for name, text in texts.items() if "import FaultControl" in text}
    assert importers == {
        "service/api/routers/drills.py",
        "service/runtime/game_days.py",
        "service/drills/running_platform.py",
    }


@pytest.mark.parametrize(
    ("cause", "entity", "marked"),
    [(NODE, NODE, True), (ELSEWHERE, NODE, False), (None, NODE, True), (None, ELSEWHERE, False)],
)
def test_incidents_of_the_drills_cluster_are_marked(cause: EntityRef | None, entity: EntityRef, marked: bool) -> None:
    windows = [drill("a").window]
    (result,) = drill_marking.mark([message("i")], [incident("i", T0 + MINUTE, cause=cause)], [alert(entity)], windows)
    assert result.title.startswith("DRILL") is marked
    (plain,) = drill_marking.mark([message(None)], [], [], windows)
    assert plain == message(None)
    (late,) = drill_marking.mark([message("i")], [incident("i", T0 + 13 * MINUTE)], [alert(NODE)], windows)
    assert late == message("i")


def test_an_sms_about_a_drill_is_marked_too() -> None:
    page = replace(message("i"), facts={Fact.WHAT: "GPU lost", Fact.WHERE: "node-1"})
    (result,) = drill_marking.mark([page], [incident("i", T0 + MINUTE)], [alert(NODE)], [drill("a").window])
    assert result.facts == {Fact.WHAT: "DRILL: GPU lost", Fact.WHERE: "node-1"}


@pytest.mark.parametrize(("cause", "name"), [(NODE, "drill"), (ELSEWHERE, None), (None, None)])
def test_an_incident_has_the_drill_of_its_cause(cause: EntityRef | None, name: str | None) -> None:
    windows = [drill("a").window]
    assert drill_marking.name_of(incident("i", T0 + MINUTE, cause=cause), windows) == name
    assert drill_marking.name_of(incident("i", T0 + 13 * MINUTE, cause=cause), windows) is None


DAY = GameDaySettings(name="tuesday", faults=["engine-hung", "engine-dead"], seed=4, timezone="Asia/Shanghai")


def test_a_game_day_is_drawn_inside_its_window() -> None:
    weeks = [game_days.last_opening(DAY, T0 + timedelta(weeks=week)) for week in range(40)]
    assert weeks[0] == datetime(2026, 11, 17, 2, tzinfo=UTC)
    drawn = [game_days.draw_order(DAY, opens) for opens in weeks]
    assert {order["fault"] for _, order in drawn} == {"engine-hung", "engine-dead"}
    for opens, (moment, order) in zip(weeks, drawn, strict=True):
        over = moment + game_days.MAX_DELAY + timedelta(seconds=order["seconds"])
        assert opens <= moment < over <= opens + DAY.window
    assert len({moment - opens for opens, (moment, _) in zip(weeks, drawn, strict=True)}) > 10


def test_a_game_day_starts_once_at_its_time_and_a_refusal_is_audited(monkeypatch) -> None:
    orders = []

    def refuse(_: FaultControl, order):
        orders.append(order)
        raise UsageError("no cluster is named 'mian'")

    monkeypatch.setattr(FaultControl, "start", refuse)
    state, opens = MemoryStateStore(), game_days.last_opening(DAY, T0)
    moment, _ = game_days.draw_order(DAY, opens)
    days = game_days.GameDays(state, "http://127.0.0.1:9", [DAY])
    at = opens
    while at < opens + DAY.window:
        days.run_due(at)
        assert bool(orders) is (at >= moment)
        at += timedelta(seconds=15)
    assert len(orders) == 1
    (refused,) = state.audit()
    assert (refused.event, refused.reason, refused.by) == (AuditEvent.DRILL_REFUSED, "tuesday", "schedule")
    assert "mian" in refused.detail["error"]
    late = game_days.GameDays(state, "http://127.0.0.1:9", [DAY])
    late.run_due(opens)
    late.run_due(opens + DAY.window)
    assert len(orders) == 1, "a missed game day is skipped"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cluster-lost", "second cluster"),
        ("scaled-in", "largest-service"),
        (next(scenario.id for scenario in scenario_choice.scenarios() if len(scenario.faults) > 1), "one at a time"),
    ],
)
def test_a_running_platform_refuses_an_unsupported_scenario(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        remote_drill.drill(scenario_choice.find(name), api="", token="", seed=1, progress=lambda *_: None)
    assert "--api" in refused.value.hint


def test_the_entity_of_a_scenario_is_in_the_request() -> None:
    scenario = scenario_choice.find("engine-hung")
    named = replace(scenario, faults=(replace(scenario.faults[0], entity="chat-0"),))
    assert remote_drill._order(named, 3)["entity"] == "chat-0"
    assert "entity" not in remote_drill._order(scenario, 3)


def test_a_wrong_address_is_reported_before_a_missing_token() -> None:
    with pytest.raises(UnavailableError, match="no API responds"):
        remote_drill.token_for("http://127.0.0.1:9", Settings)


def test_a_missing_token_has_a_hint(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(remote_drill.Api, "get", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="admin token") as missing:
        remote_drill.token_for("http://127.0.0.1:9", Settings)
    assert "--config" in missing.value.hint


def test_a_signal_during_the_request_still_ends_the_drill(monkeypatch) -> None:
    posted = []

    def post(_: remote_drill.Api, path: str, body=None):
        posted.append(path)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"id": "d", "starts_at": "2026-11-18T12:00:00Z", "ends_at": "2026-11-18T12:10:00Z"}

    monkeypatch.setattr(remote_drill.Api, "post", post)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        remote_drill.drill(scenario_choice.find("engine-hung"), api="", token="", seed=1, progress=lambda *_: None)
    assert posted == ["/drills", "/drills/d/stop"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1, MOST_SECONDS + 1, 10**400, True, "5m"])
def test_invalid_seconds_are_refused(seconds: object) -> None:
    with pytest.raises(UsageError, match="seconds"):
        duration({"seconds": seconds}, "seconds")


def test_an_announced_drill_is_stored_with_its_path_audited_and_alone() -> None:
    state, announced = MemoryStateStore(), replace(drill("k8s-engine-dead-1"), path=())
    stored = running_platform.announce(state, announced, ())
    assert stored.path == (ENGINE,)
    assert [record.event for record in state.audit(limit=10)] == [AuditEvent.DRILL_STARTED]
    for other in (announced, replace(announced, id="k8s-engine-dead-2")):
        with pytest.raises(UsageError, match="another drill is running"):
            running_platform.announce(state, other, (stored,))
    assert running_platform.is_announced(stored.id)
    assert not running_platform.is_announced("engine-dead@1")
    ended = running_platform.stop(state, None, stored, by="drill", now=T0 + MINUTE)
    assert ended.stopped_at == T0 + MINUTE
