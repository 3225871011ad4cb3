"""GPU memory beyond the engine's explanation: a leak, or a process other than the engine.

Memory follows the engine's reservation and, if the cache is allocated on demand, the cache in use. An engine that
reserves at the start, such as vLLM, stays constant. GPUs of one class (type, model, role and services above) learn that
line together (``online_regression``). Each GPU learns its usual distance from it. Reported is a larger distance for ten
minutes, beyond that of its peers. It is at least 3 % of the expectation and four times the scatter. A young process
loads weights and captures graphs, and is skipped.

Findings are P3 and name no fault; ``device-memory`` names *gpu-memory-leak* from the climb. The detector starts in
shadow; its threshold follows the alarm budget. Misleading if another model version is rolled out to a few replicas.
Misses growth below 3 % in two days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.learning.conditional_detector import (
    DEFAULTS,
    LONGEST_STEP_SECONDS,
    REGROUP_SECONDS,
    ConditionalDetector,
    last_seen_defaults,
    of_class,
    read_signals,
)
from detectors.statistics import peer_groups
from detectors.statistics.online_regression import DriverModel, RegressionLine
from outrider.model import EntityRef, Finding, Floats, Interval, NoVerdict, SignalKey, Window, signal_keys
from outrider.topology import Topology

USED, RESERVED = "hw_accel_memory_used_bytes", "engine_memory_reserved_ratio"
CACHE = "engine_kv_cache_usage_ratio"
# Of the cache in use and the share reserved. The cache content explains little
# at most engines, all but the weights at some. Within a class the reservation is mostly constant; if
# not, memory is nearly proportional to it.
HELD = DriverModel("cr", (0.1, 0.8), (0.3, 0.3), least_noise=0.005, least_share=0.05, min_samples=120.0)
WARM_UP = timedelta(minutes=30)  # of the class, and of the usual distance of a GPU
YOUNG = timedelta(minutes=20)  # a process that fills caches and captures graphs
NEW_PROCESS_RATIO = 0.3  # of the memory in use, between two cycles: weights; cache changes in smaller steps
MEMORY = timedelta(days=1)  # of the line, and of the usual distance of a GPU
TRAILING_SECONDS, LEAST_CELLS = 120.0, 2  # means of two minutes, at least two readings
FAR = 0.03  # of the expectation: 2 GB of 70, more than any library takes besides the engine
SURE = 4.0  # times the scatter of single readings about the line
APART = 0.015  # of the expectation, from the median of the class
ENDS = 0.5  # of the threshold
LASTING = timedelta(minutes=10)
LAG_SECONDS = 150.0  # newer values are not learned: they may be the start of a fault
CLIP = 3.0  # times the scatter; limits the effect of an outlier
FROZEN_AT_MOST = timedelta(days=2)  # after this, the distance is the new normal


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Values of the trailing minutes, (entities,): bytes, expected bytes, and shares of these.

    ``beyond`` is the distance beyond the usual one of the GPU, ``reach`` the threshold. ``judged`` is False if no
    verdict is possible.
    """

    used: Floats
    due: Floats
    share: Floats
    beyond: Floats
    reach: Floats
    cache: Floats
    judged: Flags


class GpuMemoryExcessDetector(ConditionalDetector):
    """One verdict per accelerator with a known engine."""

    name = "memory-use"
    keys: tuple[SignalKey, ...] = signal_keys(USED, RESERVED, CACHE)
    maybe = (CACHE, RESERVED)
    anomaly_arrays = ("since",)
    ahead_seconds = REGROUP_SECONDS / 2.0
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {
        **HELD.defaults,
        **DEFAULTS,
        **last_seen_defaults((CACHE, RESERVED)),
        "before": np.nan,
        "fresh_at": -np.inf,
        "own": np.nan,
        "own_seconds": 0.0,
        "since": np.nan,
    }

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges the trailing minutes by earlier history, then learns values that are old enough."""
        elapsed, at = self._live(window, memory), float(window.times[-1])
        group = self._sort(window, memory, topology)
        used = newest(window, window.column(USED))
        _note_process(memory, used, at)
        line, learnt = _usual(memory, group)
        columns = _trailing(window)
        read = self._read(window, memory, columns)
        snapshot = _snapshot(read, window.times[columns], memory, line, learnt, self._calibrator.factor(memory))
        off = np.isfinite(memory["since"])
        far = _far(snapshot, group, off)
        memory["since"] = np.where(
            snapshot.judged, np.where(far, np.fmin(memory["since"], at), np.nan), memory["since"]
        )
        lasting = np.asarray(far & (at - memory["since"] >= LASTING.total_seconds()), dtype=np.bool_)
        self._calibrator.count(memory, memory, lasting, snapshot.judged, elapsed)
        cached = self._reported(memory)[:, self.maybe.index(CACHE)]
        result = [
            self._finding(
                window.entities[row], snapshot, int(row), float(memory["since"][row]), now, cached=cached[row]
            )
            for row in np.flatnonzero(lasting)
        ]
        _settle(memory, snapshot, elapsed, at)
        self._teach(window, memory, group)
        blind = np.isnan(used) | _is_unknown(window)
        young = np.asarray(window.times[columns][0] - memory["fresh_at"] < YOUNG.total_seconds(), dtype=np.bool_)
        return (*result, *self._no_verdicts(window, blind, window.column_status(USED), learnt, snapshot.judged, young))

    def _relive(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """Learns history as live data: readings of a young process and the last ones teach nothing."""
        (used,) = read_signals(window, slice(None), (USED,))
        started = _starts(used, window.times)
        young = window.times - started < YOUNG.total_seconds()
        values = window.values.copy()
        values[:, :, window.keys.index(SignalKey(USED))][young] = np.nan
        self._teach(replace(window, values=values), memory, group)
        if used.shape[1]:
            memory["fresh_at"] = np.maximum(memory["fresh_at"], started[:, -1])
            newest_used = _carried(used)[:, -1]
            memory["before"] = np.where(np.isnan(newest_used), memory["before"], newest_used)

    def _known(self, window: Window, memory: Arrays, columns: slice) -> Flags:
        used, *drivers = self._read(window, memory, columns)
        engine = np.isfinite(window.column(CACHE)[:, columns]) | np.isfinite(window.column(RESERVED)[:, columns])
        known: Flags = engine & np.logical_and.reduce([np.isfinite(item) for item in (used, *drivers)])
        return known

    def _teach(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        times, until = window.times, float(window.times[-1]) - LAG_SECONDS
        first, stop = np.searchsorted(times, (memory["learnt_until"].min(initial=until), until), side="right")
        if first >= stop:
            return
        columns = slice(int(first), int(stop))
        used, *drivers = self._read(window, memory, columns)
        line, learnt = _usual(memory, group)
        due, _ = line.expected(drivers)
        wide = CLIP * np.nan_to_num(line.noise * line.mean)[:, None]
        near = np.where(learnt[:, None] & np.isfinite(due), np.clip(used, due - wide, due + wide), used)
        frozen = memory["since"] >= times[-1] - FROZEN_AT_MOST.total_seconds()
        where = (
            self._known(window, memory, columns) & ~frozen[:, None] & (times[columns] > memory["learnt_until"][:, None])
        )
        where &= times[columns] - memory["fresh_at"][:, None] >= YOUNG.total_seconds()
        elapsed = np.maximum(until - memory["learnt_until"], 0.0)
        HELD.learn(memory, drivers, near, where, np.exp(-elapsed / MEMORY.total_seconds()))
        stood_for = np.clip(elapsed, 0.0, LONGEST_STEP_SECONDS)
        memory["seconds"] = memory["seconds"] + np.where(where.any(axis=1) & np.isfinite(elapsed), stood_for, 0.0)
        memory["learnt_until"] = np.maximum(memory["learnt_until"], until)

    def _finding(
        self, entity: EntityRef, snapshot: _Snapshot, row: int, since: float, now: datetime, *, cached: bool
    ) -> Finding:
        """``cached`` False: the engine does not export its cache usage."""
        used, due, beyond, reach = (
            float(item[row]) for item in (snapshot.used, snapshot.due, snapshot.beyond, snapshot.reach)
        )
        usual = used - beyond * due
        limit = Interval(None, usual + reach * due)
        figures = {"gigabytes": used / 1e9, "usual": usual / 1e9, "grown": beyond * due / 1e9}
        if cached:
            figures["percent"] = 100.0 * float(snapshot.cache[row])
        text = "memory_above_its_use" if cached else "memory_above_its_engine"
        item = evidence(USED, used, text, limit, card=entity.name, **figures)
        return anomaly_finding(
            self.name,
            entity,
            USED,
            signals=(USED,),
            score=beyond / (beyond + reach),
            observed=used,
            expected=limit,
            start=min(datetime.fromtimestamp(since, tz=UTC), now),
            now=now,
            evidence_items=(item,),
        )


def _usual(memory: Arrays, group: NDArray[np.intp]) -> tuple[RegressionLine, Flags]:
    """The line of each GPU's class, and whether it may be used."""
    line = HELD.fit(memory, group)
    learnt: Flags = line.known & (of_class(np.fmax, memory["seconds"], group) >= WARM_UP.total_seconds())
    return line, learnt


def _is_unknown(window: Window) -> Flags:
    """True for GPUs without data of their engine, (entities,)."""
    never = np.ones(len(window.entities), dtype=np.bool_)
    for name in (CACHE, RESERVED):
        rows = np.flatnonzero(never)  # usually empty apart from the newest column
        never[rows] = np.isnan(window.column(name)[rows, -1])
    rows = np.flatnonzero(never)
    never[rows] = np.isnan(window.column(CACHE)[rows]).all(axis=1) & np.isnan(window.column(RESERVED)[rows]).all(axis=1)
    return never


def _carried(used: Floats) -> Floats:
    """The last known value at each time, (entities, times); NaN before the first."""
    places = np.where(np.isnan(used), 0, np.arange(used.shape[1]))
    return np.take_along_axis(used, np.maximum.accumulate(places, axis=1), axis=1)


def _starts(used: Floats, times: Floats) -> Floats:
    """Start of the process at each time, inferred from jumps, (entities, times); minus infinity unknown."""
    after = _carried(used)
    before = np.concatenate((np.full((used.shape[0], 1), np.nan), after[:, :-1]), axis=1)
    began = np.where(_jumps(before, after), times, -np.inf)
    return np.asarray(np.maximum.accumulate(began, axis=1), dtype=np.float64)


def _jumps(before: Floats, after: Floats) -> Flags:
    with np.errstate(invalid="ignore"):
        result: Flags = np.abs(after - before) > NEW_PROCESS_RATIO * np.fmax(after, before)
    return result


def _note_process(memory: Arrays, used: Floats, at: float) -> None:
    """A jump of the memory in use means another process, which counts as young. Changes ``memory``."""
    memory["fresh_at"] = np.where(_jumps(memory["before"], used), at, memory["fresh_at"])
    memory["before"] = np.where(np.isnan(used), memory["before"], used)


def _trailing(window: Window) -> slice:
    """The columns of the trailing minutes."""
    trailing = max(TRAILING_SECONDS, LEAST_CELLS * window.step.total_seconds())
    return slice(int(np.searchsorted(window.times, window.times[-1] - trailing, side="right")), None)


def _snapshot(
    read: Sequence[Floats], times: Floats, memory: Arrays, line: RegressionLine, learnt: Flags, factor: float
) -> _Snapshot:
    """Values of the trailing minutes: bytes used and their drivers as ``read`` at ``times``.

    ``factor`` is the budget's multiplier of the threshold.
    """
    used, *drivers = read
    due, error = line.expected(drivers)
    known = np.isfinite(used) & np.isfinite(due) & learnt[:, None]
    known &= times - memory["fresh_at"][:, None] >= YOUNG.total_seconds()
    count = known.sum(axis=1)
    took, should, unsure, cache = (
        np.where(known, item, 0.0).sum(axis=1) / np.maximum(count, 1) for item in (used, due, error, drivers[0])
    )
    judged = np.asarray((count >= LEAST_CELLS) & (should > 0), dtype=np.bool_)
    share = np.divide(took - should, should, out=np.full(should.shape, np.nan), where=judged)
    noise = np.divide(line.noise * line.mean, should, out=np.zeros_like(should), where=judged)
    own = np.where(memory["own_seconds"] >= WARM_UP.total_seconds(), memory["own"], np.nan)
    reach = factor * np.maximum(FAR, SURE * np.hypot(np.nan_to_num(noise), unsure))
    return _Snapshot(took, should, share, share - own, reach, cache, judged)


def _far(snapshot: _Snapshot, group: NDArray[np.intp], off: Flags) -> Flags:
    """True for GPUs that use too much on their own, (entities,).

    A GPU that is ``off`` stays so down to half the threshold.
    """
    with np.errstate(invalid="ignore"):
        # NaN if no usual distance is known yet
        far = snapshot.judged & (snapshot.beyond > np.where(off, ENDS, 1.0) * snapshot.reach)
        if far.any():
            middle = np.maximum(np.nan_to_num(peer_groups.medians(snapshot.beyond[:, None], group)[:, 0]), 0.0)
            far &= snapshot.beyond - middle > np.where(off, ENDS, 1.0) * APART
    return far


def _settle(memory: Arrays, snapshot: _Snapshot, elapsed: float, at: float) -> None:
    """Learns the usual distance of each GPU from its line, within the threshold. Changes ``memory``."""
    use = snapshot.judged & ~(memory["since"] >= at - FROZEN_AT_MOST.total_seconds())
    weight = np.minimum(memory["own_seconds"] + elapsed, MEMORY.total_seconds())
    pace = np.divide(elapsed, weight, out=np.ones_like(weight), where=weight > 0)
    moved = np.where(np.isnan(memory["own"]), snapshot.share, memory["own"] + pace * (snapshot.share - memory["own"]))
    memory["own"] = np.where(use, moved, memory["own"])
    memory["own_seconds"] = np.where(use, weight, memory["own_seconds"])
