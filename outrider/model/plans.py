"""Forecasts, calibrations and recommendations of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from outrider.model.entities import EntityRef
from outrider.model.findings import Interval
from outrider.model.samples import Floats


@dataclass(frozen=True, slots=True)
class BacktestScore:
    """Error of a forecaster on history it had not seen. WAPE is a ratio; None means not measured."""

    wape: float | None
    wape_rival: float | None
    coverage90: float | None
    folds: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a signal will do. ``times`` are unix seconds; each quantile maps to values of that length.

    ``peaks`` maps to the highest value from the start up to and including each step: a quantile of the
    maximum itself, which the highest quantile of single steps is not. Empty where none was made.
    """

    signal: str
    entity: EntityRef
    made_at: datetime
    step: timedelta
    times: Floats
    quantiles: Mapping[float, Floats]
    model: str
    score: BacktestScore
    why_model: str = ""
    peaks: Mapping[float, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What was forecast for one instant at one horizon, kept to be held against what came.

    ``at`` is the start of a step of the history that the forecast was made from; ``quantiles`` map to
    values in the unit of the signal.
    """

    made_at: datetime
    entity: EntityRef
    signal: str
    model: str
    horizon: timedelta
    at: datetime
    quantiles: Mapping[float, float]


class PlanReason(StrEnum):
    """Why a recommendation says what it says."""

    FORECAST_PEAK = "forecast_peak"
    LOAD_NOW = "load_now"
    AT_FLOOR = "at_floor"
    AT_CEILING = "at_ceiling"
    ENOUGH = "enough"
    SURVIVORS_TOO_BUSY = "survivors_too_busy"
    SCALE_IN_HELD_NO_VALUES = "scale_in_held_no_values"


class NoPlanReason(StrEnum):
    """Why there is no recommendation."""

    NO_HISTORY = "no_history"
    NO_CALIBRATION = "no_calibration"
    NO_VALUES = "no_values"
    NO_REPLICAS = "no_replicas"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one running engine of a service does, measured under load.

    ``batch`` is the sequences running at once in one replica. ``startup_seconds`` is the p95 of
    trigger to first served request; ``startup_source`` says where it comes from. ``intervals`` holds the
    5th and 95th percentile of the samples of a measured figure, by its field's name. ``measured_at``
    is the end of the measured span, None for what was not measured.
    """

    service: EntityRef
    gpu_type: str
    tokens_per_request: float
    batch: float
    tokens_per_second_per_sequence: float
    tensor_parallel: int
    pipeline_parallel: int
    startup_seconds: float
    samples: int
    origin: Literal["measured", "configured", "prior"]
    startup_source: str = ""
    model: str = ""
    engine_version: str = ""
    measured_at: datetime | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetService:
    """A service as the planner sees it now. ``floor`` and ``ceiling`` are replicas."""

    service: EntityRef
    gpu_type: str
    current_replicas: int
    ready_replicas: int
    floor: int
    ceiling: int
    price_per_gpu_hour: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How many replicas a service needs, by when, and why. ``derivation`` is the printed arithmetic.

    ``need_at`` is when the load is there, ``needed_by`` when the replicas must be ordered: that moment
    minus the measured start-up time, which is ``lead_time``.
    """

    service: EntityRef
    gpu_type: str
    current_replicas: int
    target_replicas: int
    gpus: int
    floor: int
    ceiling: int
    binding: str
    need_at: datetime | None
    needed_by: datetime | None
    lead_time: timedelta
    cost_per_hour: float | None
    currency: str
    derivation: Mapping[str, Any]
    reason: PlanReason
    made_at: datetime


@dataclass(frozen=True, slots=True)
class NoRecommendation:
    """The planner cannot say, and why."""

    service: EntityRef
    reason: NoPlanReason
    made_at: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner said at one instant, and the calibrations it counted with."""

    forecasts: tuple[Forecast, ...] = ()
    recommendations: tuple[Recommendation | NoRecommendation, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
