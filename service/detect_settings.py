"""How much statistical detection may alarm, and which days are like no other."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from outrider.model import EntityKind
from service.settings_base import Duration, Section

Alarms = Annotated[float, Field(gt=0, le=100)]


class BudgetSettings(Section):
    """False alarms per entity-day that the statistical detectors of a class may raise together."""

    service: Alarms = Field(0.25, description="of each service")
    replica: Alarms = Field(0.5, description="of each replica; shared by the two detectors of this class")
    gpu: Alarms = Field(0.5, description="of each accelerator; shared by two")
    node: Alarms = Field(0.5, description="of each node; shared by two")


class DetectSettings(Section):
    """Statistical detection. What it finds is P3 and goes to the weekly report, whatever stands here."""

    alarms_per_entity_day: BudgetSettings = Field(
        BudgetSettings(), description="limits move, within bounds, until alarms come this often"
    )
    trial: Duration = Field(
        timedelta(days=2), description="past that a detector learns before it may alert; until then it is in the shadow"
    )
    holidays: list[date] = Field([], description="days without the usual time of day, such as 2027-02-06")
    timezone: str = Field("UTC", description="where the holidays begin and end, such as Asia/Shanghai")

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"no time zone is named {value!r}; expected one such as Asia/Shanghai") from error
        return value

    @property
    def budgets(self) -> dict[EntityKind, float]:
        """By class of entities."""
        return {EntityKind(kind): alarms for kind, alarms in self.alarms_per_entity_day.model_dump().items()}

    @property
    def holiday_spans(self) -> tuple[tuple[float, float], ...]:
        """From midnight to midnight in the time zone, in unix seconds."""
        zone = ZoneInfo(self.timezone)

        def midnight(day: date) -> float:
            return datetime.combine(day, time(), zone).astimezone(UTC).timestamp()

        return tuple((midnight(day), midnight(day + timedelta(days=1))) for day in self.holidays)
