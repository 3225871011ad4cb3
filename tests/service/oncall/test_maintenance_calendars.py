"""Calendars of planned maintenance: recurring events, time zones, and calendars that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from outrider.errors import UsageError
from outrider.records.silences import Silence, in_force, parse_matcher
from outrider.text import yaml_file
from service.config import settings as settings_file
from service.config.maintenance_settings import MaintenanceCalendarSettings
from service.config.settings import Settings
from service.oncall.config_warnings import maintenance_warnings
from service.oncall.maintenance_calendars import MOST_WINDOWS, MaintenanceCalendars, silences_of
from store.memory.state import MemoryStateStore

NOW = datetime(2026, 3, 27, 12, tzinfo=UTC)  # two days before summer time in Berlin
NIGHTLY = (
    "UID:patch", "DTSTART;TZID=Europe/Berlin:20260101T220000", "DTEND;TZID=Europe/Berlin:20260102T020000",
    "RRULE:FREQ=DAILY", "SUMMARY:[edge] patch night",
)  # fmt: skip
MOVE = "UID:move", "DTSTART;VALUE=DATE:20260401", "SUMMARY:data center move"


def calendar_of(*events: tuple[str, ...]) -> str:
    lines = [line for event in events for line in ("BEGIN:VEVENT", *event, "END:VEVENT")]
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:test", *lines, "END:VCALENDAR", ""])


def settings(**more: object) -> MaintenanceCalendarSettings:
    return MaintenanceCalendarSettings.model_validate(
        {"name": "edge", "match": ["cluster=edge"], "url": "https://calendar.example/secret.ics", **more}
    )


class Source:
    """The text of a calendar; None while it cannot be read."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __call__(self, _item: MaintenanceCalendarSettings) -> str:
        if self.text is None:
            raise UsageError("the server of the calendar cannot be reached: ConnectError")
        return self.text


@pytest.fixture
def state() -> MemoryStateStore:
    return MemoryStateStore()


def test_a_recurring_event_keeps_its_wall_clock_over_a_time_change(state: MemoryStateStore) -> None:
    MaintenanceCalendars([settings()], state, Source(calendar_of(NIGHTLY))).run_due(NOW)
    starts = [silence.starts_at for silence in state.silences(NOW)]
    assert len(starts) == 14
    assert [at.hour for at in starts[:4] if at is not None] == [21, 21, 20, 20]
    assert not in_force(state.silences(NOW), NOW)
    (tonight,) = in_force(state.silences(NOW), datetime(2026, 3, 27, 23, tzinfo=UTC))
    assert (tonight.source, tonight.dependents, tonight.comment) == ("calendar", True, "edge: [edge] patch night")
    assert tonight.matchers == (parse_matcher("cluster=edge"),)


def test_an_all_day_event_is_a_day_in_the_zone_of_the_calendar() -> None:
    (silence,) = silences_of(settings(timezone="Asia/Shanghai"), calendar_of(MOVE), NOW)
    assert silence.starts_at == datetime(2026, 3, 31, 16, tzinfo=UTC)
    assert silence.until - silence.starts_at == timedelta(days=1)


def test_only_events_with_the_text_count() -> None:
    text = calendar_of(NIGHTLY, MOVE)
    assert {item.comment for item in silences_of(settings(containing="[EDGE]"), text, NOW)} == {
        "edge: [edge] patch night"
    }
    assert len(silences_of(settings(), text, NOW)) == 15


@pytest.mark.parametrize("broken", [None, "<html>login</html>", "", "BEGIN:VCALENDAR"])
def test_a_broken_calendar_is_named_and_mutes_nothing_new(
    state: MemoryStateStore, broken: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MaintenanceCalendars([settings()], state, Source(broken)).run_due(NOW) == 1
    assert state.silences(NOW) == ()
    logged = capsys.readouterr()
    assert "maintenance_calendar_not_read" in logged.out + logged.err
    assert "edge" in logged.out + logged.err
    assert "secret" not in logged.out + logged.err


def test_windows_that_were_read_outlast_an_unavailable_server(state: MemoryStateStore) -> None:
    source = Source(calendar_of(NIGHTLY))
    task = MaintenanceCalendars([settings(every="1h")], state, source)
    task.run_due(NOW)
    before, source.text = state.silences(NOW), None
    assert task.run_due(NOW + timedelta(minutes=30)) == 0, "not due"
    assert task.run_due(NOW + timedelta(hours=1)) == 1
    assert state.silences(NOW) == before


def test_a_removed_event_and_a_removed_calendar_end_their_windows(state: MemoryStateStore) -> None:
    source = Source(calendar_of(NIGHTLY, MOVE))
    task = MaintenanceCalendars([settings()], state, source)
    task.run_due(NOW)
    source.text = calendar_of(MOVE)
    task.run_due(NOW + timedelta(hours=1))
    assert [silence.comment for silence in state.silences(NOW)] == ["edge: data center move"]
    own = Silence("s", "gpu-lost", None, NOW + timedelta(days=1), "li")
    state.add_silence(own)
    MaintenanceCalendars([], state).run_due(NOW)
    assert state.silences(NOW) == (own,), "by hand, so it stays"
    assert [record.event.value for record in state.audit()].count("unsilenced") == 15


def test_a_second_calendar_with_a_longer_name_keeps_its_windows(state: MemoryStateStore) -> None:
    text = calendar_of(MOVE)
    MaintenanceCalendars([settings(), settings(name="edge/2")], state, Source(text)).run_due(NOW)
    MaintenanceCalendars([settings()], state, Source(text)).run_due(NOW)
    assert [silence.comment for silence in state.silences(NOW)] == ["edge: data center move"]


def test_too_many_windows_are_refused() -> None:
    many = [(f"UID:{number}", *NIGHTLY[1:]) for number in range(MOST_WINDOWS // 14 + 1)]
    with pytest.raises(UsageError, match="500 are the maximum"):
        silences_of(settings(), calendar_of(*many), NOW)


FILE = """
maintenance_calendars:
  - name: edge
    match: ["cluster=edge"]
    file: FILE
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("cluster=edge", "rule!=x", "selects every alert"),
        ("cluster=edge", "node=~(", "regular expression"),
        ("    file: FILE", "    every: 5m", "needs one of file, url and url_file"),
    ],
)
def test_mistakes_are_named(tmp_path, before: str, after: str, message: str) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(FILE.replace(before, after), encoding="utf-8")
    _, problems, _ = settings_file.review(path)
    assert any(message in problem.message for problem in problems), problems


def test_a_calendar_without_matchers_is_refused() -> None:
    with pytest.raises(ValidationError):
        settings(match=[])


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), ("<html>", "not a calendar")])
def test_config_check_names_an_unreadable_file_with_its_line(tmp_path, text: str | None, message: str) -> None:
    file = tmp_path / "edge.ics"
    if text is not None:
        file.write_text(text)
    document = yaml_file.parse(FILE, "outrider.yaml")
    given = Settings.model_validate({"maintenance_calendars": [settings(url=None, file=file)]})
    (warning,) = map(str, maintenance_warnings(given, document, NOW))
    assert warning.startswith("outrider.yaml:3: maintenance_calendars[0]: edge: ")
    assert message in warning
