"""How long values are kept: checked here, carried out by the store's upkeep."""

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
_SHORTEST_DECISIONS = timedelta(days=7)  # the weekly report looks so far back


class RetentionSettings(Section):
    """How long values are kept, in what detail, and how much room they may take."""

    raw: Duration = Field(_DEFAULT.raw, description="values as they were collected")
    ten_minutes: Duration = Field(_DEFAULT.ten_minutes, description="last, mean, min, max and sums of ten minutes")
    hours: Duration = Field(_DEFAULT.hours, description="the same of an hour; events are kept as long")
    decisions: Duration = Field(
        _STATE.decisions, description="alerts, incidents, actions, audit, changes, topology: from when they are over"
    )
    forecasts: Duration = Field(_STATE.forecasts, description="forecasts and recommendations, for SQL")
    hourly_tables: Duration = Field(
        _DEFAULT.hourly_tables, description="rows of hourly_<kind>, for SQL; some 600 bytes an entity and hour"
    )
    size_limit_bytes: Annotated[int, Field(ge=100_000_000)] | None = Field(
        None,
        description="most that the metrics database may take; beyond it the oldest goes: raw values, hourly_<kind>, "
        "ten minutes, hours. Without a limit about 5 GB for 1,000 GPUs and 1,000 replicas every 15 s: raw values 1.1, "
        "ten minutes 1.0, hours 2.7, hourly_<kind> .3",
    )

    @property
    def retention(self) -> Retention:
        """As the store takes it."""
        return Retention(self.raw, self.ten_minutes, self.hours, self.hourly_tables, self.size_limit_bytes)

    @property
    def of_state(self) -> StateRetention:
        """Of the decisions, as the store takes it."""
        return StateRetention(decisions=self.decisions, forecasts=self.forecasts)


def retention_usable(settings: RetentionSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Each tier is kept at least as long as the finer one, and long enough to become the next one."""
    where = ("store", "retention")
    for name, least in _SHORTEST.items():
        if getattr(settings, name) < least:
            yield document.problem((*where, name), f"is too short; expected {format_duration(least)} at least")
    if settings.decisions < _SHORTEST_DECISIONS:
        wanted = format_duration(_SHORTEST_DECISIONS)
        yield document.problem((*where, "decisions"), f"is too short; expected {wanted} at least")
    for finer, coarser in (("raw", "ten_minutes"), ("ten_minutes", "hours")):
        if getattr(settings, finer) > getattr(settings, coarser):
            yield document.problem((*where, coarser), f"is shorter than {finer}; expected as long at least")
