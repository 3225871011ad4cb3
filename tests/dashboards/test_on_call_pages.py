"""The on-call page, and the response to an incident, in Streamlit's own test harness."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from dashboards.components import shifts
from dashboards.components.palette import palette
from outrider.model import TimelineEntry
from outrider.ports import CycleCommit
from outrider.records.on_call import ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, NoteKind
from outrider.testing.names import LOST_GPU, NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from tests.dashboards.test_pages import (  # noqa: F401 - fixtures
    TOKEN,
    Api,
    _main_module,
    _nothing_kept,
    button,
    checked,
    opened,
    serve,
    text,
)
from tests.support import on_call

HOUR = timedelta(hours=1)


@pytest.fixture
def api() -> Iterator[Api]:
    nights = {"start": "20:00", "end": "08:00"}
    duty = {"name": "nights", "rotations": [on_call.ROTATION | {"hours": [nights]}]}
    schedules = [on_call.SCHEDULE, duty | {"calendar": {"url": "https://calendar.example/x.ics"}}]
    yield from serve(Story(history=timedelta(minutes=2)), oncall=on_call.settings(schedules=schedules))


def test_the_page_shows_who_is_on_call_and_where_nobody_is(api, opened):  # noqa: F811
    api.state.save_calendar(StoredCalendar("nights", "", None, "status 404"))
    page = text(opened(api.url, "oncall"))
    assert "Nobody is on call in 1 of 2 schedules" in page
    assert "until 2026-05-11 09:00 (Europe/Berlin)" in page
    assert "layers: hardware" in page
    assert "everything that no other team owns" in page
    assert "Nobody on call in 29 spans of the next 28 days" in page
    assert "The calendar could not be read" in page
    assert "有 1 个无人值班" in text(opened(api.url, "oncall", lang="zh"))


def test_without_configuration_the_page_says_what_happens(opened):  # noqa: F811
    for empty in serve(None):
        page = text(opened(empty.url, "oncall"))
    assert "No team and no schedule is configured." in page
    assert "No open follow-ups." in page


def test_an_override_is_added_and_removed(api, opened):  # noqa: F811
    app = opened(api.url, "oncall", token=TOKEN)
    app.selectbox(key="override_person").set_value("zhao")
    button(app, "Add override").click()
    page = checked(app.run())
    [override] = api.state.shift_overrides(NOW)
    assert (override.person, override.schedule, override.end - override.start) == ("zhao", "model", 8 * HOUR)
    assert "zhao instead of the schedule model" in text(page)
    app.button(key=f"override-{override.id}").click()
    checked(app.run())
    assert api.state.shift_overrides(NOW) == ()


def test_changes_need_the_token(api, opened):  # noqa: F811
    api.state.add_shift_override(ShiftOverride("o1", "model", "zhao", NOW, NOW + HOUR, "li", NOW))
    app = opened(api.url, "oncall")
    assert button(app, "Add override").disabled
    assert button(app, "Remove").disabled


def follow_up(**changed):
    made = FollowUp(
        "f1", INCIDENT, "replace the riser", "hardware", NOW.date() - timedelta(days=1), "li", NOW, "gpu-lost", LOST_GPU
    )
    return replace(made, **changed)


def test_open_follow_ups_are_listed_and_closed(api, opened):  # noqa: F811
    api.state.save_follow_up(follow_up(), "li", NOW)
    app = opened(api.url, "oncall", token=TOKEN)
    assert "overdue" in text(app)
    app.button(key="close-f1").click()
    assert "No open follow-ups." in text(checked(app.run()))
    assert api.state.follow_up("f1").closed_by == "admin"


def test_an_incident_shows_its_team_comments_and_earlier_follow_ups(api, opened):  # noqa: F811
    entry = TimelineEntry(
        NOW, "notify.timeline.on_call", {"team": "hardware", "people": "zhao", "step": "0", "layer": "hardware"}
    )
    incident = api.state.incident(INCIDENT)
    changed = replace(incident, timeline=(*incident.timeline, entry))
    api.state.commit(CycleCommit(api.state.cycles(limit=1)[0], incidents=(changed,)))
    api.state.save_follow_up(follow_up(incident="inc-0", at=incident.opened_at - HOUR), "li", NOW)
    app = opened(api.url, "incident", token=TOKEN, incident=INCIDENT)
    page = text(app)
    assert "team hardware" in page
    assert "Notified zhao (team hardware)" in page
    assert "This fault happened before, and its follow-up is still open." in page
    assert "No comments yet." in page


def test_an_incident_has_the_times_of_its_team(opened):  # noqa: F811
    teams = [team | {"timezone": "Asia/Shanghai"} for team in on_call.TEAMS]
    for api in serve(Story(history=timedelta(minutes=2)), oncall=on_call.settings(teams=teams)):
        page = text(opened(api.url, "incident", incident=INCIDENT))
        local = api.state.incident(INCIDENT).opened_at + 8 * HOUR
    assert f"{local:%H:%M} UTC+08:00" in page
    assert f"{local:%H:%M:%S} UTC+08:00" in page, "its timeline"
    own = page[: page.index("Grouped alerts")]
    assert not re.search(r"\d\d:\d\d UTC(?!\+)", own)


@pytest.mark.slow
def test_an_incident_is_assigned_escalated_and_commented(api, opened):  # noqa: F811
    app = opened(api.url, "incident", token=TOKEN, incident=INCIDENT)
    app.selectbox(key=f"assign-to-{INCIDENT}").set_value("wang")
    button(app, "Assign").click()
    assert "admin assigned it to wang" in text(checked(app.run()))
    button(app, "Escalate now").click()
    assert "admin escalated it" in text(checked(app.run()))
    app.text_area(key=f"comment-{INCIDENT}").set_value("重新插拔")
    button(app, "Add comment").click()
    assert "admin: 重新插拔" in text(checked(app.run()))
    kinds = [note.kind for note in api.state.notes([INCIDENT])]
    assert kinds == [NoteKind.ASSIGNMENT, NoteKind.ESCALATION, NoteKind.COMMENT]


@pytest.mark.slow
def test_a_follow_up_is_added_on_the_page_of_its_incident(api, opened):  # noqa: F811
    app = opened(api.url, "incident", token=TOKEN, incident=INCIDENT)
    app.text_input(key=f"follow-text-{INCIDENT}").set_value("replace the riser")
    app.text_input(key=f"follow-owner-{INCIDENT}").set_value("hardware")
    button(app, "Add follow-up").click()
    assert "replace the riser" in text(checked(app.run()))
    [added] = api.state.follow_ups()
    assert (added.owner, added.due) == ("hardware", NOW.date())


def shift(person, start, end):
    return {"person": person, "from": start, "to": end, "source": "rotation"}


def test_a_bar_names_people_and_gaps_and_escapes_them():
    listed = [
        shift("<b>li</b>", "2026-05-04T00:00:00Z", "2026-05-08T00:00:00Z"),
        shift(None, "2026-05-08T00:00:00Z", "2026-05-11T00:00:00Z"),
    ]
    drawn = shifts.bar(listed, "Asia/Shanghai", ["<b>li</b>"], palette("light"), "en")
    assert "&lt;b&gt;li&lt;/b&gt;: 2026-05-04 08:00 – 2026-05-08 08:00" in drawn
    assert "<b>" not in drawn
    assert "nobody" in drawn
    assert shifts.bar([], "UTC", [], palette("light"), "en") == ""
