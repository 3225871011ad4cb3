"""Spans of time of the configuration: hours of a day, and spans every week or once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, time
from typing import Self

from pydantic import Field, model_validator

from outrider.vocabulary.time_spans import DAYS, EVERY_DAY, DateSpan, Day, WeeklySpan
from service.config.settings_base import Section, TimeZone
from service.config.wall_times import TimeOfDay, WallTime


class HoursSettings(Section):
    """Hours of a day."""

    start: TimeOfDay = Field(description="Start.", examples=['"20:00"'])
    end: TimeOfDay = Field(
        description="End, not included. A time that is not after start is on the next day.", examples=['"08:30"']
    )
    days: list[Day] = Field(
        [], description="Days of the week on which they start. Default: every day.", examples=["[mon, tue]"]
    )

    def span(self) -> WeeklySpan:
        """Returns the span by the wall clock."""
        return _weekly(self.start, self.end, self.days)


class TimeSpanSettings(Section):
    """A span of time, every week or once. Start and end are both times of day, or both dates with times."""

    name: str = Field(
        description="Name in reasons, on the dashboard and in the audit log.", min_length=1, examples=["nightly"]
    )
    timezone: TimeZone = Field("UTC", description="Time zone of start and end, for example Europe/Berlin.")
    start: WallTime = Field(description="Start: a time of day, or a date with a time.", examples=['"22:00"'])
    end: WallTime = Field(
        description="End, not included. A time of day that is not after start is on the next day.", examples=['"04:30"']
    )
    days: list[Day] = Field(
        [], description="Days of the week on which a weekly span starts. Default: every day.", examples=["[sat, sun]"]
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.start, datetime) != isinstance(self.end, datetime):
            raise ValueError("start and end must both be times of day, or both dates with times")
        if isinstance(self.start, datetime) and isinstance(self.end, datetime):
            if self.end <= self.start:
                raise ValueError("end must be after start")
            if self.days:
                raise ValueError("days belongs to times of day, not to dates")
        return self

    def span(self) -> WeeklySpan | DateSpan:
        """Returns the span by the wall clock of its time zone."""
        if isinstance(self.start, datetime) and isinstance(self.end, datetime):
            return DateSpan(self.start, self.end)
        assert isinstance(self.start, time)
        assert isinstance(self.end, time)
        return _weekly(self.start, self.end, self.days)


def _weekly(start: time, end: time, days: Iterable[Day]) -> WeeklySpan:
    return WeeklySpan(start, end, frozenset(DAYS.index(day) for day in days) or EVERY_DAY)
