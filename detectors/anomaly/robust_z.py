"""One metric far from what is usual for it, by the robust z that the ensemble's first voter takes the mean of.

A reading is the mean of five minutes; its distance from usual at this time of day and week is told in scales of five
days (``deviation.py``). The limit is no fixed number of scales: it is what the false-alarm budget buys from this
metric's own past peaks, or those of its class while its own are few (``budget.py``), and five scales at the least.
One reading beyond it begins a deviation, half of the limit ends one. What the load explains and what many peers show
is left out. A finding is P3 and names no fault.
Watched are classes whose combinations of metrics nobody else scores, and in them the signals of which no other
detector knows a usual level: beside the ensemble a single metric says little that is new and cries as often.
Misleads for half a day after the first readings, of which it is silent, and where one reading in many days is far
off by nature.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.base import sampling
from detectors.base.findings import evidence, oddity
from detectors.base.state_arrays import Arrays
from detectors.learning import learning_detector, slow_signal_detector
from detectors.learning.slow_signal_detector import Beat, Flags, SlowSignalDetector
from detectors.statistics.alarm_budget import AlarmCount
from detectors.statistics.alarm_threshold import HEADROOM, Budget
from detectors.statistics.baseline import RECENT
from detectors.statistics.deviation import FREE_READINGS, Deviations
from outrider.model import DetectorState, EntityKind, Finding, Floats, Interval, Statistic, Window
from outrider.topology import Topology
from outrider.vocabulary import catalog

BEAT_SECONDS = 300.0  # the spacing that the scales were tuned on
LEAST = 5.0  # scales: what one reading in a million shows is no alarm, however calm the past was
ENDS = 0.5  # of the limit that was crossed
EXPLAINS = 3.0  # scales of the load: then the load explains it
NEAR = 0.5  # of its limit: a peer that is so odd, too
HELD_SECONDS = 86400.0  # then what was odd is the usual
COARSE = 1.5  # beats: history that is coarser teaches the time of day and week alone
_BLOCK = 256

# What is watched, and the load that may explain it.
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
    """Single metrics of one kind of entity, each against its own past."""

    family = "robust-z"
    state_version = 2  # of 1, limits and scales may be those of means of ten minutes
    beat_seconds, instants = BEAT_SECONDS, 5
    passing = (*SlowSignalDetector.passing, "value", "usual", "scale_now", "crossed")
    warm_step = timedelta(seconds=BEAT_SECONDS)
    warm_statistic = Statistic.MEAN

    def __init__(self, kind: EntityKind, watched: tuple[str, ...], load: str, name: str | None = None) -> None:
        """As ``SlowSignalDetector``; the name defaults to ``robust-z-<kind>``."""
        super().__init__(kind, watched, load, name)
        known = [catalog.signal(one) for one in watched]
        self._watch_high = np.array([one.good != "higher" for one in known])
        self._watch_low = np.array([one.good not in ("lower", "state") for one in known])
        self._deviations = Deviations(self._baseline, self._baseline.floors)
        self.set_budget(learning_detector.ALARMS_PER_ENTITY_DAY)

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replace the default budget; before the first cycle. Limits follow it by themselves; alarms are counted."""
        self._calibrator = AlarmCount(alarms_per_entity_day)
        self._budget = Budget(alarms_per_entity_day / HEADROOM / len(self.watched), LEAST)
        self._limits = tuple(self._budget.empty())

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn from history, oldest first, as if it were lived. Finds nothing.

        Columns not newer than the state are left out. History at more than seven minutes and a half teaches what is
        usual when, and nothing else: means of longer spans lie closer together.
        """
        memory, pool = self._follow(state, window.entities)
        memory = {name: one.copy() for name, one in memory.items()}
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
            | {name: one.reshape(*mine, *one.shape[1:]) for name, one in peaks.items()}
            | self._calibrator.of_entities(count)
            | {name: np.full(mine, np.nan) for name in ("since", "value", "usual", "scale_now", "crossed")}
            | {"known": np.zeros(mine, dtype=np.bool_)}
        )

    def _forget(self, memory: Arrays) -> None:
        """Limits and scales hold for beats of one length; what is usual at a time of day and week stays so.

        The recent level goes, too: scales learn fast only while their readings are few.
        """
        count = memory["known"].shape[0]
        kept = set(self._baseline.empty()).difference(RECENT)
        memory.update({name: one for name, one in self._fresh(count).items() if name not in kept})

    def _judge(self, memory: Arrays, values: Floats, at: float, seconds: float) -> tuple[Floats, Flags]:
        """Scores of one reading and where they are beyond their limits, (entities, watched); then learn it."""
        known, mine = np.isfinite(values), len(self.watched)
        z, scale = self._deviations.measure(memory, np.where(known, values, 0.0), known, at, seconds)
        ripe = (known & (memory["updates"] >= FREE_READINGS))[:, :mine]
        score = np.where(ripe, self._score(z), np.nan)
        beyond = np.zeros(score.shape, dtype=np.bool_)
        for place in range(mine):
            own = {name: memory[name][:, place] for name in self._limits}
            beyond[:, place] = self._budget.judge(own, score[:, place], at, seconds)
            for name, one in own.items():
                memory[name][:, place] = one
        level = self._baseline.usual(memory, at).level
        memory["value"], memory["usual"] = np.where(ripe, values[:, :mine], np.nan), level[:, :mine]
        memory["scale_now"] = scale[:, :mine]
        stands = np.isfinite(memory["since"]) & (at - memory["since"] < HELD_SECONDS)
        frozen = np.concatenate((stands, np.zeros((stands.shape[0], 1), dtype=np.bool_)), axis=1)
        self._baseline.learn(memory, values, at, seconds, frozen)
        memory["known"] = ripe & np.isfinite(memory["limit"])
        return score, beyond & memory["known"]

    def _score(self, z: Floats) -> Floats:
        """Scales on the bad side, (entities, watched); 0 for what the load, the last of the signals, explains."""
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
        found = []
        for row, place in np.argwhere(np.isfinite(memory["since"]) & np.isfinite(memory["value"])):
            entity, signal = window.entities[row], self.watched[place]
            value, usual, scale, limit = (
                float(memory[name][row, place]) for name in ("value", "usual", "scale_now", "crossed")
            )
            scales = (value - usual) / scale
            low = usual - limit * scale if self._watch_low[place] else None
            high = usual + limit * scale if self._watch_high[place] else None
            because = evidence(
                signal, value, "far_in_its_scales", Interval(low, high),
                what=signal, value=value, usual=usual, scales=scales, limit=limit,
            )  # fmt: skip
            found.append(
                oddity(
                    self.name,
                    entity,
                    signal,
                    signals=(signal,),
                    score=abs(scales) / (abs(scales) + limit),
                    observed=value,
                    expected=because.expected,
                    start=min(datetime.fromtimestamp(float(memory["since"][row, place]), tz=UTC), now),
                    now=now,
                    because=(because,),
                )
            )
        return found
