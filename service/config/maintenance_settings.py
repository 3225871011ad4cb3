"""Planned maintenance: windows and calendars in which alerts of what is maintained page nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from importlib.util import find_spec
from zoneinfo import ZoneInfo

from pydantic import Field

from outrider.errors import ConfigProblem, UsageError
from outrider.records.silences import (
    LabelMatcher,
    Silence,
    SilenceWindow,
    check_matchers,
    parse_matcher,
    selects_everything,
)
from outrider.text import install_hints, yaml_file
from outrider.vocabulary.time_spans import DateSpan
from service.config.oncall_settings import CALENDAR_LIBRARY, CalendarSettings
from service.config.settings_base import TimeZone, duplicate_names
from service.config.time_span_settings import TimeSpanSettings

SOURCE = "maintenance"
ALWAYS = datetime(9999, 12, 31, tzinfo=UTC)


class MaintenanceSettings(TimeSpanSettings):
    """A maintenance window."""

    match: list[str] = Field(
        description='Matchers that all hold, such as node=~"gpu-.*", cluster=edge or service!=chat.', min_length=1
    )
    dependents: bool = Field(
        default=True, description="Also mute alerts of what rests on the matched entities, such as pods of a node."
    )

    def silence(self) -> Silence:
        """Returns the silence of the window."""
        span, zone = self.span(), ZoneInfo(self.timezone)
        starts_at, until, window = None, ALWAYS, None
        if isinstance(span, DateSpan):
            starts_at, until = (at.replace(tzinfo=zone).astimezone(UTC) for at in (span.start, span.end))
        else:
            days = tuple(sorted(span.days))
            window = SilenceWindow(_minute(span.start), _minute(span.end), days, self.timezone)
        return Silence(
            id=f"{SOURCE}/{self.name}",
            rule=None,
            entity=None,
            until=until,
            by="configuration",
            comment=self.name,
            matchers=tuple(parse_matcher(text) for text in self.match),
            starts_at=starts_at,
            window=window,
            dependents=self.dependents,
            source=SOURCE,
        )


class MaintenanceCalendarSettings(CalendarSettings):
    """A calendar (RFC 5545) whose events are maintenance windows. Needs the extra calendar."""

    name: str = Field(description="Name in errors, on silences and in the audit log.", min_length=1, examples=["moves"])
    match: list[str] = Field(
        description="Matchers that all hold, such as cluster=edge; they select what the events maintain.", min_length=1
    )
    dependents: bool = Field(
        default=True, description="Also mute alerts of what rests on the matched entities, such as pods of a node."
    )
    timezone: TimeZone = Field("UTC", description="Time zone of all-day events and of times without a zone.")
    containing: str = Field(
        "", description="Only events with this text in their summary, in any case. Default: all.", examples=["[edge]"]
    )

    def matchers(self) -> tuple[LabelMatcher, ...]:
        """Returns the matchers of its silences."""
        return tuple(parse_matcher(text) for text in self.match)


def maintenance_problems(
    windows: Sequence[MaintenanceSettings], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks the matchers of windows, and that each has its own name."""
    yield from _entry_problems(windows, "maintenance", document)


def maintenance_calendar_problems(
    calendars: Sequence[MaintenanceCalendarSettings], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks the matchers of calendars, that each has its own name, and that the library is installed."""
    yield from _entry_problems(calendars, "maintenance_calendars", document)
    if find_spec(CALENDAR_LIBRARY) is None:
        for index in range(len(calendars)):
            yield document.problem(
                ("maintenance_calendars", index), f"needs extra libraries; {install_hints.how('calendar')}"
            )


def _entry_problems(
    entries: Sequence[MaintenanceSettings | MaintenanceCalendarSettings], section: str, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    yield from duplicate_names([entry.name for entry in entries], (section,), document)
    for index, entry in enumerate(entries):
        yield from _matcher_problems(entry.match, (section, index), document)


def _matcher_problems(
    texts: Sequence[str], path: yaml_file.Path_, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks that each matcher can be read, and that together they do not select everything."""
    matchers = []
    for number, text in enumerate(texts):
        try:
            matchers.append(parse_matcher(text))
        except UsageError as error:
            yield document.problem((*path, "match", number), f"{error.message}; {error.hint}")
    if len(matchers) == len(texts) and selects_everything(matchers):
        yield document.problem((*path, "match"), "selects every alert; add a matcher such as cluster=edge")
    try:
        check_matchers(matchers)
    except UsageError as error:
        yield document.problem((*path, "match"), error.message)


def _minute(at: time) -> int:
    return at.hour * 60 + at.minute
