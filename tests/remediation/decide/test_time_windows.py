"""Maintenance windows and freezes on the wall clock, across changes of daylight saving time."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import ActionKind, DecisionReason
from outrider.vocabulary.time_spans import EVERY_DAY, DateSpan, WeeklySpan
from remediation.decide.autonomy import Scope, ServiceScope
from remediation.decide.time_windows import TimeWindow, frozen_by, missed_windows

BERLIN, SHANGHAI = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Shanghai")
SATURDAY, SUNDAY = 5, 6


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def weekly(start, end, *days, zone=BERLIN, **scope):
    span = WeeklySpan(time.fromisoformat(start), time.fromisoformat(end), frozenset(days) or EVERY_DAY)
    return TimeWindow("w", zone, span, **scope)


def open_minutes(window, day, *, widen=False):
    """Minutes that the window is open from noon of the day before until noon of the day after, in UTC."""
    start = utc(f"{day}T12:00") - timedelta(days=1)
    return sum(window.contains(start + timedelta(minutes=minute), widen=widen) for minute in range(48 * 60))


def test_a_window_opens_at_its_start_and_is_closed_at_its_end():
    night = weekly("01:00", "05:00", zone=SHANGHAI)  # 17:00 to 21:00 UTC
    for at, expected in {"16:59": False, "17:00": True, "20:59": True, "21:00": False}.items():
        assert night.contains(utc(f"2026-11-23T{at}")) is expected


def test_a_window_past_midnight_belongs_to_the_day_of_its_start():
    night = weekly("22:00", "06:00", SATURDAY)
    assert night.contains(utc("2026-11-21T21:30"))  # Saturday 22:30
    assert night.contains(utc("2026-11-22T04:59"))  # Sunday 05:59
    assert not night.contains(utc("2026-11-22T05:00"))
    assert not night.contains(utc("2026-11-20T22:00"))  # Friday
    assert not night.contains(utc("2026-11-22T21:30"))  # Sunday


def test_a_window_names_its_end_and_its_next_opening():
    night = weekly("22:00", "06:00", SATURDAY)
    assert night.end(utc("2026-11-21T21:30")) == utc("2026-11-22T05:00")
    assert night.end(utc("2026-11-22T05:00")) is None
    assert night.next_start(utc("2026-11-22T05:00")) == utc("2026-11-28T21:00")
    once = TimeWindow(
        "w", BERLIN, DateSpan(datetime.fromisoformat("2026-11-21T22:00"), datetime.fromisoformat("2026-11-22T06:00"))
    )
    assert once.next_start(utc("2026-11-20T12:00")) == utc("2026-11-21T21:00")
    assert once.next_start(utc("2026-11-22T12:00")) is None
    weekend = weekly("00:00", "00:00", SATURDAY, SUNDAY, zone=UTC)
    assert weekend.end(utc("2026-11-21T12:00")) == utc("2026-11-23T00:00")


def test_a_window_in_a_skipped_hour_opens_a_day_later():
    assert weekly("02:15", "02:45").next_start(utc("2027-03-27T12:00")) == utc("2027-03-29T00:15")


def test_equal_start_and_end_mean_a_whole_day():
    assert open_minutes(weekly("00:00", "00:00", SUNDAY, zone=SHANGHAI), "2026-11-22") == 24 * 60


@pytest.mark.parametrize(
    ("start", "end", "day", "minutes"),
    [
        ("01:00", "05:00", "2027-03-28", 3 * 60),  # an hour is skipped at 02:00
        ("01:00", "05:00", "2026-10-25", 5 * 60),  # an hour is repeated at 03:00
        ("01:00", "05:00", "2026-11-22", 4 * 60),
        ("02:15", "02:45", "2027-03-28", 0),  # does not exist on that day
        ("02:15", "02:45", "2026-10-25", 0),  # exists twice: stricter
        ("03:00", "05:00", "2027-03-28", 2 * 60),
        ("02:30", "04:00", "2027-03-28", 30),  # starts at 03:30 by the new time
    ],
)
def test_a_maintenance_window_is_never_longer_than_the_wall_clock_says(start, end, day, minutes):
    assert open_minutes(weekly(start, end, SUNDAY), day) == minutes


@pytest.mark.parametrize(
    ("start", "end", "day", "minutes"),
    [
        ("01:00", "05:00", "2027-03-28", 3 * 60),
        ("01:00", "05:00", "2026-10-25", 5 * 60),
        ("02:15", "02:45", "2026-10-25", 90),  # from its first start to its second end
        ("02:30", "04:00", "2027-03-28", 90),  # from 01:30 by the old time
    ],
)
def test_a_freeze_is_never_shorter(start, end, day, minutes):
    assert open_minutes(weekly(start, end, SUNDAY), day, widen=True) == minutes


def test_shanghai_has_no_daylight_saving_time():
    for day in ("2027-03-28", "2026-10-25", "2026-11-22"):
        assert open_minutes(weekly("01:00", "05:00", SUNDAY, zone=SHANGHAI), day) == 4 * 60


def test_a_span_of_dates_is_read_in_its_zone():
    dates = DateSpan(datetime(2026, 12, 24, 18), datetime(2026, 12, 27))  # noqa: DTZ001 - wall clock
    holidays = TimeWindow("holidays", SHANGHAI, dates)
    assert not holidays.contains(utc("2026-12-24T09:59"))
    assert holidays.contains(utc("2026-12-24T10:00"))
    assert holidays.contains(utc("2026-12-26T15:59"))
    assert not holidays.contains(utc("2026-12-26T16:00"))


@given(
    at=st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1)),  # noqa: DTZ001 - made UTC below
    start=st.times(),
    end=st.times(),
    zone=st.sampled_from([BERLIN, SHANGHAI, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")]),
)
def test_outside_of_clock_changes_a_window_follows_the_wall_clock(at, start, end, zone):
    now = at.replace(tzinfo=UTC)
    local = now.astimezone(zone)
    offsets = {(now + timedelta(hours=hours)).astimezone(zone).utcoffset() for hours in range(-26, 27)}
    if len(offsets) > 1:
        return
    wall = local.time()
    inside = start <= wall < end if end > start else (wall >= start or wall < end)
    window = TimeWindow("w", zone, WeeklySpan(start, end))
    assert window.contains(now) is inside
    assert window.contains(now, widen=True) is inside


@given(at=st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1)), start=st.times(), end=st.times())  # noqa: DTZ001
def test_a_freeze_contains_the_maintenance_window_of_the_same_times(at, start, end):
    window, now = TimeWindow("w", BERLIN, WeeklySpan(start, end)), at.replace(tzinfo=UTC)
    assert window.contains(now, widen=True) or not window.contains(now)


CHAT = ServiceScope(frozenset({"chat", "llm/chat"}), frozenset({"prod"}))
BATCH = ServiceScope(frozenset({"batch"}), frozenset({"lab"}))
NIGHT, NOON = utc("2026-11-23T02:00"), utc("2026-11-23T12:00")


def test_a_service_without_a_window_is_not_restricted():
    nightly = (weekly("01:00", "05:00", zone=UTC, services=frozenset({"llm/chat"})),)
    assert missed_windows(nightly, Scope(None, (CHAT,)), NOON) == "w"
    assert missed_windows(nightly, Scope(None, (CHAT,)), NIGHT) == ""
    assert missed_windows(nightly, Scope(None, (BATCH,)), NOON) == ""
    assert missed_windows(nightly, Scope(None, (BATCH, CHAT)), NOON) == "w"


def test_one_of_several_windows_suffices():
    windows = (weekly("01:00", "05:00", zone=UTC), replace(weekly("12:00", "13:00", zone=UTC), name="lunch"))
    assert missed_windows(windows, Scope(None, (CHAT,)), NOON) == ""
    assert missed_windows(windows, Scope(None, (CHAT,)), utc("2026-11-23T14:00")) == "w, lunch"


def test_a_freeze_of_an_environment_holds_its_services_only():
    freezes = (weekly("00:00", "00:00", zone=UTC, environments=frozenset({"prod"})),)
    assert frozen_by(freezes, Scope(None, (CHAT,)), NOON) == "w"
    assert frozen_by(freezes, Scope(None, (BATCH,)), NOON) == ""
    assert frozen_by(freezes, Scope(None, (BATCH, CHAT)), NOON) == "w"


def test_disruptive_steps_wait_for_the_window_and_others_do_not(fleet, words):
    fleet.policy = replace(fleet.policy, maintenance_windows=(weekly("01:00", "05:00", zone=UTC),))
    fleet.break_("engine-hung", fleet.replicas[0])
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "allowed", "within_limits")]
    (refused,) = fleet.cycle()
    assert (refused.kind, refused.reason) == (ActionKind.RESTART_POD, DecisionReason.NOT_IN_MAINTENANCE_WINDOW)
    assert refused.detail == "w"
    assert fleet.run(3) == []
    fleet.now = fleet.now.replace(hour=1, minute=0) + timedelta(days=1)
    assert words(fleet.cycle()) == [("restart_pod", "chat-0", "allowed", "within_limits")]


def test_a_freeze_holds_every_step_and_the_plan(fleet, words):
    fleet.policy = replace(fleet.policy, freezes=(weekly("00:00", "00:00", zone=UTC),))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.recommend(8, 12)
    assert words(fleet.cycle()) == [("cordon", "node-0", "refused", "freeze"), ("scale", "chat", "refused", "freeze")]
    assert fleet.run(3) == []
    fleet.policy = replace(fleet.policy, freezes=())
    assert words(fleet.cycle())[0] == ("cordon", "node-0", "allowed", "within_limits")
