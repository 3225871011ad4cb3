"""Rosters of a running platform: configuration, stored overrides and calendars."""

from datetime import UTC, datetime, timedelta

import pytest

from alerts.oncall.roster import StepTarget
from outrider.records.on_call import ShiftOverride, StoredCalendar
from service.oncall import roster as roster_module
from service.oncall.calendars import CalendarReader
from service.oncall.roster import RosterSource
from store.memory import MemoryStateStore
from tests.support import on_call
from tests.support.json_server import Response, json_server

NOW = datetime(2026, 5, 6, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def calendar_of(person, start="20260505T000000Z", end="20260508T000000Z"):
    lines = (
        "BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:test", "BEGIN:VEVENT", "UID:1", f"DTSTART:{start}", f"DTEND:{end}",
        f"SUMMARY:{person}", "END:VEVENT", "END:VCALENDAR", "",
    )  # fmt: skip
    return "\r\n".join(lines)


def with_calendar(**calendar):
    return on_call.settings(schedules=[on_call.SCHEDULE | {"calendar": calendar}])


def on_call_at(source, now=NOW):
    roster = source(now)
    return roster.on_step(roster.team("model"), StepTarget.ON_CALL, now)


@pytest.fixture
def store():
    return MemoryStateStore()


def test_the_roster_has_the_people_teams_and_schedules_of_the_configuration(store):
    roster = RosterSource(on_call.settings(), store)(NOW)
    assert [team.name for team in roster.teams] == ["model", "hardware"]
    assert roster.people["li"].recipient("sms").phone == "+8613800000001"
    assert on_call_at(RosterSource(on_call.settings(), store)) == ("li",)


def test_a_stored_override_counts_at_once(store):
    source = RosterSource(on_call.settings(), store)
    assert on_call_at(source) == ("li",)
    store.add_shift_override(ShiftOverride("o1", "model", "zhao", NOW - HOUR, NOW + HOUR, "li", NOW))
    assert on_call_at(source) == ("zhao",)
    assert on_call_at(source, NOW + HOUR) == ("li",)


def test_a_calendar_counts_before_the_rotation_and_is_expanded_once(store, monkeypatch):
    expanded = []
    original = roster_module.expand
    monkeypatch.setattr(roster_module, "expand", lambda *given: expanded.append(given) or original(*given))
    source = RosterSource(with_calendar(url="https://calendar.example/x.ics"), store)
    assert on_call_at(source) == ("li",), "nothing is stored yet"
    store.save_calendar(StoredCalendar("model", calendar_of("WANG"), NOW))
    for minute in range(5):
        assert on_call_at(source, NOW + timedelta(minutes=minute)) == ("wang",)
    assert len(expanded) == 1
    store.save_calendar(StoredCalendar("model", calendar_of("zhao"), NOW))
    assert on_call_at(source) == ("zhao",)
    assert len(expanded) == 2


def test_a_calendar_is_expanded_ahead_of_the_cycle(store, tmp_path, monkeypatch):
    expanded = []
    original = roster_module.expand
    monkeypatch.setattr(roster_module, "expand", lambda *given: expanded.append(given) or original(*given))
    file = tmp_path / "duty.ics"
    file.write_text(calendar_of("wang"))
    settings = with_calendar(file=file, every="1h")
    source = RosterSource(settings, store)
    reader = CalendarReader(settings.people, settings.schedules, store, source.prepare)
    for hour in range(48):
        reader.run_due(NOW + hour * HOUR)
        before = len(expanded)
        on_call_at(source, NOW + hour * HOUR)
        assert len(expanded) == before, "a cycle waits for no calendar"
    assert len(expanded) == 3, "once a day"
    assert on_call_at(source, NOW + timedelta(hours=30)) == ("wang",)


def test_a_file_is_read_before_the_engine_has_stored_it(store, tmp_path):
    file = tmp_path / "duty.ics"
    source = RosterSource(with_calendar(file=file), store)
    assert on_call_at(source) == ("li",)
    file.write_text(calendar_of("wang"))
    assert on_call_at(source) == ("wang",)


def test_a_stored_text_that_is_no_calendar_leaves_the_rotation(store):
    store.save_calendar(StoredCalendar("model", "<html>login</html>", NOW))
    assert on_call_at(RosterSource(with_calendar(url="https://calendar.example/x.ics"), store)) == ("li",)


def test_names_of_a_calendar_that_nobody_has_are_known(store):
    store.save_calendar(StoredCalendar("model", calendar_of("Olivia"), NOW))
    source = RosterSource(with_calendar(url="https://calendar.example/x.ics"), store)
    assert on_call_at(source) == ("li",)
    assert source.unknown_names("model") == ("Olivia",)


def test_a_file_is_read_at_its_interval(store, tmp_path):
    file = tmp_path / "duty.ics"
    file.write_text(calendar_of("wang"))
    settings = with_calendar(file=file, every="5m")
    reader = CalendarReader(settings.people, settings.schedules, store)
    assert [reader.run_due(NOW + timedelta(minutes=minute)) for minute in range(7)] == [1, 0, 0, 0, 0, 1, 0]
    assert store.calendars()[0].read_at == NOW + timedelta(minutes=5)


def test_a_calendar_that_cannot_be_read_keeps_its_last_text(store, tmp_path):
    file = tmp_path / "duty.ics"
    file.write_text(calendar_of("wang"))
    settings = with_calendar(file=file, every="1m")
    reader = CalendarReader(settings.people, settings.schedules, store)
    reader.run_due(NOW)
    [first] = store.calendars()
    file.write_text("hello")
    reader.run_due(NOW + HOUR)
    [stored] = store.calendars()
    assert (stored.text, stored.read_at) == (first.text, NOW)
    assert "not a calendar" in stored.error
    file.unlink()
    reader.run_due(NOW + 2 * HOUR)
    assert store.calendars()[0].error == f"the calendar {file} cannot be read: No such file or directory"
    assert on_call_at(RosterSource(settings, store)) == ("wang",)


def test_a_calendar_is_read_from_a_url_whose_errors_do_not_name_it(store, tmp_path):
    with json_server() as server:
        server.responses["GET /secret-token.ics"] = Response(raw=calendar_of("wang").encode())
        secret = tmp_path / "url"
        secret.write_text(f"{server.url}/secret-token.ics\n")
        settings = with_calendar(url_file=secret, every="1m")
        reader = CalendarReader(settings.people, settings.schedules, store)
        reader.run_due(NOW)
        assert on_call_at(RosterSource(settings, store)) == ("wang",)
        server.responses.clear()
        reader.run_due(NOW + HOUR)
        assert store.calendars()[0].error == "the server of the calendar returned status 404"
    reader.run_due(NOW + 2 * HOUR)
    [stored] = store.calendars()
    assert "cannot be reached" in stored.error
    assert "secret-token" not in stored.error
    assert stored.text == calendar_of("wang")
