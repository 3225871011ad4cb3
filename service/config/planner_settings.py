"""Capacity planning."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationInfo, field_validator

from service.config.scaling_settings import ScalingSettings
from service.config.settings_base import Duration, Section, TimeZone, amount_in


class LoadEventSettings(Section):
    """A known event that changes the load."""

    name: str = Field(description="Name of the event; the effect of past events of this name predicts the next.")
    start: AwareDatetime = Field(description="Start, for example 2026-11-11T00:00:00Z.")
    end: AwareDatetime = Field(description="End.")
    ratio: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Load factor, 2 for twice the load. Default: learned from past events."
    )

    @field_validator("end")
    @classmethod
    def _after_start(cls, value: datetime, info: ValidationInfo) -> datetime:
        start = info.data.get("start")
        if start is not None and value <= start:
            raise ValueError("must be after start")
        return value


class PlannerSettings(Section):
    """Capacity planning: cadence, history, buffer, calendar, nightly models."""

    every: Duration = Field(timedelta(minutes=10), description="Time between two plans.")
    history: Duration = Field(timedelta(days=15), description="History that a forecast uses.")
    buffer: Annotated[float, Field(ge=0, le=1), amount_in("ratio")] = Field(
        0.25, description="Headroom above the forecast peak, as a ratio."
    )
    scaling: ScalingSettings = Field(ScalingSettings(), description="Scaling limits, and the receivers of the plan.")
    zone: TimeZone = Field(
        "UTC",
        description="Time zone of the users, for example Asia/Shanghai: that of times of day, weekdays and holidays.",
    )
    holidays: str | None = Field(
        None, description="Country whose public holidays have no usual daily pattern, for example CN."
    )
    events: list[LoadEventSettings] = Field(default_factory=list, description="Known events that change the load.")
    prophet: bool = Field(True, description="Fit Prophet nightly for every service.")
    forecasters: list[Literal["autoets", "mstl", "lstm"]] = Field(
        default_factory=list,
        description=(
            "Additional nightly models, used if they improve accuracy. The first two require the extra "
            "statsforecast, lstm requires the extra lstm."
        ),
    )
    workers: Annotated[int, Field(ge=1)] = Field(1, description="Number of processes for nightly fits.")
    ray_address: str | None = Field(
        None, description="Ray cluster for nightly fits, for example auto or ray://head:10001; requires the extra ray."
    )

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the nightly models to fit."""
        return (("prophet",) if self.prophet else ()) + tuple(dict.fromkeys(self.forecasters))

    @field_validator("holidays")
    @classmethod
    def _country_exists(cls, value: str | None) -> str | None:
        import holidays  # noqa: PLC0415 - slow to import, rarely needed

        if value is not None and value not in holidays.list_supported_countries():
            raise ValueError("unknown country; expected an ISO code such as DE or CN")
        return value
