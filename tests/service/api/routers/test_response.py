"""Comments, assignment, escalation and follow-ups over the API."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.audit import AuditEvent
from outrider.model import TimelineEntry
from outrider.ports import CycleCommit
from outrider.records.response import NoteKind
from outrider.testing.names import LOST_GPU, NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from tests.service.api.routers.test_oncall import send
from tests.service.api.test_api import World
from tests.support import on_call


@pytest.fixture
def world():
    return World(Story(history=timedelta(minutes=2)), oncall=on_call.settings())


def change(world, **fields):
    incident = replace(world.state.incident(INCIDENT), **fields)
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], incidents=(incident,)))


def post(world, path, body=None, person="li"):
    return send(world, "POST", path, body, person)


def test_a_comment_is_part_of_the_incident(world):
    added = post(world, f"/incidents/{INCIDENT}/comments", {"text": "重新插拔"}).json()
    assert (added["kind"], added["by"], added["text"]) == ("comment", "li", "重新插拔")
    assert [note["text"] for note in world.get(f"/incidents/{INCIDENT}")["notes"]] == ["重新插拔"]
    assert AuditEvent.INCIDENT_COMMENTED in {record.event for record in world.state.audit()}


def test_an_incident_is_assigned_to_a_known_person(world):
    assert post(world, f"/incidents/{INCIDENT}/assign", {"to": "wang"}).status_code == 201
    assert world.get(f"/incidents/{INCIDENT}")["assignee"] == "wang"
    assert world.get("/incidents")["incidents"][0]["assignee"] == "wang"
    refused = post(world, f"/incidents/{INCIDENT}/assign", {"to": "nobody"})
    assert (refused.status_code, refused.json()["error"]["hint"]) == (400, "oncall.people has: li, wang, zhao")
    post(world, f"/incidents/{INCIDENT}/assign", {"to": ""})
    assert world.get(f"/incidents/{INCIDENT}")["assignee"] is None


def test_an_escalation_is_requested_for_the_next_cycle(world):
    assert post(world, f"/incidents/{INCIDENT}/escalate").status_code == 201
    assert [note.kind for note in world.state.notes([INCIDENT])] == [NoteKind.ESCALATION]


def test_without_teams_nobody_can_be_escalated_to():
    world = World(Story(history=timedelta(minutes=2)))
    refused = post(world, f"/incidents/{INCIDENT}/escalate")
    assert (refused.status_code, refused.json()["error"]["hint"]) == (409, "set oncall.teams")


def test_a_resolved_incident_takes_comments_and_follow_ups_only(world):
    change(world, resolved_at=NOW)
    assert post(world, f"/incidents/{INCIDENT}/comments", {"text": "over"}).status_code == 201
    assert post(world, f"/incidents/{INCIDENT}/assign", {"to": "wang"}).status_code == 409
    assert post(world, f"/incidents/{INCIDENT}/escalate").status_code == 409
    assert post(world, f"/incidents/{INCIDENT}/follow-ups", follow_up()).status_code == 201


@pytest.mark.parametrize("path", ["comments", "assign", "escalate", "follow-ups"])
def test_an_unknown_incident_is_refused(world, path):
    body = {"comments": {"text": "x"}, "assign": {"to": "li"}, "follow-ups": follow_up()}.get(path)
    assert post(world, f"/incidents/inc-unknown/{path}", body).status_code == 404


@pytest.mark.parametrize("body", [{"text": ""}, {"text": "x" * 2001}, {"text": "x", "more": 1}])
def test_a_comment_without_or_with_too_much_text_is_refused(world, body):
    assert post(world, f"/incidents/{INCIDENT}/comments", body).status_code == 422


def follow_up(**changed):
    return {"text": "replace the riser", "owner": "hardware", "due": "2026-05-11"} | changed


def test_a_follow_up_is_added_changed_and_closed(world):
    added = post(world, f"/incidents/{INCIDENT}/follow-ups", follow_up()).json()
    assert (added["fault"], added["entity"]["name"], added["overdue"]) == ("gpu-lost", LOST_GPU.name, False)
    assert world.get("/follow-ups", open="true")["follow_ups"] == [added]
    assert world.get(f"/incidents/{INCIDENT}")["follow_ups"] == [added]
    changed = post(world, f"/follow-ups/{added['id']}", {"due": "2026-05-01"}).json()
    assert (changed["due"], changed["overdue"], changed["owner"]) == ("2026-05-01", True, "hardware")
    closed = post(world, f"/follow-ups/{added['id']}/close", person="wang").json()
    assert closed["closed_by"] == "wang"
    assert world.get("/follow-ups", open="true")["follow_ups"] == []
    assert post(world, f"/follow-ups/{added['id']}/close").status_code == 409
    assert post(world, f"/follow-ups/{added['id']}", {"owner": "model"}).status_code == 409


@pytest.mark.parametrize("body", [follow_up(due="soon"), follow_up(owner=""), {"text": "x"}])
def test_a_follow_up_needs_text_owner_and_date(world, body):
    assert post(world, f"/incidents/{INCIDENT}/follow-ups", body).status_code == 422


def test_a_change_of_nothing_and_of_an_unknown_follow_up_is_refused(world):
    added = post(world, f"/incidents/{INCIDENT}/follow-ups", follow_up()).json()
    assert post(world, f"/follow-ups/{added['id']}", {}).status_code == 400
    assert post(world, "/follow-ups/unknown/close").status_code == 404


def test_the_follow_up_of_an_earlier_incident_is_shown_when_the_fault_returns(world):
    earlier = replace(world.state.incident(INCIDENT), id="inc-0", resolved_at=NOW)
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], incidents=(earlier,)))
    added = post(world, "/incidents/inc-0/follow-ups", follow_up()).json()
    assert world.get(f"/incidents/{INCIDENT}")["recurrences"] == [], "the incident began before the follow-up"
    change(world, opened_at=NOW + timedelta(minutes=1))
    assert [item["id"] for item in world.get(f"/incidents/{INCIDENT}")["recurrences"]] == [added["id"]]


def test_the_team_and_the_people_of_an_incident_are_shown(world):
    entry = TimelineEntry(
        NOW, "notify.timeline.on_call", {"team": "model", "people": "li, wang", "step": "1", "layer": "engine"}
    )
    change(world, timeline=(entry,))
    shown = world.get(f"/incidents/{INCIDENT}")
    assert (shown["team"], shown["step"], shown["notified"]) == ("model", 1, ["li", "wang"])
