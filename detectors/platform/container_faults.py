"""Container faults from cgroup metrics: throttling at the CPU limit, and unbounded memory growth.

Memory growth during warm-up or with the load is not a leak. A leak climbs from a steady level, scrape by scrape, while
the container does no more work than before.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Flags, measure_run, newest, no_verdicts, unusable_reason
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import align, empty
from detectors.statistics.theil_sen import steps
from outrider import windows
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

THROTTLED_RATIO = 0.2  # of the CFS periods; kubernetes-mixin warns at 25 % for 15 min
THROTTLED_SECONDS = 120.0  # start-ups and tokenization bursts are shorter
CLIMB = timedelta(minutes=5)
CLIMB_SCRAPES = 8
CLIMBING_SHARE = 0.9  # share of scrapes above the previous one
LEAST_STEP = 1e-4  # of the level; less is page-cache variation
GROWTH_RATIO, ABOVE_STEADY = 0.02, 1.05  # within the climb; of the steady level
STEADY_RATIO = 0.01  # spread of a steady level
MORE_WORK = 1.2  # CPU relative to the start of the climb; memory may grow with work

WARM_SECONDS = 1200.0  # a younger process still fills its caches and pools
FALL_RATIO = 0.7  # of the earlier level; a new process

_DEFAULTS = {"steady": np.nan, "leaks_since": np.nan, "level": np.nan, "born": np.nan}


class ContainerFaultDetector:
    """cpu-throttled and host-memory-leak, on the pod."""

    name = "container-faults"
    kind = EntityKind.CONTAINER
    keys: tuple[SignalKey, ...] = tuple(
        map(
            SignalKey,
            ("container_cpu_throttled_ratio", "container_cpu_usage_cores", "container_memory_working_set_bytes"),
        )
    )
    window = timedelta(minutes=10)
    state_version = 1

    def initial(self) -> DetectorState:
        """Empty state."""
        return empty(self.state_version, _DEFAULTS)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judges every container of the window."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = align(state, window.entities, _DEFAULTS)
        verdicts: list[Finding | NoVerdict] = [*self._throttled(window, topology, now)]
        used = window.column("container_memory_working_set_bytes")
        level, growth, climbing = _climb(window, used)
        if not state.entities:  # containers in the first window have mostly run for long
            memory["born"] = np.where(np.isnan(level), np.nan, 0.0)
        anew = np.isnan(memory["born"]) | (level < FALL_RATIO * memory["level"])
        memory["born"] = np.where(anew & ~np.isnan(level), now.timestamp(), memory["born"])
        memory["level"] = np.where(np.isnan(level), memory["level"], level)
        warm = now.timestamp() - memory["born"] >= WARM_SECONDS
        leaks = warm & climbing & (level > ABOVE_STEADY * memory["steady"]) & ~_works_more(window)
        begun = now.timestamp() - CLIMB.total_seconds()
        memory["leaks_since"] = np.where(leaks, np.fmin(memory["leaks_since"], begun), np.nan)
        for row in np.flatnonzero(leaks):
            before, now_used = float(memory["steady"][row]) / 2**30, float(level[row]) / 2**30
            rate = float(growth[row]) / 2**30 / (CLIMB.total_seconds() / 60.0)
            item = evidence(
                "container_memory_working_set_bytes",
                float(level[row]),
                "memory_climbs",
                Interval(None, ABOVE_STEADY * float(memory["steady"][row])),
                used=now_used,
                before=before,
                rate=rate,
            )
            pod, since = _pod_of(window.entities[row], topology), float(memory["leaks_since"][row])
            verdicts.append(
                finding(self.name, pod, "host-memory-leak", score=0.8, since=since, now=now, evidence_items=(item,))
            )
        memory["steady"] = np.where(_is_steady(window, used), level, memory["steady"])
        quiet = np.isnan(level) & np.isnan(newest(window, window.column("container_cpu_usage_cores")))
        status = window.column_status("container_memory_working_set_bytes")
        verdicts.extend(no_verdicts(self.name, window.entities, status, quiet))
        return DetectorState(self.state_version, window.entities, memory), tuple(verdicts)

    def _throttled(self, window: Window, topology: Topology, now: datetime) -> list[Finding]:
        share = window.column("container_cpu_throttled_ratio")
        run = measure_run(~np.isnan(share), share >= THROTTLED_RATIO, window.times)
        value = newest(window, share)
        findings = []
        for row in np.flatnonzero((run.seconds >= THROTTLED_SECONDS) & (value >= THROTTLED_RATIO)):
            limit, ratio = Interval(None, THROTTLED_RATIO), float(value[row])
            item = evidence("container_cpu_throttled_ratio", ratio, "cpu_held_back", limit, ratio=ratio)
            pod, since = _pod_of(window.entities[row], topology), float(window.times[run.start[row]])
            findings.append(
                finding(self.name, pod, "cpu-throttled", score=0.85, since=since, now=now, evidence_items=(item,))
            )
        return findings


def _climb(window: Window, used: Floats) -> tuple[Floats, Floats, Flags]:
    """The newest level, its growth within ``CLIMB``, and whether it rose throughout; each (entities,)."""
    recent = used[:, windows.recent(window, CLIMB)]
    level = newest(window, used)
    if recent.shape[1] < 2:
        return level, np.full(level.shape, np.nan), np.zeros(level.shape, dtype=np.bool_)
    taken = steps(recent, LEAST_STEP * np.nan_to_num(level)[:, None])
    growth = np.nan_to_num(np.diff(recent, axis=1)).sum(axis=1)
    climbing: Flags = (taken.known >= CLIMB_SCRAPES) & (taken.up >= CLIMBING_SHARE * taken.known)
    return level, growth, climbing & (growth >= GROWTH_RATIO * level)


def _is_steady(window: Window, used: Floats) -> Flags:
    """True if the level of the last ``CLIMB`` has hardly changed."""
    recent = used[:, windows.recent(window, CLIMB)]
    known = ~np.isnan(recent)
    high = np.where(known, recent, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(known, recent, np.inf).min(axis=1, initial=np.inf)
    steady: Flags = (known.sum(axis=1) > CLIMB_SCRAPES) & (high - low <= STEADY_RATIO * high)
    return steady


def _works_more(window: Window) -> Flags:
    """True if the container uses clearly more CPU than at the start of the climb."""
    cores = window.column("container_cpu_usage_cores")[:, windows.recent(window, CLIMB)]
    half = max(1, cores.shape[1] // 2)
    early, late = (windows.mean_by_row(part) for part in (cores[:, :half], cores[:, half:]))
    more: Flags = late > MORE_WORK * early
    return more


def _pod_of(container: EntityRef, topology: Topology) -> EntityRef:
    """The pod of a container: from the topology, else from its name, which starts with the pod's."""
    pods = topology.below(container, EntityKind.POD)
    if pods:
        return pods[0]
    return EntityRef(container.cluster, EntityKind.POD, container.namespace, container.name.partition("/")[0])
