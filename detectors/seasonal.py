"""Values that stay away from what is usual for their entity at this time of day.

A deviation counts when six of the last eight readings lie five robust scales off, on the side that is
bad for the signal. It names no fault and never pages by itself: real fleets fault so rarely that a
statistical score alone is wrong most of the time. While a signal deviates its baseline stands still,
for a day at most; then what was odd is the new usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors import readings, streaks
from detectors.baseline import Baseline, Usual, follow
from detectors.memory import Arrays
from detectors.verdicts import fingerprint
from outrider import catalog
from outrider.model import (
    CellStatus,
    DetectorState,
    EntityKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Priority,
    TimeRange,
    Window,
)
from outrider.topology import Topology

FAR = 5.0  # robust scales
FROZEN_AT_MOST = 86400.0
_BLOCK = 256  # columns of history read at a time: bounds the memory that learning takes


# Watched by default: what users feel, and what moves before they feel it.
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


class SeasonalDetector:
    """Robust seasonal deviation of the signals of one kind of entity."""

    state_version = 1
    window = timedelta(minutes=10)

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are names of the catalogue; the name defaults to ``seasonal-<kind>``."""
        self.kind = kind
        self.name = name or f"seasonal-{kind.value}"
        self.signals = tuple(signals)
        self.keys = readings.keys_of(signals)
        self._baseline = Baseline(signals)
        sides = [catalog.signal(signal).good for signal in signals]
        self._watch_high = np.array([side != "higher" for side in sides])
        self._watch_low = np.array([side not in ("lower", "state") for side in sides])

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        return DetectorState(self.state_version, (), {**self._fresh(0), "last": np.array([-np.inf])})

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn from history, oldest first; columns not newer than the state are left out. Finds nothing."""
        memory, last = self._follow(state, window)
        seconds = readings.spacing(window)
        first = int(np.searchsorted(window.times, last, side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = readings.read(window, self.signals, slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._baseline.learn(memory, values[:, place], at, long)
        return self._state(window, memory, last)

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """One finding per entity and signal that deviates; NoVerdict for entities that are not known yet."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        memory, last = self._follow(state, window)
        if now.timestamp() < last:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        first = int(np.searchsorted(window.times, last, side="right"))
        values = readings.read(window, self.signals, slice(first, window.times.size))
        seconds = readings.spacing(window)[first:]
        for column in range(values.shape[1]):
            self._step(memory, values[:, column], float(window.times[first + column]), float(seconds[column]))
        at = float(window.times[-1])
        newest = values[:, -1] if values.shape[1] else readings.read(window, self.signals, slice(-1, None))[:, 0]
        usual = self._baseline.usual(memory, at)
        found = self._findings(window, memory, usual, newest, now)
        return self._state(window, memory, last), (*found, *self._silences(window, usual))

    def _step(self, memory: Arrays, values: Floats, at: float, seconds: float) -> None:
        """One instant: judge it by what was known before it, then learn from it."""
        z = self._baseline.usual(memory, at).deviation(values)
        far = ((z > FAR) & self._watch_high) | ((z < -FAR) & self._watch_low)
        known = np.isfinite(z)
        memory["hits"], memory["since"] = streaks.advance(memory["hits"], memory["since"], far, known, at, seconds)
        self._baseline.learn(memory, values, at, seconds, _frozen(memory, far, at))

    def _findings(
        self, window: Window, memory: Arrays, usual: Usual, values: Floats, now: datetime
    ) -> list[Finding | NoVerdict]:
        z = usual.deviation(values)
        found: list[Finding | NoVerdict] = []
        deviates = np.isfinite(memory["since"]) & usual.known
        if self.kind is not EntityKind.SERVICE:  # services are few, and each one's promise is its own
            deviates = streaks.own(deviates)
        for row, place in np.argwhere(deviates):
            level, reach = float(usual.level[row, place]), FAR * float(usual.scale[row, place])
            low = level - reach if self._watch_low[place] else None
            high = level + reach if self._watch_high[place] else None
            observed = None if np.isnan(values[row, place]) else float(values[row, place])
            distance = FAR if observed is None else abs(float(z[row, place]))
            entity, signal, expected = window.entities[row], self.signals[place], Interval(low, high)
            arguments = {"signal": signal, "usual": f"{level:.4g}"}
            since = min(datetime.fromtimestamp(float(memory["since"][row, place]), tz=UTC), now)
            found.append(
                Finding(
                    detector=self.name,
                    entity=entity,
                    signals=(signal,),
                    severity=Priority.P3,
                    score=distance / (distance + FAR),
                    observed=observed,
                    expected=expected,
                    window=TimeRange(since, now),
                    evidence=(Evidence(signal, observed, expected, "incidents.evidence.unusual", arguments),),
                    fingerprint=fingerprint(self.name, entity, signal),
                )
            )
        return found

    def _silences(self, window: Window, usual: Usual) -> list[NoVerdict]:
        """Why nothing is said about the entities of which no signal is known yet."""
        learning = ~usual.known.any(axis=1)
        status = window.status[:, -1]
        absent = (status == CellStatus.ABSENT).all(axis=1)
        untrusted = ~absent & (status >= CellStatus.STALE).all(axis=1)
        found = []
        for rows, reason in (
            (learning & ~absent & ~untrusted, NoVerdictReason.WARMING_UP),
            (absent, NoVerdictReason.NO_VALUES),
            (untrusted, NoVerdictReason.UNTRUSTED_VALUES),
        ):
            if rows.all():
                return [NoVerdict(self.name, None, reason)]
            found += [NoVerdict(self.name, window.entities[row], reason) for row in np.flatnonzero(rows)]
        return found

    def _fresh(self, count: int) -> Arrays:
        return self._baseline.empty(count) | streaks.fresh((count, len(self.signals)))

    def _follow(self, state: DetectorState, window: Window) -> tuple[Arrays, float]:
        memory = follow(dict(state.arrays), state.entities, window.entities, self._fresh(len(window.entities)))
        last = state.arrays.get("last")
        return memory, float(last[0]) if last is not None and last.size == 1 else -np.inf

    def _state(self, window: Window, memory: Arrays, last: float) -> DetectorState:
        newest = max(last, float(window.times[-1])) if window.times.size else last
        return DetectorState(self.state_version, window.entities, {**memory, "last": np.array([newest])})


def _frozen(memory: Arrays, far: NDArray[np.bool_], at: float) -> NDArray[np.bool_]:
    """Deviating signals do not teach, nor do single far readings; after a day they do again."""
    lasting = np.where(np.isfinite(memory["since"]), at - memory["since"], 0.0)
    deviates = np.isfinite(memory["since"]) | (far & (memory["updates"] > 0))
    frozen: NDArray[np.bool_] = deviates & (lasting < FROZEN_AT_MOST)
    return frozen
