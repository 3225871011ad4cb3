"""Retention of values: checked here, applied by store maintenance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.ports import StateRetention
from outrider.text import yaml_file
from outrider.vocabulary.units import format_duration
from service.config.settings_base import Duration, Section
from store.tsdb.retention import Retention

_SHORTEST = {"raw": timedelta(hours=1), "ten_minutes": timedelta(days=1), "hours": timedelta(days=1)}
_DEFAULT = Retention()
_STATE = StateRetention()
_SHORTEST_DECISIONS = timedelta(days=7)  # the weekly report reads this much


class RetentionSettings(Section):
    """Retention of values per tier, and the maximum size."""

    raw: Duration = Field(_DEFAULT.raw, description="Raw values.")
    ten_minutes: Duration = Field(
        _DEFAULT.ten_minutes, description="10-minute roll-ups: last, mean, min, max and sums."
    )
    hours: Duration = Field(_DEFAULT.hours, description="1-hour roll-ups; events are kept equally long.")
    decisions: Duration = Field(
        _STATE.decisions, description="Alerts, incidents, actions, audit, changes, topology: time after their end."
    )
    forecasts: Duration = Field(_STATE.forecasts, description="Forecasts and recommendations, for SQL.")
    hourly_tables: Duration = Field(
        _DEFAULT.hourly_tables, description="Rows of hourly_<kind>, for SQL; about 600 bytes per entity and hour."
    )
    size_limit_bytes: Annotated[int, Field(ge=100_000_000)] | None = Field(
        None,
        description=(
            "Maximum size of the metrics database; beyond it the oldest data is deleted: raw values, "
            "hourly_<kind>, 10-minute, 1-hour. Without a limit about 5 GB for 1,000 GPUs and 1,000 "
            "replicas every 15 s: raw values 1.1, 10-minute 1.0, 1-hour 2.7, hourly_<kind> .3."
        ),
    )

    @property
    def retention(self) -> Retention:
        """Retention of values, for the store."""
        return Retention(self.raw, self.ten_minutes, self.hours, self.hourly_tables, self.size_limit_bytes)

    @property
    def of_state(self) -> StateRetention:
        """Retention of decisions, for the store."""
        return StateRetention(decisions=self.decisions, forecasts=self.forecasts)


def retention_problems(settings: RetentionSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that each tier is kept at least as long as the finer one, and long enough to be rolled up."""
    path = ("store", "retention")
    for name, least in _SHORTEST.items():
        if getattr(settings, name) < least:
            yield document.problem((*path, name), f"is too short; expected at least {format_duration(least)}")
    if settings.decisions < _SHORTEST_DECISIONS:
        least = _SHORTEST_DECISIONS
        yield document.problem((*path, "decisions"), f"is too short; expected at least {format_duration(least)}")
    for finer, coarser in (("raw", "ten_minutes"), ("ten_minutes", "hours")):
        if getattr(settings, finer) > getattr(settings, coarser):
            yield document.problem((*path, coarser), f"is shorter than {finer}; expected at least as long")
