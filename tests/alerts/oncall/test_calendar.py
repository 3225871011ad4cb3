"""Calendars of on-call schedules: recurring events, time zones, names, and texts that are not calendars."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from alerts.oncall import calendar
from alerts.oncall.schedule import Schedule
from outrider.errors import UsageError

BERLIN = ZoneInfo("Europe/Berlin")
PEOPLE = {"li": "li", "li@example.com": "li", "wang": "wang", "wang lei": "wang"}
START, END = datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)


def event(*lines):
    return "\r\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT"])


def calendar_of(*events):
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:test", *events, "END:VCALENDAR", ""])


def shifts_of(*events, zone=BERLIN):
    return calendar.read(calendar_of(*events), "model", PEOPLE, zone, START, END)


WEEKLY = event(
    "UID:week", "DTSTART;TZID=Europe/Berlin:20260323T090000", "DTEND;TZID=Europe/Berlin:20260330T090000",
    "RRULE:FREQ=WEEKLY;INTERVAL=2", "SUMMARY:On Call - Primary", "ATTENDEE:mailto:LI@example.com",
)  # fmt: skip


def test_a_recurring_event_keeps_its_time_of_day_over_a_time_change():
    result = shifts_of(WEEKLY).shifts
    assert [(shift.start.strftime("%m-%d %H"), shift.end.strftime("%m-%d %H")) for shift in result] == [
        ("03-23 08", "03-30 07"),
        ("04-06 07", "04-13 07"),
        ("04-20 07", "04-27 07"),
    ]
    assert {shift.person for shift in result} == {"li"}


def test_an_exception_and_a_moved_occurrence_count():
    excepted = WEEKLY.replace("SUMMARY", "EXDATE;TZID=Europe/Berlin:20260406T090000\r\nSUMMARY")
    moved = event(
        "UID:week", "RECURRENCE-ID;TZID=Europe/Berlin:20260420T090000", "DTSTART;TZID=Europe/Berlin:20260421T090000",
        "DTEND;TZID=Europe/Berlin:20260422T090000", "SUMMARY:wang",
    )  # fmt: skip
    result = shifts_of(excepted, moved).shifts
    assert [(shift.person, shift.start.day) for shift in result] == [("li", 23), ("wang", 21)]


def test_an_all_day_event_is_a_day_in_the_zone_of_the_schedule():
    [shift] = shifts_of(
        event("UID:1", "DTSTART;VALUE=DATE:20260401", "SUMMARY:Wang"), zone=ZoneInfo("Asia/Shanghai")
    ).shifts
    assert shift.start == datetime(2026, 3, 31, 16, tzinfo=UTC)
    assert shift.end - shift.start == timedelta(days=1)


def test_a_time_without_a_zone_is_in_the_zone_of_the_schedule():
    lines = ("UID:1", "DTSTART:20260401T090000", "DTEND:20260401T170000", "SUMMARY:li")
    [shift] = shifts_of(event(*lines)).shifts
    assert shift.start == datetime(2026, 4, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("summary", "person"), [("[L1] Wang Lei", "wang"), ("on call: LI", "li"), ("li@example.com (primary)", "li")]
)
def test_a_person_is_found_by_name_or_address_in_the_summary(summary, person):
    lines = ("UID:1", "DTSTART:20260401T090000Z", "DURATION:PT8H", f"SUMMARY:{summary}")
    assert [shift.person for shift in shifts_of(event(*lines)).shifts] == [person]


def test_events_of_unknown_people_are_reported_and_leave_a_gap():
    lines = ("UID:1", "DTSTART:20260401T090000Z", "DTEND:20260401T170000Z", "SUMMARY:Olivia")
    result = shifts_of(event(*lines))
    assert (result.shifts, result.unknown) == ((), ("Olivia",))


def test_part_of_a_word_is_not_a_name():
    lines = ("UID:1", "DTSTART:20260401T090000Z", "DTEND:20260401T170000Z", "SUMMARY:Olive")
    assert shifts_of(event(*lines)).shifts == ()


def test_a_cancelled_event_and_one_without_length_do_not_count():
    cancelled = event(
        "UID:1", "DTSTART:20260401T090000Z", "DTEND:20260401T170000Z", "SUMMARY:li", "STATUS:CANCELLED"
    )  # fmt: skip
    point = event("UID:2", "DTSTART:20260402T090000Z", "SUMMARY:li")
    assert shifts_of(cancelled, point).shifts == ()


@pytest.mark.parametrize(
    "text",
    ["", "hello", "<html>401</html>", calendar_of(event("DTSTART:xx", "SUMMARY:li")), calendar_of(event("SUMMARY:li"))],
)
def test_a_text_that_is_not_a_calendar_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="calendar"):
        calendar.read(text, "model", PEOPLE, BERLIN, START, END)


@pytest.mark.parametrize("frequency", ["SECONDLY", "minutely", "HOURLY"])
def test_an_event_that_recurs_more_often_than_daily_is_refused_without_being_expanded(frequency):
    lines = ("UID:1", "DTSTART:19000101T000000Z", "DURATION:PT1S", f"RRULE:FREQ={frequency}", "SUMMARY:li")
    with pytest.raises(UsageError, match="more often than daily"):
        shifts_of(event(*lines))


def test_a_calendar_with_too_many_events_is_refused(monkeypatch):
    monkeypatch.setattr(calendar, "MOST_EVENTS", 2)
    lines = ("UID:1", "DTSTART:20260401T000000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY", "SUMMARY:li")
    with pytest.raises(UsageError, match="more than 2 events"):
        shifts_of(event(*lines))


def test_a_calendar_that_is_too_large_is_refused():
    with pytest.raises(UsageError, match="maximum"):
        calendar.read("x" * (calendar.MOST_TEXT + 1), "model", PEOPLE, BERLIN, START, END)


def test_of_two_overlapping_events_the_later_start_is_on_call():
    long = event("UID:1", "DTSTART:20260401T090000Z", "DTEND:20260403T090000Z", "SUMMARY:li")
    short = event("UID:2", "DTSTART:20260402T090000Z", "DTEND:20260402T170000Z", "SUMMARY:wang")
    schedule = Schedule("model", imported=shifts_of(long, short).shifts)
    assert schedule.person_at(datetime(2026, 4, 2, 12, tzinfo=UTC)) == "wang"
    assert schedule.person_at(datetime(2026, 4, 2, 18, tzinfo=UTC)) == "li"
    assert schedule.second_at(datetime(2026, 4, 1, 12, tzinfo=UTC)) == "wang"
