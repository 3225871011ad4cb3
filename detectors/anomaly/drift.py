"""Slow drift of a signal in its bad direction over hours or days: slope and time to its limit.

Ten-minute means are kept for six hours, half-hour medians for three days. Two hours and six are judged by Theil-Sen
over all pairs of twelve points. Three days are judged by pairs whole days apart, which cancels daily patterns. A drift
rises in nine of ten pairs. The rise is twice the signal's minimum scale (adjusted by ``alarm_budget``) and clearly
above its own scatter. It continues to the end, and no single step makes up most of it, which excludes restarts,
rollouts and outages. A drift within a day must exceed all earlier values, which excludes mornings. Drifts that a peak
load explains or that many peers share are dropped.

Findings are P3 and name no fault. GPU memory is reported on the replica and container memory on the pod, as evidence of
a leak. Misleading for storage that fills up by design and is emptied by hand. Misleading also on a Monday after a quiet
weekend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import sampling
from detectors.base.condition_durations import newest
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.learning import learning_detector, slow_signal_detector
from detectors.learning.slow_signal_detector import Beat, Flags, SlowSignalDetector
from detectors.platform.host_faults import DISK_FULL_RATIO
from detectors.statistics.peer_groups import SIGMA_OF_MAD
from detectors.statistics.theil_sen import Trend, all_pairs, means, medians, pairs_apart, theil_sen
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Interval,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

BEAT_SECONDS, BLOCK_BEATS = 600.0, 3
POINTS, BLOCKS, DAY_BLOCKS = 36, 144, 48  # six hours of beats, three days of blocks
_COUNT = 12  # points of a span within a day
_PAIRS = all_pairs(_COUNT)
_DAY_PAIRS = pairs_apart(BLOCKS, DAY_BLOCKS)
CONCORDANT = 0.9  # share of the pairs
MOST_MISSING = 2  # of the twelve points
LEAST_DAY_PAIRS = 80  # of 144; the second day is nearly complete
RISE_SCALES = 2.0  # minimum scales of the signal
SCATTER = 6.0  # times the scatter about the trend
STEP_RATIO = 0.4  # share of the rise in one step that makes it a step
GOES_ON_RATIO = 0.6  # of the rise before, in the last third; a cache that fills up slows down
ALL_ALONG_RATIO = 0.4  # of the mean slope, in the first third; a new rise may end soon
EVEN_RATIO = 0.3  # of the mean daily rise, at any hour and in the last half day
DAY_SECONDS = 86400.0
OLDER_RATIO = 0.8  # share of a day that must be known before shorter spans are judged
BEYOND_SCALES = 0.5  # scales above all earlier values, for a drift within a day
LOAD_PAIRS, LOAD_SCALES = 0.7, 2.0
HOLD_SECONDS = 3 * 3600.0  # after the last clear detection
GIVEN_BACK_RATIO = 0.5
FAR_AHEAD = timedelta(days=30)  # a limit further away than this is not reported

# Signals watched per kind, and the load that may explain them.
WATCHED: dict[EntityKind, tuple[tuple[str, ...], str]] = {
    EntityKind.SERVICE: (("svc_ttft_seconds", "svc_tpot_seconds"), "svc_requests_per_second"),
    EntityKind.REPLICA: (("engine_tpot_seconds", "engine_kv_cache_usage_ratio"), "engine_requests_running"),
    EntityKind.GPU: (("hw_accel_memory_used_bytes", "hw_accel_temperature_celsius"), "hw_accel_utilization_ratio"),
    EntityKind.NODE: (("node_memory_available_ratio", "node_filesystem_available_ratio"), "node_cpu_utilization_ratio"),
    EntityKind.CONTAINER: (("container_memory_working_set_bytes",), "container_cpu_usage_cores"),
}
LIMITS = {
    "node_memory_available_ratio": 0.0,
    "node_filesystem_available_ratio": DISK_FULL_RATIO,
    "engine_kv_cache_usage_ratio": 1.0,
}
_TOTAL = {"hw_accel_memory_used_bytes": "hw_accel_memory_total_bytes"}  # the limit is a signal of its own
_SHARE = {
    "container_memory_working_set_bytes": "container_memory_limit_ratio"
}  # the share of the limit is a signal of its own
REPORTED_ON = {
    "hw_accel_memory_used_bytes": EntityKind.REPLICA,
    "container_memory_working_set_bytes": EntityKind.POD,
}


_DRIFT_ARRAYS = ("since", "seen", "start", "base", "top", "level", "slope", "low", "high", "reach")
_Cells = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True, slots=True)
class _Trends:
    """Results of a beat, (entities, signals) or (entities, watched): ``moved`` is 1 for rising signals."""

    scale: Floats
    level: Floats
    moved: NDArray[np.int8]
    clear: Flags

    def note(self, cell: _Cells, rises: Flags) -> None:
        """Marks rising cells, which are compared among peers."""
        self.moved[cell] = np.maximum(self.moved[cell], rises.astype(np.int8))


class DriftDetector(SlowSignalDetector):
    """Slow drifts of the signals of one kind of entity."""

    family = "drift"
    weekly = False
    state_version = 1
    beat_seconds, instants = BEAT_SECONDS, 5
    replaced = ("points", "blocks")
    rings: ClassVar[Mapping[str, float]] = {"points": 1.0, "blocks": float(BLOCK_BEATS)}
    passing = (*SlowSignalDetector.passing, *_DRIFT_ARRAYS)

    def __init__(self, kind: EntityKind, watched: tuple[str, ...], load: str, name: str | None = None) -> None:
        """As ``SlowSignalDetector``; the name defaults to ``drift-<kind>``."""
        beside = [table[item] for table in (_TOTAL, _SHARE) for item in watched if item in table]
        super().__init__(kind, watched, load, name, also=beside)
        bad = [-1.0 if catalog.signal(item).good == "higher" else 1.0 for item in watched]
        self._bad = np.array([*bad, 1.0], dtype=np.float32)  # in the rings, up is bad for all signals

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Fills the rings from history, oldest first; skips columns not newer than the state. Finds nothing."""
        memory, pool = self._follow(state, window.entities)
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        for place in range(first, window.times.size):
            learning_detector.lived(pool, np.isfinite(window.values[:, place]), float(seconds[place]))
        if first < window.times.size:
            memory = dict(memory)
            self._fill(memory, pool, window, first)
            pool["last"] = np.array([window.times[-1]])
            pool["length"] = np.array([BEAT_SECONDS])
        return self._state(window.entities, memory, pool)

    def _fill(self, memory: Arrays, pool: Arrays, window: Window, first: int) -> None:
        """The beats of the last three days."""
        numbers = np.floor(window.times / BEAT_SECONDS + 1e-6)
        first = max(first, int(np.searchsorted(numbers, numbers[-1] - BLOCKS * BLOCK_BEATS)))
        before = float(numbers[first]) - 1.0
        for start in np.searchsorted(numbers, np.unique(numbers[first:])):
            stop = int(np.searchsorted(numbers, numbers[start] + 1.0))
            values = self._reading(window, slice(int(start), stop))
            self._take(memory, values, float(numbers[start]), int(numbers[start] - before) - 1)
            before = float(numbers[start])
        pool["beat"] = np.array([numbers[-1]])

    def _fresh(self, count: int) -> Arrays:
        every, mine = (count, len(self.signals)), (count, len(self.watched))
        return self._calibrator.of_entities(count) | {
            "points": np.full((*every, POINTS), np.nan, dtype=np.float32),
            "blocks": np.full((*every, BLOCKS), np.nan, dtype=np.float32),
            "known": np.zeros(mine, dtype=np.bool_),
            **{name: np.full(mine, np.nan) for name in _DRIFT_ARRAYS},
        }

    def _forget(self, memory: Arrays) -> None:
        for name in self.replaced:
            memory[name] = np.full_like(memory[name], np.nan)

    def _take(self, memory: Arrays, values: Floats, number: float, gap: int) -> None:
        """Shifts the rings; a block ends with the last of its beats, even if that is missing."""
        memory["points"] = slow_signal_detector.extended(memory["points"], values * self._bad, gap)
        blocks = int((number + 1.0) // BLOCK_BEATS - (number - gap) // BLOCK_BEATS)
        if blocks:
            ends = POINTS - int((number + 1.0) % BLOCK_BEATS)  # beats after the newest block
            newest_block = medians(memory["points"][:, :, ends - BLOCK_BEATS : ends])
            memory["blocks"] = slow_signal_detector.extended(memory["blocks"], newest_block, blocks - 1)

    def _beat(self, memory: Arrays, pool: Arrays, values: Floats, beat: Beat) -> None:
        end, mine = beat.end, len(self.watched)
        self._take(memory, values, beat.number, beat.gap)
        points, blocks = memory["points"], memory["blocks"]
        memory["known"] = (~np.isnan(points[:, :mine, -_COUNT:])).sum(axis=2) >= _COUNT - MOST_MISSING
        level = medians(points[:, :, -3:])
        self._end(memory, level[:, :mine], end)
        scale = self._baseline.least_scale(level) * self._calibrator.factor(pool)
        seen = _Trends(
            scale, level, np.zeros(memory["known"].shape, np.int8), np.zeros(memory["known"].shape, np.bool_)
        )
        self._within_a_day(memory, seen, points[:, :, -_COUNT:], 4, beat.length, end)
        if (beat.number + 1.0) % BLOCK_BEATS == 0:
            self._within_a_day(memory, seen, blocks[:, :, -_COUNT:], _COUNT, BLOCK_BEATS * beat.length, end)
            self._over_days(memory, seen, BLOCK_BEATS * beat.length, end)
        clear, stands = seen.clear, np.isfinite(memory["since"])
        if (clear & ~stands).any() and self.kind is not EntityKind.SERVICE:
            clear &= stands | ~slow_signal_detector.shared(seen.moved, beat.entities, beat.topology)
        memory["since"] = np.where(clear & ~stands, memory["start"], memory["since"])
        memory["seen"] = np.where(clear, end, memory["seen"])
        # a standing drift is reported with its last known level while values are missing
        memory["level"] = np.where(np.isnan(level[:, :mine]), memory["level"], level[:, :mine])

    def _end(self, memory: Arrays, level: Floats, end: float) -> None:
        """Ends drifts that lost half of their rise, or had no clear detection for long."""
        memory["top"] = np.where(np.isfinite(memory["since"]), np.fmax(memory["top"], level), np.nan)
        with np.errstate(invalid="ignore"):
            back = level < memory["base"] + GIVEN_BACK_RATIO * (memory["top"] - memory["base"])
            over = back | (end - memory["seen"] > HOLD_SECONDS)
        memory["since"] = np.where(over, np.nan, memory["since"])

    def _within_a_day(
        self, memory: Arrays, seen: _Trends, points: NDArray[np.float32], blocks: int, step: float, end: float
    ) -> None:
        """Judges twelve points, which cover ``blocks`` blocks."""
        mine, least = len(self.watched), RISE_SCALES * seen.scale
        thirds = [means(points[:, :mine, place : place + 4]) for place in (0, 4, 8)]
        with np.errstate(invalid="ignore"):
            rows, places = np.nonzero(thirds[2] - thirds[0] >= 0.5 * least[:, :mine])
        cell = (rows, places)
        if not rows.size:
            return
        own, times = points[cell], step * np.arange(float(_COUNT))
        trend = theil_sen(own, times, _PAIRS)
        rise = trend.slope * times[-1]
        seen.note(cell, (trend.rising >= LOAD_PAIRS) & (rise >= 0.5 * least[cell]))
        first, middle, last = (third[cell] for third in thirds)
        older = memory["blocks"][:, :, :-blocks][cell]
        with np.errstate(invalid="ignore"):
            clear = (
                (trend.rising >= CONCORDANT) & (rise >= least[cell]) & (rise >= SCATTER * _scatter(own, times, trend))
            )
            clear &= (~np.isnan(own)).sum(axis=1) >= _COUNT - MOST_MISSING
            clear &= np.nan_to_num(np.diff(own, axis=1)).max(axis=1) <= STEP_RATIO * rise
            clear &= last - middle >= GOES_ON_RATIO * (middle - first)
            clear &= means(own[:, 2:4]) - means(own[:, :2]) >= ALL_ALONG_RATIO * 2.0 * step * trend.slope
            clear &= (~np.isnan(older)).sum(axis=1) >= OLDER_RATIO * DAY_BLOCKS
            clear &= seen.level[cell] >= _highest(older) + BEYOND_SCALES * seen.scale[cell]
        load, scale = theil_sen(points[rows, mine], times, _PAIRS), seen.scale[rows, mine]
        usual_load = _highest(memory["blocks"][rows, mine, :-blocks])
        peaks = ~(
            seen.level[rows, mine] < usual_load - scale
        )  # below its peak, the load was this high before without the rise
        clear &= ~(peaks & _by_load(load, times[-1], scale))
        self._keep(memory, seen, (rows[clear], places[clear]), _pick(trend, clear), first[clear], end - _COUNT * step)

    def _over_days(self, memory: Arrays, seen: _Trends, step: float, end: float) -> None:
        """Judges pairs of blocks that are whole days apart."""
        mine, least = len(self.watched), RISE_SCALES * seen.scale
        blocks = memory["blocks"]
        newest_day, before = means(blocks[:, :mine, -DAY_BLOCKS:]), means(blocks[:, :mine, :-DAY_BLOCKS])
        with np.errstate(invalid="ignore"):
            rows, places = np.nonzero(newest_day - before >= 0.25 * least[:, :mine])
        if not rows.size:
            return
        cell = (rows, places)
        own, times = blocks[cell], step * np.arange(float(BLOCKS))
        trend = theil_sen(own, times, _DAY_PAIRS)
        covered = step * (BLOCKS - 1 - np.argmax(~np.isnan(own), axis=1))
        rise = trend.slope * covered
        seen.note(cell, (trend.rising >= LOAD_PAIRS) & (rise >= 0.5 * least[cell]))
        daily = own[:, DAY_BLOCKS:].astype(np.float64) - own[:, :-DAY_BLOCKS]
        even = EVEN_RATIO * trend.slope * DAY_SECONDS
        with np.errstate(invalid="ignore"):
            clear = (trend.rising >= CONCORDANT) & (rise >= least[cell]) & (trend.pairs >= LEAST_DAY_PAIRS)
            clear &= (daily < even[:, None]).sum(axis=1) <= 0.25 * (~np.isnan(daily)).sum(axis=1)
            clear &= medians(daily[:, -DAY_BLOCKS // 2 :]) >= even
        load = theil_sen(blocks[rows, mine], times, _DAY_PAIRS)
        clear &= ~_by_load(load, covered, seen.scale[rows, mine])
        base = (seen.level[cell] - rise)[clear]
        self._keep(memory, seen, (rows[clear], places[clear]), _pick(trend, clear), base, end - covered[clear])

    def _keep(
        self, memory: Arrays, seen: _Trends, cell: _Cells, trend: Trend, base: Floats, start: Floats | float
    ) -> None:
        """Stores a clear drift; a standing one keeps its start."""
        seen.clear[cell] = True
        fresh = ~np.isfinite(memory["since"][cell])
        memory["start"][cell] = start
        memory["base"][cell] = np.where(fresh, base, memory["base"][cell])
        memory["reach"][cell] = RISE_SCALES * seen.scale[cell]
        for name, value in (("slope", trend.slope), ("low", trend.low), ("high", trend.high)):
            memory[name][cell] = value

    def _findings(
        self, window: Window, memory: Arrays, _pool: Arrays, topology: Topology, now: datetime
    ) -> list[Finding]:
        named: dict[str, tuple[float, str, Finding]] = {}
        stands = np.isfinite(memory["since"])
        limits = {int(place): self._limits(window, int(place)) for place in np.flatnonzero(stands.any(axis=0))}
        for row, place in np.argwhere(stands):
            entity, signal = window.entities[row], self.watched[place]
            drift = {name: float(memory[name][row, place]) for name in _DRIFT_ARRAYS}
            limit = float(limits[int(place)][row])
            kind = REPORTED_ON.get(signal)
            for about in (topology.above(entity, kind) if kind else ()) or (entity,):
                finding = self._finding(about, entity, int(place), drift, limit, now)
                key = (-finding.score, entity.key, finding)
                named[finding.fingerprint] = min(named.get(finding.fingerprint, key), key, key=lambda it: it[:2])
        return [finding for _, _, finding in named.values()]

    def _finding(
        self, about: EntityRef, entity: EntityRef, place: int, drift: dict[str, float], limit: float, now: datetime
    ) -> Finding:
        signal, sign = self.watched[place], float(self._bad[place])
        at = min(datetime.fromtimestamp(drift["since"], tz=UTC), now)
        level, base = sign * drift["level"], sign * drift["base"]
        edge = base + sign * drift["reach"]
        expected = Interval(None, edge) if sign > 0 else Interval(edge, None)
        rise, hours = drift["level"] - drift["base"], (now - at) / timedelta(hours=1)
        evidence_items = [
            evidence(
                signal, level, "drifts", expected,
                what=signal, card=entity.name, before=base, level=level,
                per_day=sign * drift["slope"] * DAY_SECONDS, hours=f"{hours:.0f}",
            )
        ]  # fmt: skip
        evidence_items += _when(signal, limit, sign, drift)
        return anomaly_finding(
            self.name,
            about,
            signal,
            signals=(signal,),
            score=float(np.clip(rise / (rise + drift["reach"]) if rise > 0 else 0.0, 0.0, 1.0)),
            observed=evidence_items[0].observed,
            expected=expected,
            start=at,
            now=now,
            evidence_items=tuple(evidence_items),
        )

    def _limits(self, window: Window, place: int) -> Floats:
        """The limit of a signal for each entity, in its own unit; NaN if unknown."""
        signal = self.watched[place]
        if signal in _TOTAL:
            total: Floats = newest(window, window.column(_TOTAL[signal]))
            return total
        if signal in _SHARE:
            share, own = (newest(window, window.column(name)) for name in (_SHARE[signal], signal))
            part: Floats = np.divide(own, share, out=np.full(own.shape, np.nan), where=share > 0)
            return part
        return np.full(len(window.entities), LIMITS.get(signal, np.nan))


def _scatter(points: NDArray[np.float32], times: Floats, trend: Trend) -> Floats:
    """The robust scatter of each row about its trend."""
    left = points - trend.slope[:, None] * times
    return SIGMA_OF_MAD * medians(np.abs(left - medians(left)[:, None]))


def _highest(values: NDArray[np.float32]) -> Floats:
    """The largest value of each row; minus infinity if none is known."""
    highest: Floats = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf).astype(np.float64)
    return highest


def _by_load(load: Trend, seconds: Floats | float, scale: Floats) -> Flags:
    """True if the load rose as well, which explains the drift."""
    with np.errstate(invalid="ignore"):
        result: Flags = (load.rising >= LOAD_PAIRS) & (load.slope * seconds >= LOAD_SCALES * scale)
    return result


def _pick(trend: Trend, rows: Flags) -> Trend:
    parts = (trend.slope, trend.low, trend.high, trend.rising, trend.falling)
    slope, low, high, rising, falling = (part[rows] for part in parts)
    return Trend(slope, low, high, rising, falling, trend.pairs[rows])


def _when(signal: str, limit: float, sign: float, one: dict[str, float]) -> list[Evidence]:
    """Time until the signal reaches its limit at this slope, with bounds from the slope's quantiles."""
    left = sign * limit - one["level"]
    if not left > 0 or not one["slope"] > 0 or left / one["slope"] > FAR_AHEAD.total_seconds():
        return []
    hours, soonest = (left / one[name] / 3600.0 for name in ("slope", "high"))
    latest = left / max(one["low"], left / FAR_AHEAD.total_seconds()) / 3600.0
    arguments = {"limit": float(limit), "hours": f"{hours:.1f}", "soonest": f"{soonest:.1f}", "latest": f"{latest:.1f}"}
    return [evidence(signal, None, "drift_limit", None, what=signal, **arguments)]
