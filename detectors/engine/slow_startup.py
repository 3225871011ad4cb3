"""Slow pod start-up, and the stage that delays it.

Kubernetes separates the stages of a start: scheduling, image pull, and model load until ready. The usual time is that
of pods of the same service (``pod_startup_seconds``), and the kubelet's own figures for pulls. A long pull points to
the registry. Long loads in several pods of one storage, with normal pull times, point to the storage. Any other long
load is the replica's own. A stage is judged while it lasts, as its figure comes when it ends. A restarted process
starts over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from detectors.base.condition_durations import measure_run, newest, newest_index, unseen, unusable_reason
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays, align, empty
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
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

PULL_FACTOR, LOAD_FACTOR = 3.0, 1.5  # times the usual; pull times vary with the registry, loads of one model hardly do
LEAST_PULL_SECONDS, LEAST_LOAD_SECONDS = 60.0, 120.0
PULL_UNKNOWN_SECONDS = 300.0  # a large image from a distant registry takes minutes
SLOWED_PULL = 2.0  # times the usual; then the load is slow because of the host
PENDING_SECONDS = 120.0  # the scheduler retries at once when capacity is freed
SLOW_PODS = 2  # of one storage
LATE_HOLD_SECONDS = 900.0  # loads this far apart may still have one cause
_PULLED = re.compile(r"\bin (?:(?P<minutes>\d+)m)?(?P<seconds>\d+(?:\.\d+)?)(?P<unit>ms|s)\b")

_DEFAULTS = {"took": np.nan, "pull": np.nan, "scheduled": np.nan, "started": np.nan, "ready": np.nan, "late_at": np.nan}


@dataclass(frozen=True, slots=True)
class _Starts:
    """All pods of one window; arrays (entities,), times in unix seconds, lengths in seconds."""

    pods: tuple[EntityRef, ...]
    memory: Arrays
    waiting: np.ndarray
    usual_pull: float
    usual: Floats
    usual_load: Floats
    now: float

    @property
    def pulling(self) -> Floats:
        """Time since each pod was placed without a process; NaN for others."""
        begun = self.memory["scheduled"]
        placed = self.waiting & ~(self.memory["started"] >= begun)
        return np.where(placed, self.now - begun, np.nan)

    @property
    def loading(self) -> Floats:
        """Time that each pod's process has run without being ready; NaN for others."""
        begun = self.memory["started"]
        runs = self.waiting & ~(self.memory["scheduled"] > begun) & ~(self.memory["ready"] >= begun)
        return np.where(runs, self.now - begun, np.nan)


class SlowStartupDetector:
    """image-pull-slow of a node, slow-start of a replica, storage-slow of a storage, pods-pending of a pool."""

    name = "startups"
    kind = EntityKind.POD
    keys: tuple[SignalKey, ...] = tuple(map(SignalKey, ("pod_ready", "pod_startup_seconds", "pod_unschedulable")))
    window = timedelta(minutes=10)
    state_version = 1

    def initial(self) -> DetectorState:
        """Empty state."""
        return empty(self.state_version, _DEFAULTS)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judges every pod that is not ready."""
        reason = unusable_reason(window, now.timestamp())
        if reason is None and not window.entities:
            reason = NoVerdictReason.NO_VALUES
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = align(state, window.entities, _DEFAULTS)
        starts = _look(window, memory, topology, now)
        result = (*self._pulls(starts, topology, now), *self._loads(starts, topology, now))
        pending = self._pending(window, topology, now)
        verdicts = (*result, *pending)
        quiet = unseen(self.name, window, verdicts)
        return DetectorState(self.state_version, window.entities, memory), (*verdicts, *quiet)

    def _pulls(self, starts: _Starts, topology: Topology, now: datetime) -> list[Finding]:
        usual = starts.usual_pull
        # Without any known pull time, a pull as long as a peer's whole start is not usual.
        unknown = np.where(np.isnan(starts.usual), PULL_UNKNOWN_SECONDS, starts.usual)
        limit = unknown if np.isnan(usual) else np.full(unknown.shape, max(LEAST_PULL_SECONDS, PULL_FACTOR * usual))
        nodes: dict[EntityRef, list[int]] = defaultdict(list)
        for row in np.flatnonzero(starts.pulling > limit):
            for node in topology.below(starts.pods[row], EntityKind.NODE):
                nodes[node].append(int(row))
        findings = []
        for node, rows in nodes.items():
            longest = max(rows, key=lambda row: starts.pulling[row])
            seconds, since = float(starts.pulling[longest]), float(starts.memory["scheduled"][rows].min())
            most = float(limit[longest])
            arguments = {"pod": starts.pods[longest].name, "seconds": round(seconds), "limit": round(most)}
            item = evidence("pod_startup_seconds", seconds, "pull_lasts", Interval(None, most), **arguments)
            findings.append(
                finding(self.name, node, "image-pull-slow", score=0.8, since=since, now=now, evidence_items=(item,))
            )
        return findings

    def _loads(self, starts: _Starts, topology: Topology, now: datetime) -> list[Finding]:
        """Long loads: those of one storage together, each of the rest by itself."""
        limit = np.maximum(LEAST_LOAD_SECONDS, LOAD_FACTOR * starts.usual_load)
        late = [int(row) for row in np.flatnonzero(starts.loading > limit)]
        findings, reported = [], set()
        for storage, rows in self._by_storage(starts, late, topology).items():
            names = ", ".join(sorted(starts.pods[row].name for row in rows))
            item = evidence("pod_startup_seconds", None, "loads_last", pods=names)
            since = float(starts.memory["started"][rows].min())
            findings.append(
                finding(self.name, storage, "storage-slow", score=0.85, since=since, now=now, evidence_items=(item,))
            )
            reported.update(rows)
        for row in late:
            if row in reported:
                continue
            seconds, most = float(starts.loading[row]), float(limit[row])
            usual = round(float(starts.usual_load[row]))
            item = evidence(
                "pod_startup_seconds", seconds, "load_lasts", Interval(None, most), seconds=round(seconds), usual=usual
            )
            since = float(starts.memory["started"][row])
            replica = (*topology.above(starts.pods[row], EntityKind.REPLICA), _replica(starts.pods[row]))[0]
            findings.append(
                finding(self.name, replica, "slow-start", score=0.8, since=since, now=now, evidence_items=(item,))
            )
        return findings

    def _by_storage(self, starts: _Starts, late: Sequence[int], topology: Topology) -> dict[EntityRef, list[int]]:
        """Storages with several long loads recently, at normal pull times."""
        memory = starts.memory
        memory["late_at"][late] = starts.now
        recent = starts.now - memory["late_at"] <= LATE_HOLD_SECONDS
        storages: dict[EntityRef, list[int]] = defaultdict(list)
        if late:
            for row in np.flatnonzero(recent & ~(memory["pull"] > SLOWED_PULL * starts.usual_pull)):
                for storage in topology.below(starts.pods[row], EntityKind.STORAGE):
                    storages[storage].append(int(row))
        return {storage: rows for storage, rows in storages.items() if len(rows) >= SLOW_PODS}

    def _pending(self, window: Window, topology: Topology, now: datetime) -> list[Finding]:
        """Pods that fit on no node, by the pool of their peers."""
        waits = window.column("pod_unschedulable")
        run = measure_run(~np.isnan(waits), waits == 1, window.times)
        pools: dict[EntityRef, list[int]] = defaultdict(list)
        held = (newest(window, waits) == 1) & (run.seconds >= PENDING_SECONDS)
        peers = _Peers(window.entities, topology)
        for row in np.flatnonzero(held):
            for pool in _pools(peers.of(int(row)), window.entities, topology):
                pools[pool].append(int(row))
        findings = []
        for pool, rows in pools.items():
            names = ", ".join(sorted(window.entities[row].name for row in rows))
            item = evidence("pod_unschedulable", 1.0, "no_place", Interval(0.0, 0.0), pods=names)
            since = float(window.times[run.start[rows]].min())
            findings.append(
                finding(self.name, pool, "pods-pending", score=0.9, since=since, now=now, evidence_items=(item,))
            )
        return findings


def _look(window: Window, memory: Arrays, topology: Topology, now: datetime) -> _Starts:
    ready, took = window.column("pod_ready"), window.column("pod_startup_seconds")
    _take_events(window.events, window.entities, memory, now)
    at = newest_index(ready == 1)
    seen = np.where(at >= 0, window.times[np.maximum(at, 0)], np.nan)
    memory["ready"] = np.fmax(memory["ready"], seen)
    value = newest(window, ready)
    memory["took"] = np.where((value == 1) & (newest(window, took) > 0), newest(window, took), memory["took"])
    waiting = value == 0
    usual_pull = _middle(memory["pull"][~waiting])
    usual = _usual(window.entities, memory["took"], waiting, topology)
    load = usual if np.isnan(usual_pull) else np.maximum(usual - usual_pull, LEAST_LOAD_SECONDS)
    return _Starts(window.entities, memory, waiting, usual_pull, usual, load, now.timestamp())


def _middle(values: Floats) -> float:
    """The median of the known values; NaN if none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else np.nan


def _take_events(events: Sequence[Event], pods: Sequence[EntityRef], memory: Arrays, now: datetime) -> None:
    """Stores when each pod was placed and its process started, and its pull time."""
    place = {pod: row for row, pod in enumerate(pods)}
    for event in sorted(events, key=lambda event: event.at):
        row = place.get(event.entity)
        if row is None or event.kind is not EventKind.KUBERNETES or event.at > now:
            continue
        if event.code in ("Scheduled", "Started"):
            memory[event.code.lower()][row] = event.at.timestamp()
        elif event.code == "Pulled":
            seconds = _pull_seconds(event.attributes.get("text", ""))
            memory["pull"][row] = memory["pull"][row] if seconds is None else seconds


def _pull_seconds(text: str) -> float | None:
    """The kubelet's pull time; None for an image that was already present."""
    result = _PULLED.search(text)
    if result is None:
        return None
    seconds = float(result["seconds"]) / (1000.0 if result["unit"] == "ms" else 1.0)
    return seconds + 60.0 * float(result["minutes"] or 0)


def _usual(pods: Sequence[EntityRef], took: Floats, waiting: np.ndarray, topology: Topology) -> Floats:
    """Expected start time of each waiting pod: the median of its service's pods, itself included; else NaN."""
    usual, peers, middles = np.full(len(pods), np.nan), _Peers(pods, topology), dict[int, float]()
    for row in np.flatnonzero(waiting):
        mine = peers.of(int(row))
        if id(mine) not in middles:
            middles[id(mine)] = _middle(took[mine])
        usual[row] = middles[id(mine)]
    return usual


class _Peers:
    """Rows of the pods of the same services; by name if the topology knows none. Each group is computed once."""

    def __init__(self, pods: Sequence[EntityRef], topology: Topology) -> None:
        self._pods, self._topology = pods, topology
        self._groups: dict[tuple[EntityRef, ...], list[int]] = {}

    @cached_property
    def _place(self) -> dict[EntityRef, int]:
        return {pod: row for row, pod in enumerate(self._pods)}

    @cached_property
    def _named_alike(self) -> dict[tuple[str | None, str], list[int]]:
        result: dict[tuple[str | None, str], list[int]] = defaultdict(list)
        for row, pod in enumerate(self._pods):
            result[pod.namespace, _stem(pod.name)].append(row)
        return result

    def of(self, row: int) -> list[int]:
        """The peers of the pod in a row, itself included."""
        pod = self._pods[row]
        services = self._topology.above(pod, EntityKind.SERVICE)
        if not services:
            return self._named_alike[pod.namespace, _stem(pod.name)]
        if services not in self._groups:
            beside = {item for service in services for item in self._topology.below(service, EntityKind.POD)}
            self._groups[services] = [self._place[item] for item in beside if item in self._place]
        return self._groups[services]


def _stem(name: str) -> str:
    """Common part of the pod names of one workload: the name without its number or its two hashes."""
    head, _, last = name.rpartition("-")
    return head if last.isdigit() else head.rpartition("-")[0] or head


def _pools(peers: Sequence[int], pods: Sequence[EntityRef], topology: Topology) -> list[EntityRef]:
    """The pools whose nodes run the peers of an unscheduled pod."""
    nodes = {node for peer in peers for node in topology.below(pods[peer], EntityKind.NODE)}
    named = {(node.cluster, topology.label(node, "pool")) for node in nodes}
    return [EntityRef(cluster, EntityKind.POOL, None, name) for cluster, name in sorted(named) if name]


def _replica(pod: EntityRef) -> EntityRef:
    return EntityRef(pod.cluster, EntityKind.REPLICA, pod.namespace, pod.name)
