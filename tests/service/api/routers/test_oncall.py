"""Schedules and overrides over the API."""

from datetime import timedelta

import pytest

from outrider.audit import AuditEvent
from outrider.clock import rfc3339
from outrider.records.on_call import StoredCalendar
from outrider.testing.names import NOW
from outrider.testing.story import Story
from tests.service.api.test_api import TOKEN, World
from tests.support import on_call

HOUR = timedelta(hours=1)


@pytest.fixture
def world():
    return World(Story(history=timedelta(minutes=2)), oncall=on_call.settings())


def send(world, method, path, body=None, person="li"):
    headers = {"Authorization": f"Bearer {TOKEN}".encode(), "X-Outrider-User": person.encode()}
    return world.http.request(method, f"/api/v1{path}", json=body, headers=headers)


def override(**changed):
    return {
        "schedule": "model",
        "person": "zhao",
        "start": rfc3339(NOW - HOUR),
        "end": rfc3339(NOW + HOUR),
    } | changed


def test_teams_schedules_and_people_are_shown(world):
    shown = world.get("/oncall")
    assert shown["people"] == ["li", "wang", "zhao"]
    model, hardware = shown["teams"]
    assert (model["on_call"], model["second"], model["lead"]) == (["li"], ["wang"], "zhao")
    assert (hardware["layers"], hardware["on_call"]) == (["hardware"], [])
    [schedule] = shown["schedules"]
    assert schedule["now"] == {
        "schedule": "model",
        "person": "li",
        "from": "2026-05-04T07:00:00Z",
        "to": "2026-05-11T07:00:00Z",
        "source": "rotation",
    }
    assert [shift["person"] for shift in schedule["shifts"]] == ["li", "wang", "li"]
    assert schedule["gaps"] == []
    assert schedule["calendar"] is None


def test_who_is_on_call_at_a_time(world):
    assert [shift["person"] for shift in world.get("/oncall/who")] == ["li"]
    [later] = world.get("/oncall/who", at="2026-05-12T00:00:00+02:00")
    assert (later["person"], later["from"]) == ("wang", "2026-05-11T07:00:00Z")
    [before] = world.get("/oncall/who", at="2026-05-01T00:00:00Z")
    assert (before["person"], before["source"]) == (None, "gap")


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2028-01-01T00:00:00Z"])
def test_a_time_far_away_is_refused(world, at):
    response = world.http.get("/api/v1/oncall/who", params={"at": at})
    assert response.status_code == 400
    assert "days away" in response.json()["error"]["message"]


def test_an_override_counts_until_it_is_removed(world):
    added = send(world, "POST", "/oncall/overrides", override()).json()
    assert (added["person"], added["by"]) == ("zhao", "li")
    [shift] = world.get("/oncall/who")
    assert (shift["person"], shift["source"], shift["to"]) == ("zhao", "override", rfc3339(NOW + HOUR))
    assert [item["id"] for item in world.get("/oncall")["overrides"]] == [added["id"]]
    assert send(world, "DELETE", f"/oncall/overrides/{added['id']}").status_code == 200
    assert world.get("/oncall/who")[0]["person"] == "li"
    assert send(world, "DELETE", f"/oncall/overrides/{added['id']}").status_code == 404
    events = {record.event for record in world.state.audit()}
    assert {AuditEvent.SHIFT_OVERRIDDEN, AuditEvent.SHIFT_OVERRIDE_REMOVED} <= events


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"schedule": "unknown"}, 404),
        ({"person": "nobody"}, 404),
        ({"end": rfc3339(NOW - HOUR)}, 400),
        ({"start": rfc3339(NOW - 3 * HOUR), "end": rfc3339(NOW - 2 * HOUR)}, 400),
        ({"end": rfc3339(NOW + timedelta(days=100))}, 400),
        ({"end": "2026-05-05T00:00:00"}, 422),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(world, changed, status):
    assert send(world, "POST", "/oncall/overrides", override(**changed)).status_code == status


def test_an_override_needs_the_token(world):
    assert world.http.post("/api/v1/oncall/overrides", json=override()).status_code == 401


def test_an_override_of_the_configuration_is_listed_and_a_later_entry_counts_before_it(world):
    own = {"person": "wang", "start": "2026-05-04 12:00", "end": "2026-05-04 20:00"}
    configured = World(
        Story(history=timedelta(minutes=2)),
        oncall=on_call.settings(schedules=[on_call.SCHEDULE | {"overrides": [own]}]),
    )
    assert configured.get("/oncall/who")[0]["person"] == "wang"
    assert [(item["person"], item["by"]) for item in configured.get("/oncall")["overrides"]] == [("wang", None)]
    send(configured, "POST", "/oncall/overrides", override())
    assert configured.get("/oncall/who")[0]["person"] == "zhao"


def test_shifts_are_listed_over_a_time_change(world):
    listed = world.get("/oncall/shifts", since="2026-10-19T07:00:00Z", days=14)
    assert [shift["from"] for shift in listed] == ["2026-10-19T07:00:00Z", "2026-10-26T08:00:00Z"]


def test_a_calendar_that_cannot_be_read_is_shown_with_its_error():
    schedules = [on_call.SCHEDULE | {"calendar": {"url": "https://calendar.example/secret.ics"}}]
    world = World(Story(history=timedelta(minutes=2)), oncall=on_call.settings(schedules=schedules))
    assert world.get("/oncall")["schedules"][0]["calendar"] == {"read_at": None, "error": "", "unknown": []}
    world.state.save_calendar(StoredCalendar("model", "", None, "the server returned status 404"))
    shown = world.get("/oncall")
    assert shown["schedules"][0]["calendar"]["error"] == "the server returned status 404"
    assert shown["schedules"][0]["now"]["person"] == "li", "the rotation stands in"
    assert "secret.ics" not in str(shown)


def test_without_settings_nothing_is_shown():
    world = World(Story(history=timedelta(minutes=2)))
    shown = world.get("/oncall")
    assert (shown["teams"], shown["schedules"], shown["people"]) == ([], [], [])
    assert world.get("/oncall/who") == []
