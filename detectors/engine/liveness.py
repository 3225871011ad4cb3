"""Engine liveness: separates dead, hung, core-dead and asleep from idle, starting and saturated.

A responding page proves little. With a stopped engine core, /metrics and /health still return 200 with frozen gauges.
One that stopped while idle shows running 0 and waiting 0. A hang is therefore read from progress: counters that do not
move while work is queued. An engine that generates tokens is never hung, however long its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base import progress
from detectors.base.condition_durations import (
    ConditionDuration,
    Counts,
    Flags,
    at_index,
    gaps,
    measure_run,
    newest,
    newest_index,
    no_verdicts,
)
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider.model import (
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Priority,
    SignalKey,
    Window,
)
from outrider.topology import Topology

DEAD_SCRAPES = 2  # one refused connection may be a network blip, two in a row are not
SILENT_SCRAPES = 3  # scrapes without progress, health or a response in time
ITERATIONS_STILL = 5.0  # a step may take this many times its usual length (long prefill, preemption)
# Without a known step length (no iteration counter, or nothing served yet), a first request may compile
# kernels or have a very long prompt. A minute is more than serving engines need for either.
UNKNOWN_STEP_SECONDS = 60.0
FILES_ABOVE_USUAL = 5.0  # open connections vary by a few in normal operation
FILES_GROWTH = 3.0
FILES_SCRAPES_ALONE = 6  # without a serving peer, open files alone need a longer and steeper rise
FILES_GROWTH_ALONE = 10.0
REFUSED, TIMEOUT, OTHER = 1, 2, 7
PAGE_ERRORS = (5, 6)  # the HTTP server responds with an error or with something other than a metrics page
# A planned restart is a start, not a death. A pod needs 2-8 min with image pull, so the events
# of the window (10 min) excuse it. A container whose image came later than that gets the same time from its start.
PLANNED = frozenset({"restart_pod", "restart", "rollout"})
STARTED = "Started"  # the kubelet's reason for a container that starts
STOPPING = "Stopping container"  # kubelet message for a deletion, a rollout or a drain
EVICTED = "Evicted"  # its node ran out of a resource, which is not planned
BLIND_REPLICAS, BLIND_NODES = 5, 2  # faults.yaml, monitor-blind

_DEFAULTS = {
    "up_seen": False,
    "healthy_seen": False,
    "hinted": False,
    "step_seconds": np.nan,
    "usual_files": np.nan,
    "down_since": np.nan,
    "down_planned": False,
    "container_started": np.nan,  # unix seconds of its first start while down
}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Values of one window shared by all checks. Arrays of shape (entities,) unless noted."""

    window: Window
    masks: progress.Progress
    memory: Arrays
    known: Flags
    up: Flags
    code: Floats
    inflight: Floats
    health: Floats
    down_run: ConditionDuration  # the newest scrapes in which it was down

    @property
    def down(self) -> Flags:
        """The newest scrape reports it down."""
        result: Flags = self.known & ~self.up
        return result


class LivenessDetector(StatefulDetector):
    """One verdict per replica and cycle: the most severe one that applies."""

    name = "liveness"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = progress.REPLICA_KEYS
    window = timedelta(minutes=10)
    state_version = 2
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges every replica of the window."""
        snapshot = _snapshot(window, memory)
        _learn(snapshot)
        planned = _planned(snapshot, now)
        dead, mute = self._dead(snapshot, planned, topology, now)
        result = dict(dead)
        for judge in (self._asleep, self._core_dead, self._hung):
            for row, verdict in judge(snapshot, topology, now).items():
                result.setdefault(row, verdict)
        starting = snapshot.down & (planned | ~snapshot.memory["up_seen"])
        verdicts: list[Finding | NoVerdict] = [result[row] for row in sorted(result)]
        for rows, reason in (
            (starting, NoVerdictReason.WARMING_UP),
            (mute & ~starting, NoVerdictReason.UNTRUSTED_VALUES),
        ):
            verdicts.extend(NoVerdict(self.name, window.entities[row], reason) for row in np.flatnonzero(rows))
        verdicts.extend(no_verdicts(self.name, window.entities, window.column_status("engine_up"), ~snapshot.known))
        return verdicts

    def _dead(
        self, snapshot: _Snapshot, planned: Flags, topology: Topology, now: datetime
    ) -> tuple[dict[int, Finding], Flags]:
        """Replicas whose page stopped responding, and those that are down without a reason."""
        down, run, memory = snapshot.down, snapshot.down_run, snapshot.memory
        unclear = down & (snapshot.code != REFUSED) & ~np.isin(snapshot.code, PAGE_ERRORS)
        blind = unclear if _is_blind(snapshot.window.entities, unclear, topology) else np.zeros_like(unclear)
        timed_out = snapshot.code == TIMEOUT
        gone = ~timed_out & ~np.isin(snapshot.code, PAGE_ERRORS) & ~np.isin(snapshot.code, (3, 4))
        judged = down & memory["up_seen"] & ~blind & ~planned
        dead = judged & gone & (run.scrapes >= DEAD_SCRAPES)
        silent = judged & timed_out & (snapshot.health != 1) & (run.scrapes >= SILENT_SCRAPES)
        result: dict[int, Finding] = {}
        for row in np.flatnonzero(dead | silent):
            text, fault = ("page_timeout", "engine-hung") if silent[row] else ("page_gone", "engine-dead")
            if dead[row] and snapshot.code[row] == REFUSED:
                text = "page_refused"
            evidence_items = (evidence("engine_up", 0.0, text, Interval(1.0, 1.0), scrapes=int(run.scrapes[row])),)
            result[int(row)] = self._finding(
                snapshot,
                row,
                fault,
                since=memory["down_since"][row],
                now=now,
                evidence_items=evidence_items,
                score=0.95,
            )
        mute = down & (blind | (snapshot.code == 3) | (snapshot.code == 4))
        return result, mute

    def _asleep(self, snapshot: _Snapshot, _topology: Topology, now: datetime) -> dict[int, Finding]:
        """Engines in sleep mode: /health returns 200 and every request hangs."""
        masks, times = snapshot.masks, snapshot.window.times
        run = measure_run(masks.seen & masks.up, masks.asleep, times)
        result: dict[int, Finding] = {}
        for row in np.flatnonzero(snapshot.up & (run.scrapes > 0)):
            held = snapshot.inflight[row]
            evidence_items = [evidence("engine_sleep_state", 0.0, "asleep", Interval(1.0, 1.0))]
            if held > 0:
                evidence_items.append(
                    evidence("engine_inflight_requests", held, "inflight_waits", inflight=float(held))
                )
            result[int(row)] = self._finding(
                snapshot,
                row,
                "engine-asleep",
                since=times[run.start[row]],
                now=now,
                evidence_items=tuple(evidence_items),
                score=0.95,
                severity=Priority.P1 if held > 0 else Priority.P3,
            )
        return result

    def _core_dead(self, snapshot: _Snapshot, _topology: Topology, now: datetime) -> dict[int, Finding]:
        """The HTTP process responds but the engine core is gone."""
        masks, window = snapshot.masks, snapshot.window
        ill = masks.seen & (window.column("engine_health_ok") == 0)
        code = window.column("target_failure_code")
        broken = ill & (masks.up | np.isin(code, PAGE_ERRORS)) & ~masks.moved & ~masks.asleep
        run = measure_run(masks.seen, broken, window.times)
        unhealthy = snapshot.known & snapshot.memory["healthy_seen"] & (run.scrapes >= SILENT_SCRAPES)
        still = measure_run(masks.judged, masks.still, window.times)
        failing = snapshot.up & (still.scrapes >= SILENT_SCRAPES) & _fails_at_once(window, still)
        result: dict[int, Finding] = {}
        for row in np.flatnonzero(unhealthy | failing):
            if unhealthy[row]:
                item = evidence("engine_health_ok", 0.0, "health_failed", Interval(1.0, 1.0), scrapes=run.scrapes[row])
                since = window.times[run.start[row]]
            else:
                item = evidence("engine_http_failed_total", None, "fails_at_once", scrapes=still.scrapes[row])
                since = window.times[still.start[row]]
            score = 0.9 if unhealthy[row] else 0.8
            result[int(row)] = self._finding(
                snapshot, row, "engine-core-dead", since=since, now=now, evidence_items=(item,), score=score
            )
        return result

    def _hung(self, snapshot: _Snapshot, topology: Topology, now: datetime) -> dict[int, Finding]:
        """No progress while work is known to wait."""
        masks, window = snapshot.masks, snapshot.window
        works = masks.busy | (np.nan_to_num(masks.inflight) > 0)
        run = measure_run(masks.judged, masks.still & works, window.times)
        step = snapshot.memory["step_seconds"]
        needed = np.where(np.isnan(step), UNKNOWN_STEP_SECONDS, ITERATIONS_STILL * step)
        sure = snapshot.up & (run.scrapes >= SILENT_SCRAPES) & (run.seconds >= needed)
        still = measure_run(masks.judged, masks.still, window.times)
        hinted = self._files_pile_up(snapshot, topology, still) & ~sure & (still.seconds >= needed)
        snapshot.memory["hinted"] = hinted
        result: dict[int, Finding] = {}
        for row in np.flatnonzero(sure | hinted):
            spent = run if sure[row] else still
            result[int(row)] = self._finding(
                snapshot,
                row,
                "engine-hung",
                since=window.times[spent.start[row]],
                now=now,
                evidence_items=_hang_evidence(snapshot, int(row), float(spent.seconds[row])),
                score=0.95 if sure[row] else 0.7,
            )
        return result

    def _files_pile_up(self, snapshot: _Snapshot, topology: Topology, still: ConditionDuration) -> Flags:
        """Fallback for engines without an in-flight metric: connections that never close."""
        files = snapshot.window.column("engine_open_files")
        usual = snapshot.memory["usual_files"]
        now_open = newest(snapshot.window, files)
        above = snapshot.up & np.isnan(snapshot.inflight) & (now_open >= usual + FILES_ABOVE_USUAL)
        above &= still.scrapes >= SILENT_SCRAPES
        if not above.any():
            return above
        # Only growth during the stall counts; a pool of idle connections opens once and stays.
        served = _peers_moved(snapshot, topology, still, np.flatnonzero(above))
        with_peer = served & (now_open - _scrapes_ago(files, SILENT_SCRAPES - 1) >= FILES_GROWTH)
        alone = (still.scrapes >= FILES_SCRAPES_ALONE) & (
            now_open - _scrapes_ago(files, FILES_SCRAPES_ALONE - 1) >= FILES_GROWTH_ALONE
        )
        held: Flags = above & (with_peer | alone | snapshot.memory["hinted"])
        return held

    def _finding(
        self,
        snapshot: _Snapshot,
        row: int | np.intp,
        fault: str,
        *,
        since: float,
        now: datetime,
        evidence_items: tuple[Evidence, ...],
        score: float,
        severity: Priority | None = None,
    ) -> Finding:
        return finding(
            self.name,
            snapshot.window.entities[row],
            fault,
            score=score,
            since=since,
            now=now,
            evidence_items=evidence_items,
            severity=severity,
        )


def _snapshot(window: Window, memory: Arrays) -> _Snapshot:
    masks = progress.read(window)
    answers = newest(window, window.column("engine_up"))
    known = ~np.isnan(answers)
    at = newest_index(masks.seen)
    return _Snapshot(
        window=window,
        masks=masks,
        memory=memory,
        known=known,
        up=known & (answers >= 0.5),
        code=at_index(window.column("target_failure_code"), at),
        inflight=at_index(masks.inflight, at),
        health=at_index(window.column("engine_health_ok"), at),
        down_run=measure_run(masks.seen, ~masks.up, window.times),
    )


def _learn(snapshot: _Snapshot) -> None:
    """Learns the replicas' normal state from the window."""
    masks, window, memory = snapshot.masks, snapshot.window, snapshot.memory
    memory["up_seen"] = memory["up_seen"] | masks.up.any(axis=1)
    began = np.where(snapshot.down_run.scrapes > 0, window.times[snapshot.down_run.start], np.nan)
    memory["down_since"] = np.where(snapshot.down, np.fmin(memory["down_since"], began), np.nan)
    restart = newest_index(masks.restarted)
    healthy = newest_index(window.column("engine_health_ok") == 1)
    memory["healthy_seen"] = (healthy > restart) | (memory["healthy_seen"] & (restart < 0))
    iterations = window.column("engine_iterations_total")
    turned = masks.moved & (np.nan_to_num(iterations) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = gaps(masks.seen, window.times) / iterations
    memory["step_seconds"] = progress.row_median(lengths, turned, memory["step_seconds"])
    # An engine that never served in the window is idle; its open files are the normal level.
    files = window.column("engine_open_files")
    fallback = progress.row_median(files, masks.up & (np.cumsum(masks.up, axis=1) <= 1), memory["usual_files"])
    fallback = np.where(np.isnan(memory["usual_files"]), fallback, memory["usual_files"])
    memory["usual_files"] = progress.row_median(files, masks.moved, fallback)


def _planned(snapshot: _Snapshot, now: datetime) -> Flags:
    """Replicas with a planned restart within the window, or whose container started within it after a planned stop.

    Only the first start counts: a container that starts again and again does not come up. Changes the memory.
    """
    window, memory = snapshot.window, snapshot.memory
    recent = [event for event in window.events if now - LivenessDetector.window < event.at <= now]
    stopped = {event.entity for event in recent if _is_planned_stop(event)}
    stopped -= {event.entity for event in recent if event.code == EVICTED}
    planned = np.array([entity in stopped for entity in window.entities], dtype=np.bool_)
    started = _first_starts(recent, window.entities, memory["down_since"])
    memory["down_planned"] = snapshot.down & (memory["down_planned"] | planned)
    memory["container_started"] = np.where(snapshot.down, np.fmin(memory["container_started"], started), np.nan)
    loading = now.timestamp() - memory["container_started"] < LivenessDetector.window.total_seconds()
    result: Flags = planned | (memory["down_planned"] & loading)
    return result


def _first_starts(events: Sequence[Event], entities: Sequence[EntityRef], since: Floats) -> Floats:
    """Unix seconds of each replica's first container start from ``since`` on; NaN without any."""
    place = {entity: row for row, entity in enumerate(entities)}
    result = np.full(len(entities), np.nan)
    for event in events:
        row = place.get(event.entity)
        if row is not None and event.code == STARTED and event.at.timestamp() >= since[row]:
            result[row] = np.fmin(result[row], event.at.timestamp())
    return result


def _is_planned_stop(event: Event) -> bool:
    """True for a restart action, and for the kubelet's message of a requested container stop.

    A container that fails its liveness probe is killed as well, with another message.
    """
    if event.kind is EventKind.KUBERNETES:
        return event.code == "Killing" and event.attributes.get("text", "").startswith(STOPPING)
    return event.kind in (EventKind.ACTION, EventKind.CHANGE) and event.code in PLANNED


def _is_blind(entities: tuple[EntityRef, ...], unclear: Flags, topology: Topology) -> bool:
    """True if so many pages vanish at once, on so many nodes, that the fault is in the monitoring."""
    rows = np.flatnonzero(unclear)
    if rows.size < BLIND_REPLICAS:
        return False
    nodes = {topology.below(entities[row], EntityKind.NODE) or (entities[row],) for row in rows}
    return len(nodes) >= BLIND_NODES


def _fails_at_once(window: Window, still: ConditionDuration) -> Flags:
    """True if most responses since the start of the stall were failures, and there were some."""
    inside = np.arange(window.times.size)[None, :] >= still.start[:, None]
    failed = np.nan_to_num(window.column("engine_http_failed_total"))
    failed = np.maximum(failed, np.nan_to_num(window.column("engine_requests_failed_total")))
    bad = (failed * inside).sum(axis=1)
    answered = (np.nan_to_num(window.column("engine_http_requests_total")) * inside).sum(axis=1)
    result: Flags = (bad >= SILENT_SCRAPES) & (2 * bad >= answered)
    return result


def _peers_moved(snapshot: _Snapshot, topology: Topology, still: ConditionDuration, rows: NDArray[np.intp]) -> Flags:
    """True for ``rows`` whose service has another replica that made progress meanwhile."""
    entities = snapshot.window.entities
    moved_last = newest_index(snapshot.masks.moved)
    place = {entity: row for row, entity in enumerate(entities)}
    served = np.zeros(len(entities), dtype=np.bool_)
    for row in rows:
        services = topology.above(entities[row], EntityKind.SERVICE)
        peers = {peer for service in services for peer in topology.below(service, EntityKind.REPLICA)}
        peers.discard(entities[row])
        served[row] = any(moved_last[place[peer]] >= still.start[row] for peer in peers if peer in place)
    return served


def _scrapes_ago(values: Floats, count: int) -> Floats:
    """Each row's value ``count`` seen cells before its newest; NaN if there are fewer."""
    seen = ~np.isnan(values)
    from_end = np.cumsum(seen[:, ::-1], axis=1)[:, ::-1]
    at: Counts = newest_index(seen & (from_end == count + 1))
    return at_index(values, at)


def _hang_evidence(snapshot: _Snapshot, row: int, seconds: float) -> tuple[Evidence, ...]:
    window = snapshot.window
    result = [evidence("engine_iterations_total", 0.0, "no_progress", seconds=round(seconds))]
    running = newest(window, window.column("engine_requests_running"))[row]
    waiting = newest(window, window.column("engine_requests_waiting"))[row]
    if running + waiting > 0:
        result.append(evidence("engine_requests_running", running, "holds_requests", running=running, waiting=waiting))
    if snapshot.inflight[row] > 0:
        result.append(
            evidence(
                "engine_inflight_requests", snapshot.inflight[row], "inflight_waits", inflight=snapshot.inflight[row]
            )
        )
    if snapshot.memory["hinted"][row]:
        files = newest(window, window.column("engine_open_files"))[row]
        usual = float(snapshot.memory["usual_files"][row])
        result.append(
            evidence("engine_open_files", files, "files_pile_up", Interval(None, usual), files=files, usual=usual)
        )
    if snapshot.health[row] == 1:
        result.append(evidence("engine_health_ok", 1.0, "health_misleads"))
    return tuple(result)
