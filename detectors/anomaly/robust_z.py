"""Deviation of a single metric from its baseline, by robust z-score.

A reading is a five-minute mean. Its distance from the expected level at this time of the week is in scales of five days
(``statistics.deviation``). The threshold is not a fixed number of scales. The false-alarm budget sets it from past
peaks of the metric, at least five scales (``alarm_threshold``). While the metric's own peaks are few, those of its
class count. One reading above it starts a deviation; half of it ends one. Deviations that load explains or that many
peers share are dropped. Findings are P3 and name no fault.

Watched are classes whose combinations are not scored elsewhere, and signals without a baseline in another detector.
Next to the ensemble, a single metric adds little and alarms as often. Nothing is reported for half a day after the
first readings. Misleading for metrics with rare natural outliers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.base import sampling
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.learning import learning_detector, slow_signal_detector
from detectors.learning.slow_signal_detector import Beat, Flags, SlowSignalDetector
from detectors.statistics.alarm_budget import AlarmCount
from detectors.statistics.alarm_threshold import HEADROOM, AlarmThreshold
from detectors.statistics.baseline import RECENT
from detectors.statistics.deviation import FREE_READINGS, Deviations
from outrider.model import DetectorState, EntityKind, Finding, Floats, Interval, Statistic, Window
from outrider.topology import Topology
from outrider.vocabulary import catalog

BEAT_SECONDS = 300.0  # the spacing used to tune the scales
LEAST = 5.0  # scales; minimum threshold, one reading in a million
ENDS = 0.5  # of the crossed threshold
EXPLAINS = 3.0  # scales of the load at which it explains the deviation
NEAR = 0.5  # of the threshold; a peer above this deviates as well
HELD_SECONDS = 86400.0  # after this, the deviation is the new normal
COARSE = 1.5  # beats; coarser history teaches the time of day and week only
_BLOCK = 256

# Signals watched, and the load that may explain them.
WATCHED: dict[EntityKind, tuple[tuple[str, ...], str]] = {
    EntityKind.SERVICE: (
        ("svc_latency_seconds", "svc_inflight_requests", "svc_failed_total", "svc_abandoned_total"),
        "svc_requests_per_second",
    ),
    EntityKind.CONTAINER: (
        ("container_cpu_throttled_ratio", "container_memory_working_set_bytes"),
        "container_cpu_usage_cores",
    ),
}


class RobustZDetector(SlowSignalDetector):
    """Single metrics of one kind of entity, each against its own history."""

    family = "robust-z"
    state_version = 2  # version 1 may hold thresholds and scales of ten-minute means
    beat_seconds, instants = BEAT_SECONDS, 5
    passing = (*SlowSignalDetector.passing, "value", "usual", "scale_now", "crossed")
    warm_step = timedelta(seconds=BEAT_SECONDS)
    warm_statistic = Statistic.MEAN

    def __init__(self, kind: EntityKind, watched: tuple[str, ...], load: str, name: str | None = None) -> None:
        """As ``SlowSignalDetector``; the name defaults to ``robust-z-<kind>``."""
        super().__init__(kind, watched, load, name)
        known = [catalog.signal(item) for item in watched]
        self._watch_high = np.array([item.good != "higher" for item in known])
        self._watch_low = np.array([item.good not in ("lower", "state") for item in known])
        self._deviations = Deviations(self._baseline, self._baseline.floors)
        self.set_budget(learning_detector.ALARMS_PER_ENTITY_DAY)

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replaces the default budget. Call before the first cycle. Thresholds follow it."""
        self._calibrator = AlarmCount(alarms_per_entity_day)
        self._budget = AlarmThreshold(alarms_per_entity_day / HEADROOM / len(self.watched), LEAST)
        self._limits = tuple(self._budget.empty())

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns from history, oldest first, as from live data. Finds nothing.

        Skips columns not newer than the state. History with a step above 7.5 minutes teaches the baseline only, since
        means of longer spans scatter less.
        """
        memory, pool = self._follow(state, window.entities)
        memory = {name: array.copy() for name, array in memory.items()}
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        coarse = first < window.times.size and float(np.median(seconds[first:])) > COARSE * self.beat_seconds
        for start in range(first, window.times.size, _BLOCK):
            values = sampling.read(window, self.signals, slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._turn(memory, pool, at, window.entities)
                if coarse:
                    self._baseline.learn(memory, values[:, place], at, long)
                else:
                    self._judge(memory, values[:, place], at, long)
                learning_detector.lived(pool, np.isfinite(values[:, place]), long)
        if coarse:
            self._forget(memory)
        if first < window.times.size:
            pool["last"] = np.array([window.times[-1]])
            pool["length"] = np.array([self.beat_seconds])
            pool["beat"] = np.floor(pool["last"] / self.beat_seconds)
        return self._state(window.entities, memory, pool)

    def _fresh(self, count: int) -> Arrays:
        mine = (count, len(self.watched))
        peaks = self._budget.empty(count * len(self.watched))
        return (
            self._deviations.empty(count)
            | {name: peak.reshape(*mine, *peak.shape[1:]) for name, peak in peaks.items()}
            | self._calibrator.of_entities(count)
            | {name: np.full(mine, np.nan) for name in ("since", "value", "usual", "scale_now", "crossed")}
            | {"known": np.zeros(mine, dtype=np.bool_)}
        )

    def _forget(self, memory: Arrays) -> None:
        """Drops thresholds and scales, which hold for one beat length; keeps time of day and week.

        Drops the recent level as well: scales learn fast only while readings are few.
        """
        count = memory["known"].shape[0]
        kept = set(self._baseline.empty()).difference(RECENT)
        memory.update({name: value for name, value in self._fresh(count).items() if name not in kept})

    def _judge(self, memory: Arrays, values: Floats, at: float, seconds: float) -> tuple[Floats, Flags]:
        """Scores of one reading and cells above their thresholds, (entities, watched); then learns it."""
        known, mine = np.isfinite(values), len(self.watched)
        z, scale = self._deviations.measure(memory, np.where(known, values, 0.0), known, at, seconds)
        ripe = (known & (memory["updates"] >= FREE_READINGS))[:, :mine]
        score = np.where(ripe, self._score(z), np.nan)
        beyond = np.zeros(score.shape, dtype=np.bool_)
        for place in range(mine):
            own = {name: memory[name][:, place] for name in self._limits}
            beyond[:, place] = self._budget.judge(own, score[:, place], at, seconds)
            for name, value in own.items():
                memory[name][:, place] = value
        level = self._baseline.usual(memory, at).level
        memory["value"], memory["usual"] = np.where(ripe, values[:, :mine], np.nan), level[:, :mine]
        memory["scale_now"] = scale[:, :mine]
        stands = np.isfinite(memory["since"]) & (at - memory["since"] < HELD_SECONDS)
        frozen = np.concatenate((stands, np.zeros((stands.shape[0], 1), dtype=np.bool_)), axis=1)
        self._baseline.learn(memory, values, at, seconds, frozen)
        memory["known"] = ripe & np.isfinite(memory["limit"])
        return score, beyond & memory["known"]

    def _score(self, z: Floats) -> Floats:
        """Scales on the bad side, (entities, watched); 0 if the load, the last signal, explains them."""
        mine = len(self.watched)
        own, load = z[:, :mine], z[:, mine:]
        bad = ((own > 0) & self._watch_high) | ((own < 0) & self._watch_low)
        explained = (np.sign(load) * self._by_load == np.sign(own)) & (np.abs(load) >= EXPLAINS)
        return np.where(bad & ~explained, np.abs(own), 0.0)

    def _beat(self, memory: Arrays, pool: Arrays, values: Floats, beat: Beat) -> None:
        self._turn(memory, pool, beat.middle, beat.entities, beat.topology)
        score, beyond = self._judge(memory, values, beat.middle, beat.length)
        stands = np.isfinite(memory["since"])
        with np.errstate(invalid="ignore"):
            ends = stands & (score < ENDS * memory["crossed"])
            near = score >= NEAR * np.maximum(memory["limit"], LEAST)
        begins = beyond & ~stands
        if begins.any() and self.kind is not EntityKind.SERVICE:
            side = np.sign(np.nan_to_num(memory["value"] - memory["usual"]))
            begins &= ~slow_signal_detector.shared(
                np.where(near, side, 0.0).astype(np.int8), beat.entities, beat.topology
            )
        memory["crossed"] = np.where(begins, np.maximum(memory["limit"], LEAST), memory["crossed"])
        memory["since"] = np.where(begins, beat.start, np.where(ends, np.nan, memory["since"]))

    def _findings(
        self, window: Window, memory: Arrays, _pool: Arrays, _topology: Topology, now: datetime
    ) -> list[Finding]:
        findings = []
        for row, place in np.argwhere(np.isfinite(memory["since"]) & np.isfinite(memory["value"])):
            entity, signal = window.entities[row], self.watched[place]
            value, usual, scale, limit = (
                float(memory[name][row, place]) for name in ("value", "usual", "scale_now", "crossed")
            )
            scales = (value - usual) / scale
            low = usual - limit * scale if self._watch_low[place] else None
            high = usual + limit * scale if self._watch_high[place] else None
            item = evidence(
                signal, value, "far_in_its_scales", Interval(low, high),
                what=signal, value=value, usual=usual, scales=scales, limit=limit,
            )  # fmt: skip
            findings.append(
                anomaly_finding(
                    self.name,
                    entity,
                    signal,
                    signals=(signal,),
                    score=abs(scales) / (abs(scales) + limit),
                    observed=value,
                    expected=item.expected,
                    start=min(datetime.fromtimestamp(float(memory["since"][row, place]), tz=UTC), now),
                    now=now,
                    evidence_items=(item,),
                )
            )
        return findings
