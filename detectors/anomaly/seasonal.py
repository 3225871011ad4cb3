"""Deviation of a signal from its baseline for the time of day and week.

A deviation starts when six of the last eight readings are five robust scales off on the signal's bad side.
``alarm_budget`` moves the five between four and fifteen to keep alarms within their budget. The finding names no fault
and never pages: faults are so rare that a statistical score alone is mostly wrong. During a deviation the baseline is
frozen for at most a day; then the deviation is the new normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base import hysteresis, sampling
from detectors.base.findings import anomaly_finding
from detectors.base.state_arrays import Arrays, scalars
from detectors.learning import learning_detector
from detectors.statistics.baseline import Expectation, follow
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

FAR = 5.0  # robust scales
FROZEN_AT_MOST = 86400.0
_BLOCK = 256  # columns of history per batch; bounds the memory of learning


# Watched by default: user-visible signals and their early indicators.
WATCHED: dict[EntityKind, tuple[str, ...]] = {
    EntityKind.SERVICE: (
        "svc_requests_per_second",
        "svc_success_ratio",
        "svc_queue_requests",
        "svc_ttft_seconds",
        "svc_tpot_seconds",
    ),
    EntityKind.REPLICA: (
        "engine_generation_tokens_total",
        "engine_requests_waiting",
        "engine_kv_cache_usage_ratio",
        "engine_ttft_seconds",
        "engine_tpot_seconds",
    ),
    EntityKind.GPU: (
        "hw_accel_utilization_ratio",
        "hw_accel_memory_used_bytes",
        "hw_accel_temperature_celsius",
        "hw_accel_power_watts",
        "hw_accel_core_clock_hertz",
    ),
    EntityKind.NODE: (
        "node_cpu_utilization_ratio",
        "node_memory_available_ratio",
        "node_filesystem_available_ratio",
        "node_network_errors_per_second",
    ),
}


class SeasonalDetector(learning_detector.StatisticalDetector):
    """Robust seasonal deviation of the signals of one kind of entity."""

    family = "seasonal"
    state_version = 3
    window = timedelta(minutes=10)
    passing = (*learning_detector.StatisticalDetector.passing, "hits")

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are catalog names; the name defaults to ``seasonal-<kind>``."""
        super().__init__(kind, signals, name)
        sides = [catalog.signal(signal).good for signal in signals]
        self._watch_high = np.array([side != "higher" for side in sides])
        self._watch_low = np.array([side not in ("lower", "state") for side in sides])

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned."""
        return self._state((), self._fresh(0), self._scalars())

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns from history, oldest first; skips columns not newer than the state. Finds nothing."""
        memory, pool = self._follow(state, window)
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = sampling.read(window, self.signals, slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._turn(memory, pool, at, window.entities)
                self._baseline.learn(memory, values[:, place], at, long)
                learning_detector.lived(pool, np.isfinite(values[:, place]), long)
        return self._seen(window, memory, pool)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """One finding per deviating entity and signal; NoVerdict for unknown entities."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        memory, pool = self._follow(state, window)
        if now.timestamp() < pool["last"][0]:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        values = sampling.read(window, self.signals, slice(first, window.times.size))
        seconds = sampling.spacing(window)[first:]
        far = FAR * self._calibrator.factor(pool)
        for column in range(values.shape[1]):
            self._turn(memory, pool, float(window.times[first + column]), window.entities, topology)
            self._step(memory, values[:, column], float(window.times[first + column]), float(seconds[column]), far)
            learning_detector.lived(pool, np.isfinite(values[:, column]), float(seconds[column]))
        at = float(window.times[-1])
        newest = values[:, -1] if values.shape[1] else sampling.read(window, self.signals, slice(-1, None))[:, 0]
        usual = self._baseline.usual(memory, at)
        deviates = np.isfinite(memory["since"]) & usual.known
        if self.kind is not EntityKind.SERVICE:  # services are few, and each has its own SLO
            deviates = hysteresis.own(deviates)
        alarmed, judged = np.any(deviates, axis=1), np.any(usual.known, axis=1)
        self._calibrator.count(memory, pool, np.asarray(alarmed), np.asarray(judged), float(seconds.sum()))
        result = self._findings(window, memory, usual, newest, deviates, far, now)
        silent = learning_detector.no_verdicts(self.name, window, np.asarray(~usual.known.any(axis=1)))
        return self._seen(window, memory, pool), (*result, *silent)

    def _step(self, memory: Arrays, values: Floats, at: float, seconds: float, limit: float) -> None:
        """Judges one reading by earlier ones, then learns it."""
        z = self._baseline.usual(memory, at).deviation(values)
        far = ((z > limit) & self._watch_high) | ((z < -limit) & self._watch_low)
        known = np.isfinite(z)
        memory["hits"], memory["since"] = hysteresis.advance(memory["hits"], memory["since"], far, known, at, seconds)
        self._baseline.learn(memory, values, at, seconds, _frozen(memory, far, at))

    def _findings(
        self,
        window: Window,
        memory: Arrays,
        usual: Expectation,
        values: Floats,
        deviates: NDArray[np.bool_],
        far: float,
        now: datetime,
    ) -> list[Finding | NoVerdict]:
        z = usual.deviation(values)
        verdicts: list[Finding | NoVerdict] = []
        for row, place in np.argwhere(deviates):
            level, reach = float(usual.level[row, place]), far * float(usual.scale[row, place])
            low = level - reach if self._watch_low[place] else None
            high = level + reach if self._watch_high[place] else None
            observed = None if np.isnan(values[row, place]) else float(values[row, place])
            distance = far if observed is None else abs(float(z[row, place]))
            entity, signal, expected = window.entities[row], self.signals[place], Interval(low, high)
            arguments = {"signal": signal, "usual": f"{level:.4g}"}
            since = min(datetime.fromtimestamp(float(memory["since"][row, place]), tz=UTC), now)
            verdicts.append(
                anomaly_finding(
                    self.name,
                    entity,
                    signal,
                    signals=(signal,),
                    score=distance / (distance + far),
                    observed=observed,
                    expected=expected,
                    start=since,
                    now=now,
                    evidence_items=(Evidence(signal, observed, expected, "incidents.evidence.unusual", arguments),),
                )
            )
        return verdicts

    def _fresh(self, count: int) -> Arrays:
        marks = hysteresis.fresh((count, len(self.signals)))
        return self._baseline.empty(count) | marks | self._calibrator.of_entities(count)

    def _scalars(self) -> Arrays:
        return {
            "last": np.array([-np.inf]),
            **learning_detector.fresh(),
            **self._calibrator.of_class(),
            **self._baseline.of_class(),
        }

    def _follow(self, state: DetectorState, window: Window) -> tuple[Arrays, Arrays]:
        state, _ = self.restored(state)
        fresh = self._fresh(len(window.entities))
        memory = follow(dict(state.arrays), state.entities, window.entities, fresh)
        return memory, scalars(state, self._scalars())

    def _seen(self, window: Window, memory: Arrays, pool: Arrays) -> DetectorState:
        if window.times.size:
            pool["last"] = np.maximum(pool["last"], window.times[-1])
        return self._state(window.entities, memory, pool)

    def _state(self, entities: tuple[EntityRef, ...], memory: Arrays, pool: Arrays) -> DetectorState:
        return DetectorState(self.state_version, entities, {**memory, **pool, **self._fingerprint()})


def _frozen(memory: Arrays, far: NDArray[np.bool_], at: float) -> NDArray[np.bool_]:
    """True for deviating signals and single far readings, which do not teach for up to a day."""
    lasting = np.where(np.isfinite(memory["since"]), at - memory["since"], 0.0)
    deviates = np.isfinite(memory["since"]) | (far & (memory["updates"] > 0))
    frozen: NDArray[np.bool_] = deviates & (lasting < FROZEN_AT_MOST)
    return frozen
