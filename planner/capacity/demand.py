"""How many replicas a load needs: now by requests and by what the engines hold, soon by the forecast, and to stay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import Calibration, FleetService, Floats, Forecast, SignalKey, Window
from planner.capacity import prescale
from planner.capacity.formula import Buffer, BufferSource, Formula, formula, whole
from planner.capacity.lead_bound import USUAL_MARGIN, highest, path_of
from planner.forecast.batch_forecast import LOAD
from planner.forecast.ensemble import CEILING_OVER_MAXIMUM, MEDIAN
from planner.forecast.history import Facts
from planner.performance.slo_capacity import Refined

_INFLIGHT, _QUEUE = SignalKey("svc_inflight_requests"), SignalKey("svc_queue_requests")
KV_WATERMARK = 0.9
"""Survivors may fill their KV cache so far: above it engines begin to preempt."""

_QUEUE_SHARE = 0.1
"""A queue of less than a tenth of what runs is the batch being filled, not a want of replicas."""


@dataclass(frozen=True, slots=True)
class Believed:
    """The load of now as it is counted with: ``newest`` is capped where a spike is ``doubted``."""

    load: prescale.LoadNow
    newest: float | None
    doubted: bool


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about one service: its row of the cleaned history, forecast, calibration and facts.

    ``calibration`` is what the formula counts with; ``promise`` tells how the service's promise bounds it.
    """

    history: Window
    row: int
    facts: Facts
    said: Forecast
    calibration: Calibration
    service: FleetService
    load: Believed
    now: datetime
    margin: float = USUAL_MARGIN
    promise: Refined | None = None

    @property
    def values(self) -> Floats:
        """The load, one value a slot."""
        found: Floats = self.history.column(LOAD)[self.row]
        return found

    def newest(self, key: SignalKey) -> float | None:
        """The newest known value of the last few slots, None where the history does not carry the signal."""
        values = self.history.column(key)[self.row][-prescale.FRESH_SLOTS :]
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else None


@dataclass(frozen=True, slots=True)
class Survivors:
    """Replicas that must stay, and each figure that they follow from; raw numbers are before the extra room."""

    need: int
    load_recent: float
    load_coming: float
    load_raw: float
    held: float
    held_raw: float
    kv_raw: float


@dataclass(frozen=True, slots=True)
class Counted:
    """Replicas needed now (None: the load cannot be trusted), by the forecast, and to stay.

    ``by_load`` and ``by_engines`` are the two halves of ``now``; ``sequences`` run or wait in the engines.
    ``by_formula`` (the peak with the buffer) and ``by_bound`` (the replayed bound) are those of ``forecast``;
    ``level`` is the quantile of the peak that the buffer goes on top of.
    """

    now: int | None
    by_load: int | None
    by_engines: int | None
    sequences: float | None
    forecast: int
    ahead: prescale.Peak
    survivors: Survivors
    bound: Bound
    by_formula: int
    by_bound: int
    level: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The load that the replayed loop plans for, in requests per second, at its margin.

    ``out`` is it when replicas that are ordered now serve, until the next plan; ``hold`` is the highest until then.
    """

    out: float
    hold: float
    margin: float


def bound(case: Case, until: datetime, window: timedelta) -> Bound:
    """What the replay's loop would plan for: ``until`` ends ``window`` after replicas that are ordered now serve."""
    said, known = case.said, np.isfinite(case.values)
    values = case.values[known]
    newest = float(values[-1]) if values.size else 0.0
    path = path_of(said, newest, CEILING_OVER_MAXIMUM * float(values.max(initial=0.0))).bound(case.margin)
    step = said.step.total_seconds()
    # a slot is a mean, worth its middle; column 0 is the slot before the first one said
    first = (case.now.timestamp() - float(said.times[0])) / step + 0.5
    last = first + (until - case.now).total_seconds() / step
    serves = last - window.total_seconds() / step
    past = last + prescale.LOOK_PAST_LEAD.total_seconds() / step

    def most(begin: float, end: float) -> float:
        return float(highest(path, np.array([begin]), np.array([end]))[0])

    return Bound(most(serves, last), most(first, past), case.margin)


def sized(calibration: Calibration, qps: float, buffer: float, source: BufferSource = "configured") -> Formula:
    """The formula for a load in requests per second."""
    return formula(
        qps=qps,
        tokens=calibration.tokens_per_request,
        batch=calibration.batch,
        tokens_per_second=calibration.tokens_per_second_per_sequence,
        buffer=buffer,
        tp=calibration.tensor_parallel,
        pp=calibration.pipeline_parallel,
        buffer_source=source,
    )


def believed(
    load: prescale.LoadNow,
    calibration: Calibration,
    service: FleetService,
    limits: prescale.ScaleLimits,
    buffer: float,
) -> Believed:
    """The load of now; a single sample far above all that went before is cut to what is plausible.

    It is doubted only where it asks for more than one step may add, and where the engines do not hold at
    least half of what it would bring them.
    """
    newest, before = load.newest, load.before
    if newest is None or before is None or newest <= limits.spike_ratio * before:
        return Believed(load, newest, doubted=False)
    asked, current = sized(calibration, newest, buffer), service.current_replicas
    if asked.replicas <= max(current * limits.step_ratio, current + limits.step_replicas):
        return Believed(load, newest, doubted=False)
    held = (service.engines.running or 0.0) + (service.engines.waiting or 0.0)
    if held >= asked.sequences / 2:
        return Believed(load, newest, doubted=False)
    return Believed(load, min(newest, limits.spike_ratio * before), doubted=True)


def count(case: Case, until: datetime, found: Buffer, window: timedelta) -> Counted:
    """Every need of a service. ``until`` is when replicas that are ordered now serve, ``window`` included.

    A measured buffer is the error of the median's peak and goes on top of it; one that was configured goes on
    top of the p95 of the peak. What the replayed loop plans for counts as it is.
    """
    buffer, level = found.value, MEDIAN if found.source == "measured" else prescale.P95
    ahead = prescale.peak(case.said, until, level)
    planned = bound(case, until, window)
    newest = case.load.newest
    by_load = None if newest is None else sized(case.calibration, newest, buffer).replicas
    sequences, by_engines = _by_engines(case, buffer)
    # what the engines hold never speaks alone: with the load unknown, nothing is taken away
    now = None if by_load is None else max(by_load, by_engines or 0)
    by_formula = sized(case.calibration, ahead.value, buffer).replicas
    by_bound = sized(case.calibration, planned.out, 0.0).replicas
    forecast = max(by_formula, by_bound)
    if by_load is None and by_engines is not None:
        forecast = max(forecast, by_engines)
    survivors = _survivors(case, until, buffer, level, planned)
    return Counted(
        now, by_load, by_engines, sequences, forecast, ahead, survivors, planned, by_formula, by_bound, level
    )


def queued(case: Case) -> float:
    """Requests that wait now, as the engines or the newest slots of the history tell; 0 where neither does."""
    return max(case.service.engines.waiting or 0.0, case.newest(_QUEUE) or 0.0)


def short_now(case: Case, count: Counted) -> bool:
    """Whether the need of now, by load or by what the engines hold, is above the replicas that serve."""
    has = min(case.service.ready_replicas, case.service.current_replicas)
    return count.now is not None and count.now > has


def _by_engines(case: Case, buffer: float) -> tuple[float | None, int | None]:
    """Sequences that run and wait, and the replicas that hold them at once; the buffer only where a queue stands."""
    running, waiting = case.service.engines.running, queued(case)
    if running is None and waiting == 0.0:
        return None, None
    sequences = (running or 0.0) + waiting
    stands = waiting >= max(1.0, _QUEUE_SHARE * (running or 0.0))
    return sequences, whole(sequences / case.calibration.batch * (1.0 + buffer if stands else 1.0))


def _survivors(case: Case, until: datetime, buffer: float, level: float, planned: Bound) -> Survivors:
    """Replicas that must stay: for recent and coming load, for sequences in flight and queued, and for their KV."""
    recent = case.load.load.recent or 0.0
    coming = prescale.peak(case.said, until + prescale.NO_REVERSAL, level).value
    load_raw = sized(case.calibration, max(recent, coming), buffer).units_raw
    load_raw = max(load_raw, sized(case.calibration, planned.hold, 0.0).units_raw)
    engines = case.service.engines
    # What is in flight includes what is queued, where both are known.
    held = max(
        case.newest(_QUEUE) or 0.0,
        case.newest(_INFLIGHT) or 0.0,
        (engines.running or 0.0) + (engines.waiting or 0.0),
    )
    held_raw = held / case.calibration.batch * (1.0 + buffer)
    kv_raw = (engines.kv_replicas or 0.0) / KV_WATERMARK
    need = whole(max(load_raw, held_raw, kv_raw) * (1.0 + prescale.HYSTERESIS))
    return Survivors(need, recent, coming, load_raw, held, held_raw, kv_raw)
