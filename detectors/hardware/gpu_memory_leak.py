"""gpu-memory-leak: GPU memory that climbs although the engine's share is already reserved.

An engine that reserves its share at the start stays constant once warm: the KV cache fills inside its share. A
continued climb is therefore not load. Without a known reservation, memory may follow the KV cache, so only a climb at
constant cache usage counts. Without cache metrics, only a climb at constant utilization counts. A young process fills
caches and captures graphs, and is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Flags, newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.statistics.theil_sen import steps
from outrider import windows
from outrider.model import (
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology

USED, TOTAL = "hw_accel_memory_used_bytes", "hw_accel_memory_total_bytes"
RESERVED, BUSY = "engine_memory_reserved_ratio", "hw_accel_utilization_ratio"
CACHE = "engine_kv_cache_usage_ratio"
NEW_PROCESS_RATIO = 0.1  # of the memory, between two scrapes: weights are loaded or freed
WARM_UP = timedelta(minutes=20)
CLIMBS = timedelta(minutes=4)
CLIMBING_SHARE = 0.8  # share of the scrapes; a buffer allocated once is one step
RISEN_RATIO = 0.01  # of the memory, above the minimum since the process was warm
SLOW_RISE_RATIO, SLOW = 0.02, timedelta(minutes=30)
LOAD_GROWS = 0.1
CACHE_GROWS = 0.01  # of the cache; less cannot have filled ``RISEN_RATIO`` of the memory
_DEFAULTS: dict[str, float | bool] = {
    "before": np.nan,
    "fresh_at": -np.inf,
    "floor": np.nan,
    "floor_at": np.nan,
    "top": np.nan,
    "leaks": False,
    "since": np.nan,
}


class GpuMemoryLeakDetector(StatefulDetector):
    """One verdict per replica, read from its accelerators."""

    name = "device-memory"
    kind = EntityKind.GPU
    keys: tuple[SignalKey, ...] = signal_keys(USED, TOTAL, RESERVED, BUSY, CACHE)
    window = timedelta(minutes=10)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding from the climb until the memory is freed."""
        used = newest(window, window.column(USED))
        total = np.nanmax(np.nan_to_num(window.column(TOTAL)), axis=1, initial=0.0)
        total = np.where(total > 0, total, np.nan)
        warm = _follow(memory, used, total, float(window.times[-1]))
        rise = (used - memory["floor"]) / total
        climbs = warm & _climbs(window) & _not_by_load(window)
        slow = float(window.times[-1]) - memory["floor_at"] >= SLOW.total_seconds()
        reserves = ~np.isnan(newest(window, window.column(RESERVED)))
        creeps = warm & reserves & slow & (rise >= SLOW_RISE_RATIO) & (used >= memory["top"]) & _grows(window)
        still = memory["leaks"] & (rise >= RISEN_RATIO / 2)
        memory["leaks"] = np.where(np.isnan(used), memory["leaks"], (climbs & (rise >= RISEN_RATIO)) | creeps | still)
        leaks = memory["leaks"].astype(np.bool_)
        memory["since"] = np.where(leaks, np.fmin(memory["since"], memory["floor_at"]), np.nan)
        memory["top"] = np.fmax(memory["top"], used)
        named: dict[EntityRef, Finding] = {}
        for row in np.flatnonzero(leaks & ~np.isnan(used)):
            entity = window.entities[row]
            for replica in topology.above(entity, EntityKind.REPLICA) or (entity,):
                floor, value = float(memory["floor"][row]), float(used[row])
                item = evidence(
                    USED,
                    value,
                    "device_memory_climbs",
                    Interval(None, floor + RISEN_RATIO * float(total[row])),
                    gigabytes=value / 1e9,
                    before=floor / 1e9,
                    card=entity.name,
                )
                since = float(memory["since"][row])
                named.setdefault(
                    replica,
                    finding(
                        self.name, replica, "gpu-memory-leak", score=0.85, since=since, now=now, evidence_items=(item,)
                    ),
                )
        quiet = no_verdicts(self.name, window.entities, window.column_status(USED), np.isnan(used))
        return (*named.values(), *quiet)


def _follow(memory: Arrays, used: Floats, total: Floats, now: float) -> Flags:
    """Adds the newest level; True for warm processes."""
    with np.errstate(invalid="ignore"):
        fresh = np.abs(used - memory["before"]) > NEW_PROCESS_RATIO * total
    memory["fresh_at"] = np.where(fresh, now, memory["fresh_at"])
    memory["before"] = np.where(np.isnan(used), memory["before"], used)
    warm: Flags = now - memory["fresh_at"] >= WARM_UP.total_seconds()
    with np.errstate(invalid="ignore"):
        lower = ~(used > memory["floor"]) & ~np.isnan(used)
    for name, value in (("floor", used), ("floor_at", np.full(used.size, now))):
        memory[name] = np.where(warm, np.where(lower, value, memory[name]), np.nan)
    memory["top"] = np.where(warm, memory["top"], np.nan)
    return warm


def _climbs(window: Window) -> Flags:
    """True if nearly every scrape of the last minutes shows more than the previous one."""
    recent = windows.recent(window, CLIMBS)
    values = window.column(USED)[:, recent]
    long = window.times[recent][-1] - window.times[recent][0] >= 0.8 * CLIMBS.total_seconds()
    one = steps(values)
    mostly = (one.up >= CLIMBING_SHARE * one.known) & (one.down <= (1 - CLIMBING_SHARE) / 2 * one.known)
    result: Flags = long & (one.known > 1) & mostly
    return result


def _grows(window: Window) -> Flags:
    """True if the window ends higher than it starts."""
    values = window.column(USED)
    result: Flags = newest(window, values) > values[:, 0]
    return result


def _not_by_load(window: Window) -> Flags:
    """True if the memory was reserved beforehand, or cache usage or utilization did not grow."""
    reserves = ~np.isnan(newest(window, window.column(RESERVED)))
    cached = ~np.isnan(newest(window, window.column(CACHE)))
    grows = np.where(cached, _grew(window, CACHE) > CACHE_GROWS, _grew(window, BUSY) > LOAD_GROWS)
    result: Flags = reserves | ~grows
    return result


def _grew(window: Window, name: str) -> Floats:
    """Growth from the first to the second half of the last minutes, shape (entities,)."""
    values = np.nan_to_num(window.column(name)[:, windows.recent(window, CLIMBS)])
    half = max(1, values.shape[1] // 2)
    later, first = values[:, half:], values[:, :half]
    result: Floats = later.mean(axis=1) - first.mean(axis=1) if later.shape[1] else np.zeros(values.shape[0])
    return result
