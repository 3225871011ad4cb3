"""Settings of the planner."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationInfo, field_validator

from service.config.scaling_settings import ScalingSettings
from service.config.settings_base import Duration, Section, TimeZone, amount_in


class LoadEventSettings(Section):
    """Something that is known to change the load."""

    name: str = Field(description="events of one name are alike: what one did is expected of the next")
    start: AwareDatetime = Field(description="such as 2026-11-11T00:00:00Z")
    end: AwareDatetime = Field(description="when it is over")
    ratio: Annotated[float, Field(gt=0)] | None = Field(
        None, description="2 for twice the load; learned from earlier ones when not given"
    )

    @field_validator("end")
    @classmethod
    def _after_start(cls, value: datetime, known: ValidationInfo) -> datetime:
        start = known.data.get("start")
        if start is not None and value <= start:
            raise ValueError("must lie after start")
        return value


class PlannerSettings(Section):
    """How many GPUs, and when."""

    every: Duration = Field(timedelta(minutes=10), description="time between two plans")
    history: Duration = Field(timedelta(days=15), description="how far back a forecast looks")
    buffer: Annotated[float, Field(ge=0, le=1), amount_in("ratio")] = Field(
        0.25, description="headroom above the forecast peak, a ratio"
    )
    scaling: ScalingSettings = Field(
        ScalingSettings(), description="how fast services may grow, and where the plan's numbers are sent"
    )
    zone: TimeZone = Field("UTC", description="time zone whose clock the users live by, such as Asia/Shanghai")
    holidays: str | None = Field(None, description="country whose public holidays count as events, such as CN")
    events: list[LoadEventSettings] = Field(default_factory=list, description="what is known to change the load")
    prophet: bool = Field(True, description="fit Prophet for every service once a day")
    forecasters: list[Literal["autoets", "mstl", "lstm"]] = Field(
        default_factory=list,
        description="fitted beside Prophet, and heard where they help; the first two need the extra statsforecast, "
        "lstm the extra lstm",
    )
    workers: Annotated[int, Field(ge=1)] = Field(1, description="processes that fit forecasters at night")
    ray_address: str | None = Field(
        None, description="Ray cluster for that instead, such as auto or ray://head:10001; needs the extra ray"
    )

    @property
    def models(self) -> tuple[str, ...]:
        """The forecasters of the night that are asked for."""
        return (("prophet",) if self.prophet else ()) + tuple(dict.fromkeys(self.forecasters))

    @field_validator("holidays")
    @classmethod
    def _country_exists(cls, value: str | None) -> str | None:
        import holidays  # noqa: PLC0415 - it takes a while, and few ask for it

        if value is not None and value not in holidays.list_supported_countries():
            raise ValueError("no holidays are known of this country; use an ISO code such as DE or CN")
        return value
