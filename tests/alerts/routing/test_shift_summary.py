"""The summary of a night, sent in the morning to those who were on call."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from alerts.oncall.roster import Person, Roster, Team
from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule
from alerts.routing import shift_summary
from alerts.routing.escalation import Responders
from alerts.routing.routes import NotificationSettings
from outrider.model import NotifyReason, TimelineEntry
from outrider.records.response import FollowUp
from outrider.vocabulary.time_spans import WeeklySpan

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = WeeklySpan(time(20), time(8, 30))
TEAM = Team("model", ("li", "wang"), schedule="model", night=NIGHT, zone=BERLIN)
WEEKLY = Rotation("primary", ("li", "wang"), date(2026, 5, 4), time(9), 7, BERLIN)
ROSTER = Roster({name: Person(name) for name in ("li", "wang")}, (TEAM,), {"model": Schedule("model", (WEEKLY,))})
MESSAGING = NotificationSettings(
    routes={"im": ("ding",), "mail": ("mail",), "phone": ("voice",)}, languages={"ding": "zh"}
)
MORNING = datetime(2026, 5, 6, 6, 30, tzinfo=UTC)  # 08:30 in Berlin
STEP = timedelta(seconds=15)


def entry(at, people, step=0, **more):
    return TimelineEntry(at, "notify.timeline.on_call", {"team": "model", "people": people, "step": str(step), **more})


def bad_night(world):
    first = MORNING - timedelta(hours=6)
    return world.incident(
        opened_at=first,
        timeline=(entry(first, "li"), entry(first + timedelta(minutes=5), "wang", 1)),
        acknowledged_at=first + timedelta(minutes=6),
        acknowledged_by="wang",
        resolved_at=first + timedelta(minutes=30),
    )


def summaries(incidents, now=MORNING, before=None, responders=Responders(ROSTER)):  # noqa: B008 - a value
    nights = shift_summary.due_nights(responders.roster, before or now - STEP, now)
    return shift_summary.messages(nights, incidents, responders, MESSAGING, now)


def test_a_summary_states_who_was_notified_who_acknowledged_and_how_it_ended(world):
    chinese, english = summaries([bad_night(world)])
    assert (chinese.channel, english.channel) == ("ding", "mail")
    assert english.reason is NotifyReason.SHIFT_SUMMARY
    assert english.title == "[night] model: 1 incident"
    lines = english.body.splitlines()
    assert lines[0] == "From 05-05 20:00 to 05-06 08:30 (Europe/Berlin):"
    assert "  Notified: li at 02:30, wang at 02:35" in lines
    assert "  Acknowledged by wang at 02:36, after 6m" in lines
    assert "  Resolved at 03:00, after 30m" in lines
    assert "- li: 1 notification" in lines
    assert [recipient.name for recipient in english.recipients] == ["li", "wang"]
    assert "wang 于 02:36 确认" in chinese.body


def test_a_quiet_night_has_no_summary(world):
    day = world.incident(timeline=(entry(MORNING - timedelta(hours=20), "li"),))
    assert summaries([]) == summaries([day]) == ()


def test_an_incident_of_another_team_is_not_part_of_it(world):
    other = replace(bad_night(world), timeline=(entry(MORNING - timedelta(hours=2), "zhao", team="hardware"),))
    assert summaries([other]) == ()


def test_reminders_are_not_counted_and_an_open_incident_is_marked(world):
    first = MORNING - timedelta(hours=1)
    still = world.incident(timeline=(entry(first, "li"), entry(first + timedelta(minutes=9), "li", reminder="true")))
    body = summaries([still])[1].body
    assert "Notified: li at 07:30\n" in body
    assert "Nobody acknowledged it" in body
    assert "Still open, with team model" in body
    assert "- li: 1 notification" in body


def test_overdue_follow_ups_are_listed(world):
    late = FollowUp("f1", "inc-0", "replace the riser", "model", date(2026, 5, 4), "li", MORNING)
    soon = replace(late, id="f2", text="order a spare", due=date(2026, 5, 6))
    body = summaries([bad_night(world)], responders=Responders(ROSTER, follow_ups=(late, soon)))[1].body
    assert "- replace the riser (owner model, due 2026-05-04)" in body
    assert "order a spare" not in body


def test_a_night_is_summarized_once(world):
    start = MORNING - timedelta(minutes=1)
    ids = [
        one.id
        for cycle in range(12)
        for one in summaries([bad_night(world)], now=start + cycle * STEP, before=start + (cycle - 1) * STEP)
    ]
    assert ids == ["summary:model:20260506T0630:ding", "summary:model:20260506T0630:mail"]


@pytest.mark.parametrize(("hours", "count"), [(4, 2), (47, 2), (49, 2), (80, 2)])
def test_an_engine_that_was_down_in_the_morning_sends_the_newest_night_later(world, hours, count):
    now = MORNING + timedelta(hours=hours)
    nights = shift_summary.due_nights(ROSTER, MORNING - STEP, now)
    assert len(nights) == 1
    assert nights[0].end <= now < nights[0].end + timedelta(days=1)
    at_night = world.incident(timeline=(entry(nights[0].start + STEP, "li"),))
    assert len(shift_summary.messages(nights, [at_night], Responders(ROSTER), MESSAGING, now)) == count


def test_the_first_cycle_of_a_store_sends_no_summary():
    assert shift_summary.due_nights(ROSTER, None, MORNING) == ()


def test_a_team_without_a_night_has_no_summary():
    assert shift_summary.due_nights(replace(ROSTER, teams=(replace(TEAM, night=None),)), MORNING - STEP, MORNING) == ()


def test_the_night_of_a_time_change_ends_at_the_same_time_of_day():
    [night] = shift_summary.due_nights(
        ROSTER, datetime(2026, 10, 25, 7, tzinfo=UTC), datetime(2026, 10, 25, 8, tzinfo=UTC)
    )
    assert night.end - night.start == timedelta(hours=13, minutes=30)
