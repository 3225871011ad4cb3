"""Replicas that a load needs: now by requests and engine occupancy, soon by the forecast, and at least to stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from outrider.model import Calibration, FleetService, Floats, Forecast, SignalKey, Window
from planner.capacity import prescale
from planner.capacity import present as present_load
from planner.capacity.formula import Buffer, BufferSource, Formula, formula, whole
from planner.capacity.lead_bound import DEFAULT_RULE, Basis, BoundRule, forecast_path, highest_between, load_at
from planner.forecast.batch_forecast import LOAD
from planner.forecast.ensemble import MEDIAN
from planner.forecast.history import HistoryFacts
from planner.performance.headroom import capacity_per_second
from planner.performance.slo_capacity import SloCapacity

_INFLIGHT, _QUEUE = SignalKey("svc_inflight_requests"), SignalKey("svc_queue_requests")
KV_WATERMARK = 0.9
"""Survivors may fill their KV cache up to here: above it engines start to preempt."""


@dataclass(frozen=True, slots=True)
class TrustedLoad:
    """The current load used for planning: ``newest`` is capped if a spike is ``doubted``.

    ``present`` is the load of the present half minute, unknown without fresh values.
    """

    load: prescale.LoadNow
    newest: float | None
    doubted: bool
    present: present_load.PresentLoad = present_load.UNKNOWN


@dataclass(frozen=True, slots=True)
class DemandInputs:
    """All inputs of one service: its row of the cleaned history, forecast, calibration and facts.

    ``calibration`` is the one used by the formula; ``slo`` is the bound of the service's SLO on it.
    """

    history: Window
    row: int
    facts: HistoryFacts
    forecast: Forecast
    calibration: Calibration
    service: FleetService
    load: TrustedLoad
    now: datetime
    rule: BoundRule = DEFAULT_RULE
    slo: SloCapacity | None = None
    drain: timedelta = prescale.DRAIN

    @property
    def values(self) -> Floats:
        """The load, one value a slot."""
        load: Floats = self.history.column(LOAD)[self.row]
        return load

    def newest(self, key: SignalKey) -> float | None:
        """The newest known value of the last few slots, None if the history does not have the signal."""
        values = self.history.column(key)[self.row][-prescale.FRESH_SLOTS :]
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else None


@dataclass(frozen=True, slots=True)
class Survivors:
    """Replicas that must stay, and the figures behind them; raw numbers are without the hysteresis."""

    need: int
    load_recent: float
    load_coming: float
    load_raw: float
    held: float
    held_raw: float
    kv_raw: float


@dataclass(frozen=True, slots=True)
class ReplicaDemand:
    """Replicas needed now (None: the load is not trusted), by the forecast, and to stay.

    ``by_load``, ``by_engines`` and ``by_queue`` are the parts of ``now``; ``sequences`` run or wait in the engines.
    ``by_formula`` (the peak with the buffer) and ``by_bound`` (the replayed bound) are the two parts of ``forecast``.
    ``level`` is the quantile of the peak that the buffer is added to.
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
    by_queue: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The load that the replayed policy plans for, in requests per second, by its rule.

    ``out`` is the load from the time that replicas ordered now serve until the next plan; ``hold`` is the highest until
    then.
    """

    out: float
    hold: float
    rule: BoundRule


def replayed_bound(demand_inputs: DemandInputs, until: datetime, window: timedelta) -> Bound:
    """Returns the load that the replayed policy plans for.

    ``until`` ends ``window`` after replicas ordered now start to serve.
    """
    forecast, rule = demand_inputs.forecast, demand_inputs.rule
    known = demand_inputs.values[np.isfinite(demand_inputs.values)]
    newest = float(known[-1]) if known.size else 0.0
    path = forecast_path(forecast, newest)
    step = forecast.step.total_seconds()
    # a slot is a mean, taken at its middle; column 0 is the slot before the first forecast one
    first = (demand_inputs.now.timestamp() - float(forecast.times[0])) / step + 0.5
    last = first + (until - demand_inputs.now).total_seconds() / step
    serves = last - window.total_seconds() / step
    past = last + prescale.LOOK_PAST_LEAD.total_seconds() / step
    recent, since = _recent_load(demand_inputs, newest, first)
    now = load_at(path, np.array([0]), np.array([since]))

    def highest(begin: float, end: float) -> float:
        ahead = highest_between(path, np.array([begin]), np.array([end]))
        return float(rule.bound(np.array([recent]), now, ahead)[0])

    return Bound(highest(serves, last), max(highest(first, past), recent), rule)


def _recent_load(demand_inputs: DemandInputs, newest: float, now: float) -> tuple[float, float]:
    """The recent load and its time in slots of the path: that of the present if known, else the newest slot.

    A capped load stays capped.
    """
    load = demand_inputs.load
    present = load.present.arrivals if demand_inputs.rule.basis is Basis.PRESENT else load.present.calm
    if load.load.newest is None or load.doubted or present is None:
        return (newest if load.newest is None else load.newest), 0.0
    return present, now


def apply_formula(calibration: Calibration, qps: float, buffer: float, source: BufferSource = "configured") -> Formula:
    """Applies the formula to a load in requests per second."""
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


def with_present(load: prescale.LoadNow, present: present_load.PresentLoad, bound: float | None) -> prescale.LoadNow:
    """Returns the load of the newest slots, replaced by that of the present if they differ by more than noise.

    ``bound`` is the highest load that the forecast expects now. Between bound and slot the load is as planned. A load
    that is not trusted stays so.
    """
    if load.newest is None or present.arrivals is None or present.calm is None:
        return load
    if present_load.exceeds(present.arrivals, max(load.newest, bound or 0.0)):
        return replace(load, newest=present.arrivals, recent=max(load.recent or 0.0, present.arrivals), steady=False)
    span = present_load.WINDOW.total_seconds()
    if not present.queued and present_load.exceeds(load.newest, present.calm, span):
        return replace(load, newest=present.calm)
    return load


def trust_load(
    load: prescale.LoadNow,
    calibration: Calibration,
    service: FleetService,
    limits: prescale.ScaleLimits,
    buffer: float,
) -> TrustedLoad:
    """Returns the current load; a single sample far above all earlier ones is capped to a plausible value.

    A sample is doubted only if it needs more than one scaling step, and the engines hold less than half of the
    sequences it would bring.
    """
    newest, before = load.newest, load.before
    if newest is None or before is None or newest <= limits.spike_ratio * before:
        return TrustedLoad(load, newest, doubted=False)
    required, current = apply_formula(calibration, newest, buffer), service.current_replicas
    if required.replicas <= max(current * limits.step_ratio, current + limits.step_replicas):
        return TrustedLoad(load, newest, doubted=False)
    held = (service.engines.running or 0.0) + (service.engines.waiting or 0.0)
    if held >= required.sequences / 2:
        return TrustedLoad(load, newest, doubted=False)
    return TrustedLoad(load, min(newest, limits.spike_ratio * before), doubted=True)


def count(demand_inputs: DemandInputs, until: datetime, buffer: Buffer, window: timedelta) -> ReplicaDemand:
    """Computes every need of a service. ``until`` ends ``window`` after replicas ordered now start to serve.

    A measured buffer is the error of the median's peak and is added to it; a configured one is added to the p95 of the
    peak. The load of the replayed policy counts without a buffer.
    """
    ratio, level = buffer.value, MEDIAN if buffer.source == "measured" else prescale.P95
    ahead = prescale.peak(demand_inputs.forecast, until, level)
    replayed = replayed_bound(demand_inputs, until, window)
    newest = demand_inputs.load.newest
    by_load = None if newest is None else apply_formula(demand_inputs.calibration, newest, ratio).replicas
    sequences, by_engines = _by_engines(demand_inputs, ratio)
    by_queue = present_load.replicas_for_queue(
        demand_inputs.load.present,
        capacity_per_second(demand_inputs.calibration, 1, 0.0),
        demand_inputs.service.ready_replicas,
        until - window - demand_inputs.now,
        min(demand_inputs.drain, demand_inputs.rule.drain),
        ratio,
    )
    # engine occupancy alone decides nothing: with the load unknown, no replica is removed
    now = None if by_load is None else max(by_load, by_engines or 0, by_queue or 0)
    by_formula = apply_formula(demand_inputs.calibration, ahead.value, ratio).replicas
    by_bound = apply_formula(demand_inputs.calibration, replayed.out, 0.0).replicas
    forecast = max(by_formula, by_bound)
    if by_load is None and by_engines is not None:
        forecast = max(forecast, by_engines)
    survivors = _survivors(demand_inputs, until, ratio, level, replayed)
    return ReplicaDemand(
        now, by_load, by_engines, sequences, forecast, ahead, survivors, replayed, by_formula, by_bound, level, by_queue
    )


def waiting_requests(demand_inputs: DemandInputs) -> float:
    """Requests waiting now, else from the engines or the newest slots of the history; 0 if none has them."""
    if demand_inputs.load.present.waiting is not None:
        return demand_inputs.load.present.waiting
    return max(demand_inputs.service.engines.waiting or 0.0, demand_inputs.newest(_QUEUE) or 0.0)


def is_short_now(demand_inputs: DemandInputs, count: ReplicaDemand) -> bool:
    """True if the need of now, by load or by engine occupancy, exceeds the serving replicas."""
    serving = min(demand_inputs.service.ready_replicas, demand_inputs.service.current_replicas)
    return count.now is not None and count.now > serving


def _by_engines(demand_inputs: DemandInputs, buffer: float) -> tuple[float | None, int | None]:
    """Running and waiting sequences, and the replicas that hold the running ones and serve the queue in time.

    A queue below a tenth of the running sequences is the batch being filled, not a lack of replicas. The buffer applies
    only to a queue. Engines with a queue hold more than a calibrated batch: they count as full, not as too few.
    """
    running, waiting = demand_inputs.service.engines.running, waiting_requests(demand_inputs)
    if running is None and waiting == 0.0:
        return None, None
    calibration, sequences = demand_inputs.calibration, (running or 0.0) + waiting
    held = (running or 0.0) / calibration.batch
    if waiting < max(1.0, present_load.NOTABLE * (running or 0.0)):
        return sequences, whole(sequences / calibration.batch)
    queue = waiting / (capacity_per_second(calibration, 1, 0.0) * demand_inputs.drain.total_seconds())
    full = min(held, max(1.0, float(demand_inputs.service.ready_replicas)))
    return sequences, whole((full + min(queue, waiting / calibration.batch)) * (1.0 + buffer))


def _survivors(demand_inputs: DemandInputs, until: datetime, buffer: float, level: float, planned: Bound) -> Survivors:
    """Replicas that must stay: for recent and coming load, sequences in flight and queued, and their KV cache."""
    recent = demand_inputs.load.load.recent or 0.0
    coming = prescale.peak(demand_inputs.forecast, until + prescale.NO_REVERSAL, level).value
    load_raw = apply_formula(demand_inputs.calibration, max(recent, coming), buffer).units_raw
    load_raw = max(load_raw, apply_formula(demand_inputs.calibration, planned.hold, 0.0).units_raw)
    engines = demand_inputs.service.engines
    held = (engines.running or 0.0) + waiting_requests(demand_inputs)
    if demand_inputs.load.present.waiting is None:
        # The newest slots may be older. Requests in flight include queued ones if both are known.
        held = max(held, demand_inputs.newest(_INFLIGHT) or 0.0)
    held_raw = held / demand_inputs.calibration.batch * (1.0 + buffer)
    kv_raw = (engines.kv_replicas or 0.0) / KV_WATERMARK
    need = whole(max(load_raw, held_raw, kv_raw) * (1.0 + prescale.HYSTERESIS))
    return Survivors(need, recent, coming, load_raw, held, held_raw, kv_raw)
