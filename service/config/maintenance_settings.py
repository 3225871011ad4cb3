"""Planned maintenance: recurring or dated windows in which alerts of what is maintained page nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from outrider.errors import ConfigProblem, UsageError
from outrider.records.silences import Silence, SilenceWindow, check_matchers, parse_matcher, selects_everything
from outrider.text import yaml_file
from outrider.vocabulary.time_spans import DAYS, EVERY_DAY, Day
from service.config.settings_base import Section, TimeZone
from service.config.wall_times import WallTime

SOURCE = "maintenance"
ALWAYS = datetime(9999, 12, 31, tzinfo=UTC)


class MaintenanceSettings(Section):
    """A maintenance window. Start and end are both times of day, every week, or both dates with times."""

    name: str = Field(description="Name on the dashboard and in the audit log.", min_length=1)
    match: list[str] = Field(
        description='Matchers that all hold, such as node=~"gpu-.*", cluster=edge or service!=chat.', min_length=1
    )
    timezone: TimeZone = Field("UTC", description="Time zone of start and end, for example Asia/Shanghai.")
    start: WallTime = Field(description='Start, for example "22:00" or "2026-12-24 18:00".')
    end: WallTime = Field(description="End, not included. A time of day that is not after start is on the next day.")
    days: list[Day] = Field([], description="Days of the week on which it starts. Default: every day.")
    dependents: bool = Field(
        default=True, description="Also mute alerts of what rests on the matched entities, such as pods of a node."
    )

    @model_validator(mode="after")
    def _consistent(self) -> MaintenanceSettings:
        if isinstance(self.start, datetime) != isinstance(self.end, datetime):
            raise ValueError("start and end must both be times of day, or both dates with times")
        if isinstance(self.start, datetime) and isinstance(self.end, datetime):
            if self.end <= self.start:
                raise ValueError("end must be after start")
            if self.days:
                raise ValueError("days belongs to times of day, not to dates")
        return self

    def silence(self) -> Silence:
        """Returns the silence of the window."""
        zone = ZoneInfo(self.timezone)
        starts_at: datetime | None = None
        until, window = ALWAYS, None
        if isinstance(self.start, datetime) and isinstance(self.end, datetime):
            starts_at, until = self.start.replace(tzinfo=zone), self.end.replace(tzinfo=zone)
            starts_at, until = starts_at.astimezone(UTC), until.astimezone(UTC)
        else:
            assert isinstance(self.start, time)
            assert isinstance(self.end, time)
            days = tuple(sorted(DAYS.index(day) for day in self.days)) or tuple(sorted(EVERY_DAY))
            window = SilenceWindow(_minute(self.start), _minute(self.end), days, self.timezone)
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


def maintenance_problems(
    windows: Sequence[MaintenanceSettings], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks the matchers: each can be read, and together they do not select everything."""
    names: set[str] = set()
    for index, window in enumerate(windows):
        matchers = []
        for number, text in enumerate(window.match):
            try:
                matchers.append(parse_matcher(text))
            except UsageError as error:
                yield document.problem(("maintenance", index, "match", number), f"{error.message}; {error.hint}")
        if len(matchers) == len(window.match) and selects_everything(matchers):
            message = "selects every alert; add a matcher such as cluster=edge"
            yield document.problem(("maintenance", index, "match"), message)
        try:
            check_matchers(matchers)
        except UsageError as error:
            yield document.problem(("maintenance", index, "match"), error.message)
        if window.name in names:
            yield document.problem(("maintenance", index, "name"), f"duplicate name {window.name!r}")
        names.add(window.name)


def _minute(at: time) -> int:
    return at.hour * 60 + at.minute
