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
    """Error of a forecaster on history it had not seen, as ratios to what came; None means not measured.

    ``pinball`` is the loss of all quantiles (of the median alone it would be WAPE), ``peak_error`` that of peaks:
    what forecasters are chosen by.
    """

    wape: float | None
    wape_rival: float | None
    coverage90: float | None
    folds: int
    pinball: float | None = None
    peak_error: float | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """A reason as the key of a text and its arguments: whoever shows it words it in the reader's language."""

    text: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a signal will do. ``times`` are unix seconds; each quantile maps to values of that length.

    ``peaks`` maps to the highest value from the start up to and including each step: a quantile of the
    maximum itself, which the highest quantile of single steps is not. Empty where none was made. ``buffers``
    maps seconds ahead to the ratio by which the true peak up to then exceeded that of the median at one in
    twenty of the past origins; empty with too few of them to tell. ``why`` tells how the model was chosen.
    """

    signal: str
    entity: EntityRef
    made_at: datetime
    step: timedelta
    times: Floats
    quantiles: Mapping[float, Floats]
    model: str
    score: BacktestScore
    why: tuple[Why, ...] = ()
    peaks: Mapping[float, Floats] = field(default_factory=dict)
    buffers: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What was forecast for one instant at one horizon, kept to be held against what came.

    ``at`` is the start of a step of the history that the forecast was made from; ``quantiles`` map to
    values in the unit of the signal. ``peaks`` map to the highest value from ``made_at`` up to and including that
    step, empty where none was forecast.
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
    """Why a recommendation says what it says."""

    FORECAST_PEAK = "forecast_peak"
    LOAD_NOW = "load_now"
    AT_FLOOR = "at_floor"
    AT_CEILING = "at_ceiling"
    AT_QUOTA = "at_quota"
    OVER_LIMIT = "over_limit"  # more run than a limit allows, and the load needs them
    STEP_LIMIT = "step_limit"  # more is wanted than one step or one hour may add
    SPIKE_DOUBTED = "spike_doubted"  # one sample alone says that the load has multiplied
    NOT_READY_YET = "not_ready_yet"  # enough were ordered, not all of them serve
    SCALE_IN_COOLING = "scale_in_cooling"  # replicas were added a moment ago
    SCALE_OUT_COOLING = "scale_out_cooling"  # replicas were taken away a moment ago, and the load stands still
    ENOUGH = "enough"
    SURVIVORS_TOO_BUSY = "survivors_too_busy"
    SCALE_IN_HELD_NO_VALUES = "scale_in_held_no_values"


class NoPlanReason(StrEnum):
    """Why there is no recommendation."""

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
    """What one running engine of a service does, measured under load.

    ``source`` is live for running engines, load_test for one of ours, or the tool whose result was read (vllm, llmperf,
    k6); what was not measured live counts until ``valid_until``.
    ``batch`` is the sequences running at once in one replica. ``startup_seconds`` is the p95 of
    trigger to first served request; ``startup_source`` says where it comes from. ``intervals`` holds the
    90 % confidence interval of a measured figure, by its field's name. ``measured_at``
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
    """From the order of a replica until it serves. ``parts`` add up to ``seconds``.

    ``source`` is measured, configured or prior; ``starts`` are the starts that it was measured on.
    ``gpus_free`` are GPUs that nobody holds, None where that is not known.
    """

    seconds: float
    source: str
    starts: int = 0
    parts: tuple[LeadPart, ...] = ()
    gpus_free: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engines of a service hold now, summed over its replicas.

    ``kv_replicas`` is the KV cache in use, in replicas (.5 and .7 of two replicas make 1.2), the highest of
    the last half hour. None: not known.
    """

    running: float | None = None
    waiting: float | None = None
    kv_replicas: float | None = None


@dataclass(frozen=True, slots=True)
class FleetService:
    """A service as the planner sees it now. ``floor`` and ``ceiling`` are replicas.

    ``current_replicas`` are those that were ordered, ``ready_replicas`` those that serve. ``quota_gpus`` are
    the GPUs that it may hold at most. ``lately`` says how many were ordered at earlier instants, oldest
    first. ``lead`` None: what the calibration says. ``no_calibration`` is why there is none, ``chosen`` why this one
    of several: the key of a text and its arguments. ``gpus_per_node`` is the size of its nodes, None where it is not
    known, and ``node_source`` says configured or topology.
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
    lately: tuple[tuple[datetime, int], ...] = ()
    no_calibration: tuple[str, Mapping[str, str]] | None = None
    chosen: tuple[str, Mapping[str, str]] | None = None
    gpus_per_node: int | None = None
    node_source: str = ""


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
    """The planner cannot say, and why. ``detail`` is the key of a text that says more, with its arguments."""

    service: EntityRef
    reason: NoPlanReason
    made_at: datetime
    detail: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner said at one instant, and the calibrations it counted with."""

    forecasts: tuple[Forecast, ...] = ()
    recommendations: tuple[Recommendation | NoRecommendation, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
