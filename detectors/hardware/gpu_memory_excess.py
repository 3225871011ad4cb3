"""A card whose memory in use grows beyond what its engine explains: a leak, or a process that is not the engine's.

Memory follows what an engine reserves and, where it takes cache as it goes, how much of that is in use; one that
reserves its share at the start, as vLLM does, stands still whatever its cache holds. Cards of one class (type, model,
role and services above) learn that line together (``lines.py``), and each card how far it usually lies off it. Told is
what lies further off than that, for ten minutes, beyond its like: 3 % of what is expected and four times the scatter at
the least. A young process loads and captures graphs, and is left out. A finding is P3 and names no fault;
``device-memory`` names *gpu-memory-leak* by its climb. It is tried in the shadow first, and how far is far follows its
budget of false alarms.
Misleads where another version of a model is rolled out on a few of its replicas, and misses what grows by less than 3 %
in two days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import evidence, oddity
from detectors.base.state_arrays import Arrays
from detectors.learning.conditional_detector import (
    DEFAULTS,
    LONGEST_STEP_SECONDS,
    REGROUP_SECONDS,
    ConditionalDetector,
    believed,
    of_class,
    told,
)
from detectors.statistics import peer_groups
from detectors.statistics.online_regression import Line, Relation
from outrider.model import EntityRef, Finding, Floats, Interval, NoVerdict, SignalKey, Window
from outrider.topology import Topology

USED, RESERVED = "hw_accel_memory_used_bytes", "engine_memory_reserved_ratio"
CACHE = "engine_kv_cache_usage_ratio"
# Of the cache in use and the share reserved. Weights and what is reserved are there whatever the cache holds: little
# follows it at most engines, all but the weights at some. Within a class the reservation is one number mostly; where
# it is not, memory is nearly in proportion to it.
HELD = Relation("cr", (0.1, 0.8), (0.3, 0.3), least_noise=0.005, least_share=0.05, min_samples=120.0)
WARM_UP = timedelta(minutes=30)  # of the class, and of what is usual for a card
YOUNG = timedelta(minutes=20)  # a process that fills its caches and captures graphs
NEW_PROCESS_RATIO = 0.3  # of what is used, between two cycles: weights come or go; cache does in smaller steps
MEMORY = timedelta(days=1)  # of the line, and of what is usual for a card
TRAILING_SECONDS, LEAST_CELLS = 120.0, 2  # means of two minutes, of two readings at the least
FAR = 0.03  # of what is expected: 2 GB of 70, more than any library takes beside the engine
SURE = 4.0  # times the scatter of single readings about the line
APART = 0.015  # of what is expected, from the median of the class
ENDS = 0.5  # of the limit
LASTING = timedelta(minutes=10)
LAG_SECONDS = 150.0  # what is newer is not learnt from: it may be the beginning of a fault
CLIP = 3.0  # times the scatter: a reading further off teaches no more than that
FROZEN_AT_MOST = timedelta(days=2)  # then what was far is usual


@dataclass(frozen=True, slots=True)
class _Sight:
    """What the trailing minutes show, (entities,): bytes, bytes expected, and shares of these.

    ``beyond`` is how far off the card lies beyond what is usual for it, ``reach`` how far is far; ``told`` False
    where nothing can be said.
    """

    used: Floats
    due: Floats
    share: Floats
    beyond: Floats
    reach: Floats
    cache: Floats
    told: Flags


class GpuMemoryExcessDetector(ConditionalDetector):
    """One verdict per accelerator that an engine tells of."""

    name = "memory-use"
    keys: tuple[SignalKey, ...] = tuple(SignalKey(name) for name in (USED, RESERVED, CACHE))
    maybe = (CACHE, RESERVED)
    odd = ("since",)
    ahead_seconds = REGROUP_SECONDS / 2.0
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {
        **HELD.defaults,
        **DEFAULTS,
        **told((CACHE, RESERVED)),
        "before": np.nan,
        "fresh_at": -np.inf,
        "own": np.nan,
        "own_seconds": 0.0,
        "since": np.nan,
    }

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judge the trailing minutes by what was learnt before them, then learn what is old enough."""
        elapsed, at = self._live(window, memory), float(window.times[-1])
        group = self._sort(window, memory, topology)
        used = newest(window, window.column(USED))
        _note_process(memory, used, at)
        line, learnt = _usual(memory, group)
        columns = _trailing(window)
        read = self._read(window, memory, columns)
        sight = _look(read, window.times[columns], memory, line, learnt, self._calibrator.factor(memory))
        off = np.isfinite(memory["since"])
        far = _far(sight, group, off)
        memory["since"] = np.where(sight.told, np.where(far, np.fmin(memory["since"], at), np.nan), memory["since"])
        lasting = np.asarray(far & (at - memory["since"] >= LASTING.total_seconds()), dtype=np.bool_)
        self._calibrator.count(memory, memory, lasting, sight.told, elapsed)
        cached = self._tells(memory)[:, self.maybe.index(CACHE)]
        found = [
            self._finding(window.entities[row], sight, int(row), float(memory["since"][row]), now, cached=cached[row])
            for row in np.flatnonzero(lasting)
        ]
        _settle(memory, sight, elapsed, at)
        self._teach(window, memory, group)
        blind = np.isnan(used) | _untold(window)
        young = np.asarray(window.times[columns][0] - memory["fresh_at"] < YOUNG.total_seconds(), dtype=np.bool_)
        return (*found, *self._silences(window, blind, window.column_status(USED), learnt, sight.told, young))

    def _relive(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """As lived: readings of a young process teach nothing, and the last ones may be of one."""
        (used,) = believed(window, slice(None), (USED,))
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
        known: Flags = engine & np.logical_and.reduce([np.isfinite(one) for one in (used, *drivers)])
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
        self, entity: EntityRef, sight: _Sight, row: int, since: float, now: datetime, *, cached: bool
    ) -> Finding:
        """``cached`` False: the engine tells nothing of its cache."""
        used, due, beyond, reach = (float(one[row]) for one in (sight.used, sight.due, sight.beyond, sight.reach))
        usual = used - beyond * due
        limit = Interval(None, usual + reach * due)
        figures = {"gigabytes": used / 1e9, "usual": usual / 1e9, "grown": beyond * due / 1e9}
        if cached:
            figures["percent"] = 100.0 * float(sight.cache[row])
        text = "memory_above_its_use" if cached else "memory_above_its_engine"
        because = evidence(USED, used, text, limit, card=entity.name, **figures)
        return oddity(
            self.name,
            entity,
            USED,
            signals=(USED,),
            score=beyond / (beyond + reach),
            observed=used,
            expected=limit,
            start=min(datetime.fromtimestamp(since, tz=UTC), now),
            now=now,
            because=(because,),
        )


def _usual(memory: Arrays, group: NDArray[np.intp]) -> tuple[Line, Flags]:
    """The line of each card's class, and where that may be gone by."""
    line = HELD.fit(memory, group)
    learnt: Flags = line.known & (of_class(np.fmax, memory["seconds"], group) >= WARM_UP.total_seconds())
    return line, learnt


def _untold(window: Window) -> Flags:
    """Of whose engine nothing is told, (entities,)."""
    never = np.ones(len(window.entities), dtype=np.bool_)
    for name in (CACHE, RESERVED):
        rows = np.flatnonzero(never)  # nearly none beside the newest column
        never[rows] = np.isnan(window.column(name)[rows, -1])
    rows = np.flatnonzero(never)
    never[rows] = np.isnan(window.column(CACHE)[rows]).all(axis=1) & np.isnan(window.column(RESERVED)[rows]).all(axis=1)
    return never


def _carried(used: Floats) -> Floats:
    """The last known value at each instant, (entities, times); NaN before the first."""
    places = np.where(np.isnan(used), 0, np.arange(used.shape[1]))
    return np.take_along_axis(used, np.maximum.accumulate(places, axis=1), axis=1)


def _starts(used: Floats, times: Floats) -> Floats:
    """When the process of each instant began as far as a jump tells, (entities, times); minus infinity unknown."""
    after = _carried(used)
    before = np.concatenate((np.full((used.shape[0], 1), np.nan), after[:, :-1]), axis=1)
    began = np.where(_jumps(before, after), times, -np.inf)
    return np.asarray(np.maximum.accumulate(began, axis=1), dtype=np.float64)


def _jumps(before: Floats, after: Floats) -> Flags:
    with np.errstate(invalid="ignore"):
        found: Flags = np.abs(after - before) > NEW_PROCESS_RATIO * np.fmax(after, before)
    return found


def _note_process(memory: Arrays, used: Floats, at: float) -> None:
    """A jump of the memory in use is another process: that is young for a while. Changes ``memory``."""
    memory["fresh_at"] = np.where(_jumps(memory["before"], used), at, memory["fresh_at"])
    memory["before"] = np.where(np.isnan(used), memory["before"], used)


def _trailing(window: Window) -> slice:
    """The columns of the trailing minutes."""
    trailing = max(TRAILING_SECONDS, LEAST_CELLS * window.step.total_seconds())
    return slice(int(np.searchsorted(window.times, window.times[-1] - trailing, side="right")), None)


def _look(read: Sequence[Floats], times: Floats, memory: Arrays, line: Line, learnt: Flags, factor: float) -> _Sight:
    """What the trailing minutes show: bytes used and their drivers as ``read`` at ``times``.

    ``factor`` is what the budget makes of the limit.
    """
    used, *drivers = read
    due, error = line.expected(drivers)
    known = np.isfinite(used) & np.isfinite(due) & learnt[:, None]
    known &= times - memory["fresh_at"][:, None] >= YOUNG.total_seconds()
    count = known.sum(axis=1)
    took, should, unsure, cache = (
        np.where(known, one, 0.0).sum(axis=1) / np.maximum(count, 1) for one in (used, due, error, drivers[0])
    )
    told = np.asarray((count >= LEAST_CELLS) & (should > 0), dtype=np.bool_)
    share = np.divide(took - should, should, out=np.full(should.shape, np.nan), where=told)
    noise = np.divide(line.noise * line.mean, should, out=np.zeros_like(should), where=told)
    own = np.where(memory["own_seconds"] >= WARM_UP.total_seconds(), memory["own"], np.nan)
    reach = factor * np.maximum(FAR, SURE * np.hypot(np.nan_to_num(noise), unsure))
    return _Sight(took, should, share, share - own, reach, cache, told)


def _far(sight: _Sight, group: NDArray[np.intp], off: Flags) -> Flags:
    """Which cards use too much by themselves, (entities,); one that is ``off`` stays so down to half of the limit."""
    with np.errstate(invalid="ignore"):
        far = sight.told & (sight.beyond > np.where(off, ENDS, 1.0) * sight.reach)  # NaN where no habit is known yet
        if far.any():
            middle = np.maximum(np.nan_to_num(peer_groups.medians(sight.beyond[:, None], group)[:, 0]), 0.0)
            far &= sight.beyond - middle > np.where(off, ENDS, 1.0) * APART
    return far


def _settle(memory: Arrays, sight: _Sight, elapsed: float, at: float) -> None:
    """Learn how far each card usually lies off its line, while it is not further off than that. Changes ``memory``."""
    use = sight.told & ~(memory["since"] >= at - FROZEN_AT_MOST.total_seconds())
    weight = np.minimum(memory["own_seconds"] + elapsed, MEMORY.total_seconds())
    pace = np.divide(elapsed, weight, out=np.ones_like(weight), where=weight > 0)
    moved = np.where(np.isnan(memory["own"]), sight.share, memory["own"] + pace * (sight.share - memory["own"]))
    memory["own"] = np.where(use, moved, memory["own"])
    memory["own_seconds"] = np.where(use, weight, memory["own_seconds"])
