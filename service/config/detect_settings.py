"""Alarm budgets of statistical detection, and holidays."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field

from outrider.model import EntityKind
from service.config.settings_base import Duration, Section, TimeZone

Alarms = Annotated[float, Field(gt=0, le=100)]


class BudgetSettings(Section):
    """False alarms per entity-day that the statistical detectors of a class share."""

    service: Alarms = Field(0.25, description="Budget per service, shared by the three detectors of this class.")
    replica: Alarms = Field(0.5, description="Budget per replica, shared by the four detectors of this class.")
    gpu: Alarms = Field(0.5, description="Budget per GPU, shared by four detectors.")
    node: Alarms = Field(0.5, description="Budget per node, shared by four detectors.")


class DetectSettings(Section):
    """Statistical detection. Its findings are P3 and go to the weekly report, whatever the budget."""

    alarms_per_entity_day: BudgetSettings = Field(
        BudgetSettings(), description="Adjust thresholds, within bounds, until alarms meet the budget."
    )
    trial: Duration = Field(
        timedelta(days=2),
        description=("History required before a detector may alert; until then it runs in shadow mode."),
    )
    holidays: list[date] = Field(
        [],
        description="Days without the usual daily pattern, for example 2027-02-06, besides those of planner.holidays.",
    )
    timezone: TimeZone | None = Field(
        None,
        description="Time zone of times of day, weekdays and holidays, for example Asia/Shanghai. Default: "
        "planner.zone.",
    )

    @property
    def budgets(self) -> dict[EntityKind, float]:
        """Budget per entity class."""
        return {EntityKind(kind): alarms for kind, alarms in self.alarms_per_entity_day.model_dump().items()}

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return ZoneInfo(self.timezone or "UTC")

    @property
    def holiday_spans(self) -> tuple[tuple[float, float], ...]:
        """From midnight to midnight in the time zone, in unix seconds."""
        return tuple((start.timestamp(), end.timestamp()) for start, end in self.holidays_in(self.zone))

    def holidays_in(self, zone: ZoneInfo) -> tuple[tuple[datetime, datetime], ...]:
        """The listed holidays, from midnight to midnight in a time zone."""

        def midnight(day: date) -> datetime:
            return datetime.combine(day, time(), zone).astimezone(UTC)

        return tuple((midnight(day), midnight(day + timedelta(days=1))) for day in self.holidays)
