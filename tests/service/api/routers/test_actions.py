"""Pause, kill switch, breaker, two approvals and requests by hand over the API."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.audit import AuditEvent
from outrider.model import (
    ActionKind,
    ActionStatus,
    BreakerState,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    ReasonText,
    Verdict,
)
from outrider.ports import CycleCommit
from outrider.testing.names import NOW
from outrider.testing.story import Story
from tests.service.api.test_api import DRAIN, TOKEN, World

OPENED = BreakerState(opened_at=NOW, unsuccessful=4, performed=6)


@pytest.fixture
def world():
    return World(Story(history=timedelta(minutes=2)))


def post(world, path, person="ada"):
    header = {"Authorization": f"Bearer {TOKEN}".encode()}
    if person:
        header["X-Outrider-User"] = person.encode()
    return world.http.post(f"/api/v1{path}", headers=header)


def commit(world, *actions, breaker=None):
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], actions=actions, breaker=breaker))


def add(world, id_, status, **more):
    """A copy of the waiting drain."""
    (drain,) = [action for action in world.state.actions() if action.id == DRAIN]
    action = replace(drain, id=id_, status=status, **more)
    commit(world, action)
    return action


def test_two_people_approve(world):
    add(world, "two", ActionStatus.WAITING_APPROVAL, approvals_needed=2)
    first = post(world, "/actions/two/approve", "ann").json()
    assert (first["status"], first["approvals"], first["approvals_needed"]) == ("waiting_approval", ["ann"], 2)
    assert first["reason"] == "needs_second_approval"
    again = post(world, "/actions/two/approve", "ann")
    assert (again.status_code, again.json()["error"]["message"]) == (409, "ann has approved this action already.")
    second = post(world, "/actions/two/approve", "张伟").json()
    assert (second["status"], second["approved_by"]) == ("intended", "ann, 张伟")


def test_two_approvals_need_names(world):
    add(world, "two", ActionStatus.WAITING_APPROVAL, approvals_needed=2)
    refused = post(world, "/actions/two/approve", "")
    assert refused.status_code == 409
    assert "X-Outrider-User" in refused.json()["error"]["hint"]
    assert post(world, f"/actions/{DRAIN}/approve", "").status_code == 200, "one approval may be anonymous"


def test_a_recommendation_cannot_be_approved_with_one_step(world):
    level = ReasonText("guards.autonomy", {"level": "recommend"})
    objection = GuardAnswer("autonomy", Verdict.ASK, DecisionReason.AUTONOMY_RECOMMEND, compared=(level,))
    add(world, "idea", ActionStatus.PROPOSED, objections=(objection,), approvals_needed=2)
    assert post(world, "/actions/idea/approve").status_code == 409
    requested = post(world, "/actions/idea/request", "ann").json()
    assert (requested["status"], requested["requested_by"]) == ("waiting_approval", "ann")
    (shown,) = requested["objections"]
    assert {"name": "autonomy", "verdict": "ask", "reason": "autonomy_recommend", "detail": ""}.items() <= shown.items()
    assert shown["compared"] == "level recommend"
    own = post(world, "/actions/idea/approve", "ann")
    assert (own.status_code, own.json()["error"]["message"]) == (409, "ann has requested this action already.")
    assert post(world, "/actions/idea/approve", "bo").json()["status"] == "waiting_approval"
    assert post(world, "/actions/idea/approve", "cy").json()["status"] == "intended"


def test_an_expired_request_is_repeated_by_hand(world):
    add(world, "late", ActionStatus.REFUSED, reason=DecisionReason.EXPIRED)
    assert post(world, "/actions/late/approve").status_code == 409
    assert post(world, "/actions/late/request").json()["status"] == "waiting_approval"
    assert post(world, "/actions/late/request").status_code == 409
    assert post(world, "/actions/ghost/request").status_code == 404


def test_the_breaker_is_shown_and_reset_once(world):
    commit(world, breaker=OPENED)
    shown = world.get("/remediation")["breaker"]
    assert (shown["open"], shown["unsuccessful"], shown["performed"]) == (True, 4, 6)
    assert "outrider_remediation_breaker_open 1.0" in world.http.get("/metrics").text
    closed = post(world, "/remediation/breaker/reset", "ann").json()
    assert (closed["open"], closed["reset_by"]) == (False, "ann")
    assert post(world, "/remediation/breaker/reset").status_code == 409
    assert AuditEvent.BREAKER_RESET in {record.event for record in world.state.audit() if record.by == "ann"}


def test_the_kill_switch_and_pending_actions_are_shown(tmp_path):
    file = tmp_path / "stop"
    world = World(Story(history=timedelta(minutes=2)), kill_switch_file=file, autonomy="act", dry_run=False)
    shown = world.get("/remediation")
    assert shown["kill_switch"] == {"file": str(file), "on": False}
    assert (shown["autonomy"], shown["dry_run"]) == ("act", False)
    assert [action["id"] for action in shown["pending"]] == [DRAIN]
    file.touch()
    overview = world.get("/overview")
    assert overview["monitoring"]["remediation"]["kill_switch"]["on"] is True
    assert [action["id"] for action in overview["pending"]] == [DRAIN]


CHAT = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
RESTORE = "/remediation/services/chat/restore"


def degrade(world, id_="level", target=CHAT, level=3):
    """A service that the ladder has degraded."""
    params = {"level": level, "name": "cap_output", "pause": []}
    add(world, id_, ActionStatus.DONE, kind=ActionKind.DEGRADE_SERVICE, target=target, params=params, dry_run=False)


@pytest.fixture
def acting():
    return World(Story(history=timedelta(minutes=2)), dry_run=False)


@pytest.mark.parametrize("named", ["chat", "llm/chat", "c/service/llm/chat"])
def test_a_person_restores_a_degraded_service_by_name(acting, named):
    degrade(acting)
    restored = post(acting, f"/remediation/services/{named}/restore", "ann").json()
    assert (restored["kind"], restored["status"], restored["approved_by"]) == ("restore_service", "intended", "ann")
    assert (restored["params"]["level"], restored["reason"]) == (0, "restored_by_hand")
    (stored,) = [action for action in acting.state.actions() if action.kind is ActionKind.RESTORE_SERVICE]
    assert stored.id == restored["id"]
    record = next(record for record in acting.state.audit() if record.event is AuditEvent.SERVICE_RESTORED)
    assert (record.by, record.detail["previous"], record.detail["action"]) == ("ann", "3", stored.id)


def test_a_restore_needs_a_name(acting):
    degrade(acting)
    refused = post(acting, RESTORE, "")
    assert refused.status_code == 409
    assert "X-Outrider-User" in refused.json()["error"]["hint"]
    assert not [action for action in acting.state.actions() if action.kind is ActionKind.RESTORE_SERVICE]


def test_a_service_at_level_0_cannot_be_restored(acting):
    degrade(acting, level=0)
    refused = post(acting, RESTORE)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "the service 'chat' is not degraded")


def test_a_name_of_two_degraded_services_is_refused(acting):
    degrade(acting)
    degrade(acting, "other", replace(CHAT, cluster="d"))
    assert "names 2 services" in post(acting, RESTORE).json()["error"]["message"]
    assert post(acting, "/remediation/services/d/service/llm/chat/restore").status_code == 200


def test_a_dry_run_restores_nothing(world):
    degrade(world)
    refused = post(world, RESTORE)
    assert refused.status_code == 409
    assert "dry_run" in refused.json()["error"]["message"]


def test_an_incident_lists_the_scaling_that_the_plan_ordered_meanwhile(world):
    incident = next(one for one in world.state.incidents() if one.resolved_at is None)
    when = incident.opened_at + timedelta(seconds=15)
    chat = next(one for one in world.state.topology().of_kind(EntityKind.SERVICE) if incident.concerns(one))
    add(world, "by-plan", ActionStatus.DONE, kind=ActionKind.SCALE, target=chat, because="plan", decided_at=when)
    shown = world.get(f"/incidents/{incident.id}")
    assert "by-plan" in [action["id"] for action in shown["actions"]]
    listed = world.get("/actions", incident=incident.id, limit=2)
    rest = world.get("/actions", incident=incident.id, limit=100, cursor=listed["next_cursor"])
    assert [*listed["actions"], *rest["actions"]] == shown["actions"]
    assert world.get("/actions", incident="unknown")["actions"] == []
