"""Rotations over time changes: every instant has one shift, and handovers are at the same time of day."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule, ShiftSource
from outrider.records.on_call import ShiftOverride
from outrider.vocabulary.time_spans import WeeklySpan

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe")
]
PEOPLE = ("li", "wang", "chen")
HOURS = st.integers(0, 23)
clock_times = st.builds(time, HOURS, st.sampled_from((0, 15, 30)))
duty_hours = st.builds(WeeklySpan, clock_times, clock_times, st.frozensets(st.integers(0, 6), min_size=1))
rotations = st.builds(
    Rotation,
    st.sampled_from(("first", "second")),
    st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=3, unique=True).map(tuple),
    st.dates(date(2025, 12, 1), date(2026, 6, 1)),
    clock_times,
    st.integers(1, 14),
    st.sampled_from(ZONES),
    st.lists(duty_hours, max_size=2).map(tuple),
)
instants = st.integers(0, 274 * 86_400).map(
    lambda seconds: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)


def weekly(**changed):
    fields = {
        "name": "primary",
        "people": PEOPLE,
        "start": date(2026, 3, 23),
        "handover": time(9),
        "days": 7,
        "zone": BERLIN,
    }
    return Rotation(**(fields | changed))


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def override(**changed):
    fields = {
        "id": "o1",
        "schedule": "model",
        "person": "chen",
        "start": utc(2026, 4, 1, 10),
        "end": utc(2026, 4, 1, 12),
        "by": "li",
        "at": utc(2026, 3, 1),
    }
    return ShiftOverride(**(fields | changed))


@given(rotations, st.integers(0, 60))
def test_every_handover_is_at_its_time_of_day_in_its_zone(rotation, number):
    at = rotation.handover_at(number)
    local = at.astimezone(rotation.zone)
    skipped = local.time() != rotation.handover
    if skipped:  # the hour does not exist on the day of the change
        assert local.replace(tzinfo=None) - datetime.combine(local.date(), rotation.handover) <= timedelta(hours=1)
    assert rotation.shift_at(at) == number
    assert rotation.shift_at(at - timedelta(microseconds=1)) == number - 1


@given(rotations, instants)
def test_a_shift_contains_the_time_that_it_was_found_by(rotation, at):
    shift = rotation.shift_at(at)
    assert rotation.handover_at(shift) <= at < rotation.handover_at(shift + 1)


@given(rotations, instants)
def test_turns_go_around_in_order(rotation, at):
    assert set(rotation.order_after(at)) == set(rotation.people)
    following = rotation.handover_at(max(-1, rotation.shift_at(at)) + 1)
    assert rotation.people[rotation.shift_at(following) % len(rotation.people)] == rotation.order_after(at)[0]


@given(st.lists(rotations, max_size=3), instants, st.integers(1, 30), st.data())
def test_shifts_and_gaps_cover_every_instant_once(rotation_list, start, days, data):
    schedule = Schedule("model", tuple(rotation_list))
    end = start + timedelta(days=days)
    shifts = schedule.shifts(start, end)
    assert (shifts[0].start, shifts[-1].end) == (start, end)
    assert all(one.end == other.start and one.start < one.end for one, other in pairwise(shifts))
    at = start + timedelta(seconds=data.draw(st.integers(0, days * 86_400 - 1)))
    [shift] = [shift for shift in shifts if shift.start <= at < shift.end]
    assert shift.person == schedule.person_at(at)
    whole = schedule.shift_at(at)
    assert whole.start <= at < whole.end
    assert whole.person == shift.person


@given(st.lists(rotations, min_size=1, max_size=2), instants)
def test_the_second_person_is_never_the_one_on_call(rotation_list, at):
    schedule = Schedule("model", tuple(rotation_list))
    second = schedule.second_at(at)
    assert second is None or second != schedule.person_at(at)


def test_the_week_of_a_time_change_is_an_hour_shorter_or_longer():
    rotation = weekly()
    spring = rotation.handover_at(1) - rotation.handover_at(0)
    assert spring == timedelta(days=7, hours=-1)
    autumn = weekly(start=date(2026, 10, 19))
    assert autumn.handover_at(1) - autumn.handover_at(0) == timedelta(days=7, hours=1)
    assert [rotation.handover_at(n).hour for n in (0, 1)] == [8, 7]


def test_a_handover_in_the_skipped_hour_happens_an_hour_later_on_the_clock():
    rotation = weekly(start=date(2026, 3, 29), handover=time(2, 30), days=1)
    assert rotation.handover_at(0) == utc(2026, 3, 29, 1, 30)
    assert rotation.handover_at(0).astimezone(BERLIN).time() == time(3, 30)


def test_a_handover_in_the_repeated_hour_happens_the_first_time():
    rotation = weekly(start=date(2026, 10, 25), handover=time(2, 30), days=1)
    assert rotation.handover_at(0) == utc(2026, 10, 25, 0, 30)


def test_nobody_is_on_duty_before_the_first_handover():
    rotation = weekly()
    assert rotation.person_at(utc(2026, 3, 23, 7, 59)) is None
    assert rotation.person_at(utc(2026, 3, 23, 8, 0)) == "li"


def test_night_hours_end_on_the_next_day():
    night = weekly(hours=(WeeklySpan(time(22), time(6)),))
    assert night.person_at(utc(2026, 4, 1, 20, 30)) == "wang"  # 22:30 in Berlin
    assert night.person_at(utc(2026, 4, 2, 3, 59)) == "wang"
    assert night.person_at(utc(2026, 4, 2, 4, 0)) is None


def test_two_sites_that_follow_the_sun_leave_a_gap_only_while_their_clocks_differ():
    europe = weekly(name="europe", people=("li",), hours=(WeeklySpan(time(8), time(20)),))
    america = weekly(
        name="america", people=("ann",), zone=ZoneInfo("America/New_York"), hours=(WeeklySpan(time(14), time(2)),)
    )
    schedule = Schedule("model", (europe, america))
    assert not schedule.gaps(utc(2026, 4, 1), utc(2026, 5, 1))
    [gap, *_] = schedule.gaps(utc(2026, 10, 25), utc(2026, 10, 30))
    assert gap.end - gap.start == timedelta(hours=1)
    assert gap.source is ShiftSource.GAP


def test_an_override_counts_before_the_rotation_and_the_later_entry_before_the_earlier():
    schedule = Schedule("model", (weekly(),), (override(),))
    assert [schedule.person_at(utc(2026, 4, 1, hour)) for hour in (9, 10, 12)] == ["wang", "chen", "wang"]
    twice = Schedule("model", (weekly(),), (override(id="o2", person="li", at=utc(2026, 3, 2)), override()))
    assert twice.person_at(utc(2026, 4, 1, 10)) == "li"
    assert twice.shift_at(utc(2026, 4, 1, 11)).source is ShiftSource.OVERRIDE


def test_two_turns_in_a_row_of_the_only_person_stay_two_shifts():
    schedule = Schedule("model", (weekly(people=("li",)),))
    shifts = schedule.shifts(utc(2026, 4, 1), utc(2026, 4, 10))
    assert [(shift.person, shift.start.day) for shift in shifts] == [("li", 1), ("li", 6)]
    assert schedule.second_at(utc(2026, 4, 1)) is None


def test_a_schedule_without_rotations_is_one_gap():
    [gap] = Schedule("empty").shifts(utc(2026, 4, 1), utc(2026, 4, 2))
    assert gap.person is None
