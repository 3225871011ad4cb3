"""Pods that do not stay up, by Kubernetes' own reason: out of memory, or a crash loop.

Both show as restarts. The kernel's line, the last termination reason and the kubelet's events separate them.
``pod_last_terminated_oom`` stays set for ever, so it only counts with a restart in the window. A container in
CrashLoopBackOff is not yet a loop, since an engine may die once and not return. A loop must be seen to start and end
again. A recreated pod counts as a first start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import newest, no_verdicts, unusable_reason
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import empty
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

EVENT_HOLD = timedelta(minutes=10)
CRASH_LOOP = 3.0  # pod_waiting_reason: CrashLoopBackOff
ENDS = 2  # a process that ends once may restart and be healthy
RESTARTS_WITHOUT_EVENTS = 3.0  # restarts in the window that are a loop without kubelet events
SCORE_WITHOUT_EVENTS = 0.6  # lower score: an engine that died once and cannot start restarts as often
KILLED = frozenset({"oom-kill", "OOMKilling", "OOMKilled"})
STARTED, BACK_OFF = "Started", "BackOff"
_MADE_ANEW = frozenset({"Scheduled", "Killing", "Evicted"})


@dataclass(slots=True)
class _PodHistory:
    """Events of one pod in the window. Times are unix seconds; ``starts`` of its newest incarnation.

    ``ends`` counts processes that started and ended by themselves, in every incarnation.
    """

    killed: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: int = 0
    first_start: float = np.nan
    runs: bool = False

    def take(self, event: Event) -> None:
        """Adds the next event in time order."""
        at = event.at.timestamp()
        if event.code in KILLED:
            self.killed.append(at)
        elif event.kind is not EventKind.KUBERNETES:
            return
        elif event.code in (STARTED, BACK_OFF):
            self.ends += self.runs
            self.runs = event.code == STARTED
            if self.runs:
                self.starts.append(at)
                self.first_start = min(at, self.first_start) if self.first_start == self.first_start else at
        elif event.code in _MADE_ANEW:
            self.starts, self.runs = [], False


class PodFaultDetector:
    """pod-oom and crash-loop of each pod; a pod that is OOM-killed again and again is only the first."""

    name = "pod-faults"
    kind = EntityKind.POD
    keys: tuple[SignalKey, ...] = tuple(
        map(SignalKey, ("pod_restarts", "pod_waiting_reason", "pod_last_terminated_oom", "pod_ready"))
    )
    window = EVENT_HOLD
    state_version = 1

    def initial(self) -> DetectorState:
        """Empty state: the window holds everything."""
        return empty(self.state_version, {})

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judges every pod on the window's events and restarts."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        lives = _lives(window.events, now)
        restarts_known = window.column("pod_restarts")
        restarts = np.where(np.isfinite(restarts_known), np.maximum(restarts_known, 0.0), 0.0)
        result = self._killed(window, lives, restarts, now)
        for entity, verdict in self._loops(window, lives, restarts, now).items():
            result.setdefault(entity, verdict)
        verdicts: list[Finding | NoVerdict] = [result[entity] for entity in sorted(result, key=lambda item: item.key)]
        unseen = np.isnan(newest(window, window.column("pod_ready")))
        verdicts.extend(no_verdicts(self.name, window.entities, window.column_status("pod_ready"), unseen))
        return state, tuple(verdicts)

    def _killed(
        self, window: Window, lives: dict[EntityRef, _PodHistory], restarts: Floats, now: datetime
    ) -> dict[EntityRef, Finding]:
        """Pods with an OOM-killed process in the window, by the kernel or the kubelet."""
        ended = newest(window, window.column("pod_last_terminated_oom")) == 1
        since = _first(restarts, window.times)
        result: dict[EntityRef, Finding] = {}
        for row in np.flatnonzero(ended & ~np.isnan(since)):
            item = evidence(
                "pod_last_terminated_oom", 1.0, "oom_killed", Interval(0.0, 0.0), times=_times(restarts, row)
            )
            pod = window.entities[row]
            result[pod] = finding(
                self.name, pod, "pod-oom", score=0.9, since=float(since[row]), now=now, evidence_items=(item,)
            )
        for pod, life in lives.items():
            if life.killed:
                item = evidence(
                    "container_oom_events", len(life.killed), "oom_line", Interval(0.0, 0.0), times=len(life.killed)
                )
                result[pod] = finding(
                    self.name, pod, "pod-oom", score=0.95, since=life.killed[0], now=now, evidence_items=(item,)
                )
        return result

    def _loops(
        self, window: Window, lives: dict[EntityRef, _PodHistory], restarts: Floats, now: datetime
    ) -> dict[EntityRef, Finding]:
        """Pods with a process that starts and ends repeatedly."""
        waits = newest(window, window.column("pod_waiting_reason")) == CRASH_LOOP
        waiting = {window.entities[row] for row in np.flatnonzero(waits)}
        since, counted = _first(restarts, window.times), restarts.sum(axis=1)
        result: dict[EntityRef, Finding] = {}
        for pod, life in lives.items():
            ends = life.ends + (life.runs and pod in waiting)
            if ends >= ENDS and len(life.starts) >= ENDS:
                result[pod] = self._loop(pod, float(ends), life.first_start, now)
        if not any(event.kind is EventKind.KUBERNETES for event in window.events):
            for row in np.flatnonzero(waits & (counted >= RESTARTS_WITHOUT_EVENTS)):
                pod = window.entities[row]
                result[pod] = self._loop(pod, float(counted[row]), float(since[row]), now, score=SCORE_WITHOUT_EVENTS)
        return result

    def _loop(self, pod: EntityRef, ends: float, since: float, now: datetime, score: float = 0.9) -> Finding:
        item = evidence("pod_restarts", ends, "crash_loop", Interval(None, 1.0), times=round(ends))
        return finding(self.name, pod, "crash-loop", score=score, since=since, now=now, evidence_items=(item,))


def _lives(events: Sequence[Event], now: datetime) -> dict[EntityRef, _PodHistory]:
    lives: dict[EntityRef, _PodHistory] = {}
    for event in sorted(events, key=lambda event: event.at):
        if now - EVENT_HOLD < event.at <= now:
            lives.setdefault(event.entity, _PodHistory()).take(event)
    return lives


def _first(counts: Floats, times: Floats) -> Floats:
    """Time at which each row was first above zero; NaN if never. ``counts`` is (entities, times)."""
    some = counts > 0
    if some.shape[1] == 0:
        return np.full(some.shape[0], np.nan)
    return np.where(some.any(axis=1), times[np.argmax(some, axis=1)], np.nan)


def _times(counts: Floats, row: int | np.intp | NDArray[np.intp]) -> int:
    return round(float(counts[row].sum()))
