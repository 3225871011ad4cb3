"""How much statistical detection may alarm, and which days are like no other."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field

from outrider.model import EntityKind
from service.config.settings_base import Duration, Section, TimeZone

Alarms = Annotated[float, Field(gt=0, le=100)]


class BudgetSettings(Section):
    """False alarms per entity-day that the statistical detectors of a class may raise together."""

    service: Alarms = Field(0.25, description="of each service; shared by the three detectors of this class")
    replica: Alarms = Field(0.5, description="of each replica; shared by the four detectors of this class")
    gpu: Alarms = Field(0.5, description="of each accelerator; shared by four")
    node: Alarms = Field(0.5, description="of each node; shared by four")


class DetectSettings(Section):
    """Statistical detection. What it finds is P3 and goes to the weekly report, whatever stands here."""

    alarms_per_entity_day: BudgetSettings = Field(
        BudgetSettings(), description="limits move, within bounds, until alarms come this often"
    )
    trial: Duration = Field(
        timedelta(days=2), description="past that a detector learns before it may alert; until then it is in the shadow"
    )
    holidays: list[date] = Field([], description="days without the usual time of day, such as 2027-02-06")
    timezone: TimeZone = Field(
        "UTC", description="where holidays and the days of the week begin and end, such as Asia/Shanghai"
    )

    @property
    def budgets(self) -> dict[EntityKind, float]:
        """By class of entities."""
        return {EntityKind(kind): alarms for kind, alarms in self.alarms_per_entity_day.model_dump().items()}

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return ZoneInfo(self.timezone)

    @property
    def holiday_spans(self) -> tuple[tuple[float, float], ...]:
        """From midnight to midnight in the time zone, in unix seconds."""
        zone = self.zone

        def midnight(day: date) -> float:
            return datetime.combine(day, time(), zone).astimezone(UTC).timestamp()

        return tuple((midnight(day), midnight(day + timedelta(days=1))) for day in self.holidays)
