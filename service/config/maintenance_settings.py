"""Planned maintenance: recurring or dated windows in which alerts of what is maintained page nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

from pydantic import Field

from outrider.errors import ConfigProblem, UsageError
from outrider.records.silences import Silence, SilenceWindow, check_matchers, parse_matcher, selects_everything
from outrider.text import yaml_file
from outrider.vocabulary.time_spans import DateSpan
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
