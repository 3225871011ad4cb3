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
    """Error of a forecaster on held-out history, as ratios to the observed values; None means not measured.

    ``pinball`` is the loss over all quantiles (of the median alone it would be WAPE), ``peak_error`` that of peaks: the
    criteria for choosing a forecaster.
    """

    wape: float | None
    wape_rival: float | None
    coverage90: float | None
    folds: int
    pinball: float | None = None
    peak_error: float | None = None


@dataclass(frozen=True, slots=True)
class ReasonText:
    """A reason as text key and arguments, to be rendered in the reader's language."""

    text: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a signal. ``times`` are unix seconds; each quantile maps to values of that length.

    ``peaks`` maps to the highest value from the start up to and including each step: a quantile of the maximum itself,
    which differs from the highest quantile of single steps. Empty if not forecast. ``buffers`` maps seconds ahead to
    the ratio by which the true peak exceeded that of the median at one in twenty past origins; empty with too few
    origins. ``why`` is the reason for the choice of the model.
    """

    signal: str
    entity: EntityRef
    made_at: datetime
    step: timedelta
    times: Floats
    quantiles: Mapping[float, Floats]
    model: str
    score: BacktestScore
    why: tuple[ReasonText, ...] = ()
    peaks: Mapping[float, Floats] = field(default_factory=dict)
    buffers: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """A forecast for one time at one horizon, stored for comparison with the observed value.

    ``at`` is the start of a step of the history that the forecast was made from; ``quantiles`` map to values in the
    unit of the signal. ``peaks`` map to the highest value from ``made_at`` up to and including that step, empty if not
    forecast.
    """

    made_at: datetime
    entity: EntityRef
    signal: str
    model: str
    horizon: timedelta
    at: datetime
    quantiles: Mapping[float, float]
    peaks: Mapping[float, float] = field(default_factory=dict)


class PlanReason(StrEnum):
    """Reason of a recommendation."""

    FORECAST_PEAK = "forecast_peak"
    LOAD_NOW = "load_now"
    AT_FLOOR = "at_floor"
    AT_CEILING = "at_ceiling"
    AT_QUOTA = "at_quota"
    NO_GPU_FREE = "no_gpu_free"  # more are needed than the free GPUs hold, and no node is added
    OVER_LIMIT = "over_limit"  # more are running than a limit allows, and the load needs them
    STEP_LIMIT = "step_limit"  # more are needed than one step or one hour may add
    SPIKE_DOUBTED = "spike_doubted"  # a single sample shows a multiplied load
    NOT_READY_YET = "not_ready_yet"  # enough were ordered, not all of them are serving
    SCALE_IN_COOLING = "scale_in_cooling"  # replicas were added recently
    SCALE_OUT_COOLING = "scale_out_cooling"  # replicas were removed recently, and the load is unchanged
    ENOUGH = "enough"
    SURVIVORS_TOO_BUSY = "survivors_too_busy"
    SCALE_IN_HELD_NO_VALUES = "scale_in_held_no_values"


class NoPlanReason(StrEnum):
    """Reason for no recommendation."""

    NO_HISTORY = "no_history"
    NO_CALIBRATION = "no_calibration"
    NO_VALUES = "no_values"
    NO_REPLICAS = "no_replicas"
    BAD_CALIBRATION = "bad_calibration"
    LIMITS_CONTRADICT = "limits_contradict"
    LISTED_TWICE = "listed_twice"
    FAILED = "failed"


LIVE = "live"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Capacity of one running engine of a service, measured under load.

    ``source`` is live for running engines, load_test for our own load tests, or the tool of an imported result (vllm,
    llmperf, k6); results other than live are valid until ``valid_until``. ``batch`` is the number of concurrent
    sequences in one replica. ``startup_seconds`` is the p95 from trigger to first served request; ``startup_source``
    its source. ``intervals`` holds the 90 % confidence interval of a measured figure, by its field's name.
    ``measured_at`` is the end of the measured span, None if not measured.
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
    source: str = LIVE
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class LeadPart:
    """One part of a lead time. ``name`` is a start phase, or ``margin``; ``source`` as in ``LeadTime``."""

    name: str
    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class LeadTime:
    """Time from ordering a replica until it serves. ``parts`` add up to ``seconds``.

    ``source`` is measured, configured or prior; ``starts`` are the measured starts. ``gpus_free`` is the number of free
    GPUs, None if unknown.
    """

    seconds: float
    source: str
    starts: int = 0
    parts: tuple[LeadPart, ...] = ()
    gpus_free: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Current load of a service's engines, summed over its replicas.

    ``kv_replicas`` is the KV cache in use, in replicas (.5 and .7 of two replicas make 1.2), the maximum of the last
    half hour. None: unknown.
    """

    running: float | None = None
    waiting: float | None = None
    kv_replicas: float | None = None


@dataclass(frozen=True, slots=True)
class FleetService:
    """State of a service for the planner. ``floor`` and ``ceiling`` are replicas.

    ``current_replicas`` are ordered, ``ready_replicas`` serve. ``quota_gpus`` is the maximum of its GPUs. ``recent``
    holds the ordered replicas at earlier times, oldest first. ``lead`` None: taken from the calibration.
    ``no_calibration`` is the reason for having none, ``chosen`` the reason for this one of several, as text key and
    arguments. ``placeable_replicas`` is the number for which the fleet has GPUs, None if unknown or if nodes are added.
    ``gpus_per_node`` is the size of its nodes, None if unknown; ``node_source`` is configured or topology.
    """

    service: EntityRef
    gpu_type: str
    current_replicas: int
    ready_replicas: int
    floor: int
    ceiling: int
    price_per_gpu_hour: float | None
    currency: str
    quota_gpus: int | None = None
    lead: LeadTime | None = None
    engines: EngineLoad = EngineLoad()
    recent: tuple[tuple[datetime, int], ...] = ()
    no_calibration: tuple[str, Mapping[str, str]] | None = None
    chosen: tuple[str, Mapping[str, str]] | None = None
    gpus_per_node: int | None = None
    node_source: str = ""
    placeable_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Replicas needed by a service, with deadline and reason. ``derivation`` is the printed arithmetic.

    ``need_at`` is when the load arrives; ``needed_by`` is when the replicas must be ordered: ``need_at`` minus the
    measured start-up time, ``lead_time``.
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

    @property
    def most_replicas(self) -> int:
        """The most replicas that may be ordered: the ceiling, or fewer if quota or free GPUs allow no more."""
        most: Mapping[str, Any] = self.derivation.get("most", {})
        return min(self.ceiling, int(most.get("replicas", self.ceiling)))


@dataclass(frozen=True, slots=True)
class NoRecommendation:
    """No recommendation, with its reason. ``detail`` is the key of a more specific text, with its arguments."""

    service: EntityRef
    reason: NoPlanReason
    made_at: datetime
    detail: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """All recommendations of one planner run, with their calibrations.

    ``revised`` are the services whose recommendation was revised since, outside the schedule, in this run; None for a
    scheduled plan, which makes all of it anew.
    """

    forecasts: tuple[Forecast, ...] = ()
    recommendations: tuple[Recommendation | NoRecommendation, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    revised: tuple[EntityRef, ...] | None = None

    @property
    def new_recommendations(self) -> tuple[Recommendation | NoRecommendation, ...]:
        """The recommendations that this run made."""
        if self.revised is None:
            return self.recommendations
        return tuple(item for item in self.recommendations if item.service in self.revised)
