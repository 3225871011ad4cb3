"""Level shifts: a signal that moved to another level and stayed, with time, size and the change behind it.

The median of the last ten minutes is compared with that of the half hour before. Both are relative to the baseline. A
shift is six times the usual difference for this entity and signal (adjusted by ``alarm_budget``). Four of five readings
must lie on either side of the middle. Spikes, ramps and flapping values do not qualify. Returns to the baseline,
effects of load and shifts that many peers share are dropped. The change point is the split with the least variance.
During a shift its baseline is frozen for two hours; then the new level is normal.

Findings are P3 and name no fault. A shift stays unreported for ten minutes. Misleading before the weekly profile is
learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import sampling
from detectors.base.changes import CHANGE_TEXT, sort_of
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.learning import learning_detector, slow_signal_detector
from detectors.learning.slow_signal_detector import Beat, Flags, SlowSignalDetector
from detectors.statistics.baseline import SIGMA_OF_MEAN_DEVIATION, Expectation
from detectors.statistics.theil_sen import counted_means, medians
from outrider.model import (
    DetectorState,
    EntityKind,
    EventKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    SignalKind,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

LIMIT = 6.0  # times the usual difference
LATE_SECONDS, EARLY_SECONDS = 600.0, 1800.0
LATE_LEAST, EARLY_LEAST = 3, 6  # readings, if they are minutes apart
BEATS = 40
LATE_KNOWN, EARLY_KNOWN = 0.7, 0.5  # share of the readings
STAYS_RATIO = 0.8  # share of the readings on their side of the middle
EXPLAINS = 3.0  # times the usual difference of the load, at which the load explains the shift
FLOOR_OF_SCALE = 0.5  # of the scatter of single readings; minimum usual difference
MOVE_TAU_SECONDS = 3 * 86400.0
MATURE_MOVE_SECONDS = 3600.0
TEACH_CLIP = 4.0
HELD_SECONDS = 2 * 3600.0
CHANGE_BEFORE, CHANGE_AFTER = 1800.0, 300.0  # around a shift; a change within this span is reported with it
_BLOCK = 256

# Signals watched, and the load that may explain them.
WATCHED: dict[EntityKind, tuple[tuple[str, ...], str]] = {
    EntityKind.SERVICE: (
        ("svc_success_ratio", "svc_ttft_seconds", "svc_tpot_seconds", "svc_queue_requests"),
        "svc_requests_per_second",
    ),
    EntityKind.REPLICA: (
        ("engine_ttft_seconds", "engine_tpot_seconds", "engine_kv_cache_usage_ratio", "engine_prefix_cache_hit_ratio"),
        "engine_requests_running",
    ),
    EntityKind.GPU: (
        (
            "hw_accel_memory_used_bytes",
            "hw_accel_temperature_celsius",
            "hw_accel_power_watts",
            "hw_accel_core_clock_hertz",
        ),
        "hw_accel_utilization_ratio",
    ),
    EntityKind.NODE: (
        ("node_memory_available_ratio", "node_filesystem_available_ratio", "node_disk_busy_ratio"),
        "node_cpu_utilization_ratio",
    ),
}


@dataclass(frozen=True, slots=True)
class _Differences:
    """Differences of the two windows and their scales, all of shape (entities, signals)."""

    late: NDArray[np.float32]  # readings, (entities, signals, beats)
    early: NDArray[np.float32]
    by: Floats
    scale: Floats
    known: Flags

    @property
    def strength(self) -> Floats:
        """The difference in multiples of the usual one; 0 if unknown."""
        return np.where(self.known, np.abs(np.nan_to_num(self.by)) / self.scale, 0.0)


class LevelShiftDetector(SlowSignalDetector):
    """Shifts of level of the signals of one kind of entity."""

    family = "level-shift"
    state_version = 1
    beat_seconds, instants = 60.0, 4
    replaced = ("ring",)
    rings: ClassVar[Mapping[str, float]] = {"ring": 1.0}
    passing = (*SlowSignalDetector.passing, "before", "after", "base", "by", "reach", "strength")

    def __init__(self, kind: EntityKind, watched: tuple[str, ...], load: str, name: str | None = None) -> None:
        """As ``SlowSignalDetector``; the name defaults to ``level-shift-<kind>``."""
        super().__init__(kind, watched, load, name)
        known = [catalog.signal(item) for item in watched]
        self._watch_high = np.array([item.good != "higher" for item in known])
        self._watch_low = np.array([item.good not in ("lower", "state") for item in known])
        trails = [item.kind in (SignalKind.DELTA, SignalKind.HISTOGRAM) for item in known]
        self._late_by = np.where(trails, sampling.TRAILING_SECONDS / 2.0, 0.0)

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns the time of day and usual differences from history, oldest first. Finds nothing."""
        memory, pool = self._follow(state, window.entities)
        memory = {name: array.copy() for name, array in memory.items()}
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = sampling.read(window, self.signals, slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._turn(memory, pool, at, window.entities)
                usual = self._usual(memory, values[:, place], at, 0)
                late, early = _spans(long, least=(1, 3))
                self._learn(memory, usual, self._moves(memory, usual, late, early), long)
                self._baseline.learn(memory, values[:, place], at, long)
                learning_detector.lived(pool, np.isfinite(values[:, place]), long)
        if first < window.times.size:
            self._take_over(memory, pool, float(seconds[-1]))
            pool["last"] = np.array([window.times[-1]])
            pool["beat"] = np.floor(pool["last"] / self.beat_seconds)
        return self._state(window.entities, memory, pool)

    def _take_over(self, memory: Arrays, pool: Arrays, seconds: float) -> None:
        """Repeats the last readings of history for the beats that they are means of."""
        each = max(1, round(seconds / self.beat_seconds))
        memory["ring"] = np.repeat(memory["ring"], each, axis=2)[:, :, -BEATS:]
        pool["length"] = np.array([self.beat_seconds])

    def _fresh(self, count: int) -> Arrays:
        every, mine = (count, len(self.signals)), (count, len(self.watched))
        unknown = ("since", "before", "after", "base", "by", "reach")
        return (
            self._baseline.empty(count)
            | self._calibrator.of_entities(count)
            | {name: np.full(mine, np.nan) for name in unknown}
            | {
                "ring": np.full((*every, BEATS), np.nan, dtype=np.float32),
                "usual_move": np.zeros(every),
                "move_seconds": np.zeros(every),
                "strength": np.zeros(mine),
                "known": np.zeros(mine, dtype=np.bool_),
                "changed": np.full(count, -np.inf),
                "change": np.full(count, "", dtype="<U40"),
            }
        )

    def _forget(self, memory: Arrays) -> None:
        memory["ring"] = np.full_like(memory["ring"], np.nan)

    def _handle_events(self, memory: Arrays, window: Window, topology: Topology, now: datetime) -> None:
        """Stores the newest change of the components above and below each entity."""
        changes = [
            item for item in window.events if item.kind is EventKind.CHANGE and item.at <= now and sort_of(item.code)
        ]
        if not changes:
            return
        place = {entity: row for row, entity in enumerate(window.entities)}
        memory["changed"], memory["change"] = memory["changed"].copy(), memory["change"].copy()
        for event in sorted(changes, key=lambda item: (item.at, item.id)):
            near = topology.causes_of(event.entity) | topology.affected_by(event.entity) | {event.entity}
            rows = [place[entity] for entity in near if entity in place]
            rows = [row for row in rows if memory["changed"][row] <= event.at.timestamp()]
            memory["changed"][rows], memory["change"][rows] = event.at.timestamp(), event.code

    def _usual(self, memory: Arrays, values: Floats, at: float, gap: int) -> Expectation:
        """Returns the expected values and adds the residuals to the ring."""
        usual = self._baseline.usual(memory, at)
        residual = np.where(usual.known, values - usual.level, np.nan)
        memory["ring"] = slow_signal_detector.extended(memory["ring"], residual, gap)
        return usual

    def _moves(self, memory: Arrays, usual: Expectation, late: int, early: int) -> _Differences:
        ring = memory["ring"]
        new, old = ring[:, :, -late:], ring[:, :, -late - early : -late]
        (level, enough_new), (base, enough_old) = _mean(new, LATE_KNOWN), _mean(old, EARLY_KNOWN)
        ripe = memory["move_seconds"] >= MATURE_MOVE_SECONDS
        floor = np.where(ripe, FLOOR_OF_SCALE, 1.0) * usual.scale
        scale = np.maximum(np.where(ripe, SIGMA_OF_MEAN_DEVIATION * memory["usual_move"], 0.0), floor)
        return _Differences(new, old, level - base, scale, enough_new & enough_old & usual.known)

    def _learn(self, memory: Arrays, usual: Expectation, moves: _Differences, seconds: float) -> None:
        """Learns the usual difference of the two windows; a standing shift teaches nothing."""
        taught = moves.known.copy()
        taught[:, : len(self.watched)] &= np.isnan(memory["since"])
        first = memory["move_seconds"] <= 0
        limit = np.where(first, usual.scale, TEACH_CLIP * moves.scale)
        by = np.minimum(np.abs(np.nan_to_num(moves.by)), limit)
        seen = memory["move_seconds"] + seconds
        pace = np.maximum(seconds / seen, 1.0 - np.exp(-seconds / MOVE_TAU_SECONDS))
        memory["usual_move"] = memory["usual_move"] + np.where(taught, pace * (by - memory["usual_move"]), 0.0)
        memory["move_seconds"] = np.where(taught, seen, memory["move_seconds"])

    def _beat(self, memory: Arrays, pool: Arrays, values: Floats, beat: Beat) -> None:
        mine = len(self.watched)
        self._turn(memory, pool, beat.middle, beat.entities, beat.topology)
        usual = self._usual(memory, values, beat.middle, beat.gap)
        late, early = _spans(beat.length)
        moves = self._moves(memory, usual, late, early)
        limit = LIMIT * self._calibrator.factor(pool)
        self._end(memory, usual, moves, beat.end)
        self._begin(memory, usual, moves, limit, beat)
        self._learn(memory, usual, moves, beat.length)
        stands = np.isfinite(memory["since"])
        frozen = np.concatenate((stands, np.zeros((stands.shape[0], 1), dtype=np.bool_)), axis=1)
        self._baseline.learn(memory, values, beat.middle, beat.length, frozen)
        memory["known"], memory["strength"] = moves.known[:, :mine], moves.strength[:, :mine]

    def _end(self, memory: Arrays, usual: Expectation, moves: _Differences, end: float) -> None:
        """Ends shifts that went back, or that are the normal level by now."""
        rows, places = np.nonzero(np.isfinite(memory["since"]))
        if not rows.size:
            return
        level, by = medians(moves.late[rows, places]), memory["by"][rows, places]
        back = (level - memory["base"][rows, places]) * np.sign(by) < 0.5 * np.abs(by)
        settled = end - memory["since"][rows, places] > HELD_SECONDS
        known = np.isfinite(level)
        memory["after"][rows[known], places[known]] = (usual.level[rows, places] + level)[known]
        over = back | settled
        memory["since"][rows[over], places[over]] = np.nan

    def _begin(self, memory: Arrays, usual: Expectation, moves: _Differences, limit: float, beat: Beat) -> None:
        mine = len(self.watched)
        strength, by = moves.strength, np.nan_to_num(moves.by[:, :mine])
        moved = strength[:, :mine] >= limit / 2.0
        side = ((by > 0) & self._watch_high) | ((by < 0) & self._watch_low)
        rows, places = np.nonzero(moved & side & np.isnan(memory["since"]))
        new, old = moves.late[rows, places], moves.early[rows, places]
        level, base = medians(new), medians(old)
        far = level - base
        sound = np.abs(far) >= limit * moves.scale[rows, places]
        sound &= _on_their_sides(new, old, (level + base) / 2.0, np.sign(far))
        sound &= level * np.sign(far) >= 0.5 * np.abs(far)  # away from the baseline, not back to it
        loaded = np.sign(np.nan_to_num(moves.by[rows, mine])) * self._by_load[places] == np.sign(far)
        sound &= ~(loaded & (strength[rows, mine] >= EXPLAINS))
        if sound.any() and self.kind is not EntityKind.SERVICE:
            alike = slow_signal_detector.shared((np.sign(by) * moved).astype(np.int8), beat.entities, beat.topology)
            sound &= ~alike[rows, places]
        if not sound.any():
            return
        rows, places = rows[sound], places[sound]
        base, far, level, cell = base[sound], far[sound], level[sound], (rows, places)
        readings_of = np.concatenate((moves.early[cell], moves.late[cell]), axis=1)
        lasted = beat.length * (readings_of.shape[1] - _split(readings_of))
        memory["since"][cell] = beat.end - lasted - self._late_by[places]
        memory["base"][cell], memory["by"][cell] = base, far
        memory["before"][cell], memory["after"][cell] = usual.level[cell] + base, usual.level[cell] + level
        memory["reach"][cell] = limit * moves.scale[cell]

    def _findings(
        self, window: Window, memory: Arrays, pool: Arrays, _topology: Topology, now: datetime
    ) -> list[Finding]:
        findings = []
        limit = LIMIT * self._calibrator.factor(pool)
        for row, place in np.argwhere(np.isfinite(memory["since"])):
            entity, signal = window.entities[row], self.watched[place]
            before, after, by, reach = (float(memory[name][row, place]) for name in ("before", "after", "by", "reach"))
            since = float(memory["since"][row, place])
            low = before - reach if self._watch_low[place] else None
            high = before + reach if self._watch_high[place] else None
            at = min(datetime.fromtimestamp(since, tz=UTC), now)
            item = evidence(
                signal, after, "level_shifted", Interval(low, high),
                what=signal, before=before, after=after, at=f"{at:%H:%M}",
            )  # fmt: skip
            strength = abs(by) / reach * limit
            findings.append(
                anomaly_finding(
                    self.name,
                    entity,
                    signal,
                    signals=(signal,),
                    score=strength / (strength + limit),
                    observed=after,
                    expected=item.expected,
                    start=at,
                    now=now,
                    evidence_items=(item, *_change(memory, int(row), since)),
                )
            )
        return findings


def _mean(part: NDArray[np.float32], least: float) -> tuple[Floats, Flags]:
    """The mean of the known part of the last axis (NaN if too little is known), and whether it is enough."""
    mean, count = counted_means(part)
    enough = count >= least * part.shape[2]
    return np.where(enough, mean, np.nan), enough


def _spans(length: float, least: tuple[int, int] = (LATE_LEAST, EARLY_LEAST)) -> tuple[int, int]:
    """Number of readings of the two windows, together at most the ring."""
    late, early = (
        max(few, round(span / length)) for few, span in zip(least, (LATE_SECONDS, EARLY_SECONDS), strict=True)
    )
    late = min(late, BEATS // 4)
    return late, min(early, BEATS - late)


def _on_their_sides(new: NDArray[np.float32], old: NDArray[np.float32], middle: Floats, sign: Floats) -> Flags:
    """True if most readings of both windows are on their own side of the middle; rows of (rows, beats)."""
    share = []
    for part, side in ((new, sign), (old, -sign)):
        known = ~np.isnan(part)
        beyond = known & (np.nan_to_num(part - middle[:, None]) * side[:, None] > 0)
        share.append(beyond.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
    result: Flags = (share[0] >= STAYS_RATIO) & (share[1] >= STAYS_RATIO)
    return result


def _split(values: NDArray[np.float32]) -> NDArray[np.intp]:
    """Index of the first reading of the new level: the split of each row with the least variance."""
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0).astype(np.float64)
    count, total = np.cumsum(known, axis=1), np.cumsum(filled, axis=1)
    all_count, all_total = count[:, -1:], total[:, -1:]
    before, after = count[:, :-1], all_count - count[:, :-1]
    apart = np.divide(total[:, :-1], before, out=np.zeros(before.shape), where=before > 0)
    apart -= np.divide(all_total - total[:, :-1], after, out=np.zeros(after.shape), where=after > 0)
    return np.asarray(np.argmax(before * after * apart**2, axis=1) + 1, dtype=np.intp)


def _change(memory: Arrays, row: int, since: float) -> tuple[Evidence, ...]:
    """The change made near the time of the shift."""
    at, code = float(memory["changed"][row]), str(memory["change"][row])
    sort = sort_of(code) if code else None
    if sort is None or not since - CHANGE_BEFORE <= at <= since + CHANGE_AFTER:
        return ()
    arguments = {"code": code, "at": f"{datetime.fromtimestamp(at, tz=UTC):%H:%M:%S}"}
    return (Evidence("", None, None, f"{CHANGE_TEXT}.{sort}", arguments),)
