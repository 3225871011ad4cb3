"""A silence as it is requested, by the API and by the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Annotated, Any
from uuid import uuid4

import pydantic
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.records.silences import Silence, SilenceWindow, parse_matcher
from outrider.text import yaml_words
from outrider.vocabulary.time_spans import DAYS, EVERY_DAY, Day
from service.config.settings_base import TimeZone

MOST_DAYS, MOST_DAYS_WITH_WINDOW = 30, 366


def _time_of_day(value: str) -> str:
    try:
        time.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"expected a time of day such as 22:00, not {value!r}") from error
    return value


TimeOfDay = Annotated[str, AfterValidator(_time_of_day)]


class EntityBody(BaseModel):
    """Entity by cluster, kind, namespace and name."""

    model_config = ConfigDict(extra="forbid")
    cluster: str
    kind: EntityKind
    namespace: str | None = None
    name: str


class WindowBody(BaseModel):
    """The part of each week in which the silence is in force."""

    model_config = ConfigDict(extra="forbid")
    start: TimeOfDay = Field(description="time of day, such as 22:00")
    end: TimeOfDay = Field(description="time of day; if not after start, on the next day")
    days: list[Day] = Field([], description="days on which it starts; default: every day")
    timezone: TimeZone = Field("UTC", description="time zone of start and end")


class SilenceBody(BaseModel):
    """What to silence, and for how long. All conditions must hold."""

    model_config = ConfigDict(extra="forbid")
    rule: str | None = Field(None, description="rule to mute; null: any")
    entity: EntityBody | None = Field(None, description="entity to mute; null: any")
    matchers: list[str] = Field([], description='such as node=~"gpu-.*", priority!=P0, service=chat', max_length=32)
    duration_seconds: float = Field(gt=0, description="from the start; at most 30 days, with a window a year")
    starts_at: AwareDatetime | None = Field(None, description="start; default: now")
    window: WindowBody | None = Field(None, description="in force only in this part of each week")
    dependents: bool = Field(default=False, description="also mute what rests on the selected entities")
    comment: str = Field("", max_length=500)


def parse(body: Mapping[str, Any], now: datetime) -> Silence:
    """Returns the silence of a request body. Raises UsageError that names the first invalid key."""
    try:
        return silence_of(SilenceBody.model_validate(body), "preview", now)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{place}: {yaml_words.describe(first)}", hint="outrider alerts silence --help") from error


def silence_of(body: SilenceBody, by: str, now: datetime) -> Silence:
    """The silence of a request. Raises UsageError."""
    most = MOST_DAYS if body.window is None else MOST_DAYS_WITH_WINDOW
    if body.duration_seconds > most * 86400:
        raise UsageError(
            f"a silence lasts at most {most} days", hint="longer ones belong to maintenance in the configuration"
        )
    starts_at = max(body.starts_at, now) if body.starts_at is not None else None
    target, window = body.entity, body.window
    return Silence(
        id=uuid4().hex,
        rule=body.rule,
        entity=EntityRef(target.cluster, target.kind, target.namespace, target.name) if target else None,
        until=(starts_at or now) + timedelta(seconds=body.duration_seconds),
        by=by,
        comment=body.comment,
        matchers=tuple(parse_matcher(text) for text in body.matchers),
        starts_at=starts_at,
        window=None
        if window is None
        else SilenceWindow(_minute(window.start), _minute(window.end), _days(window.days), window.timezone),
        dependents=body.dependents,
    )


def _minute(text: str) -> int:
    at = time.fromisoformat(text)
    return at.hour * 60 + at.minute


def _days(named: Sequence[Day]) -> tuple[int, ...]:
    return tuple(sorted({DAYS.index(day) for day in named} or EVERY_DAY))
