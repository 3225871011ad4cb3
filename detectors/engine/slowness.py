"""Engines that became slower at the same work: one replica, or a whole service since a change.

Compares the step time with the expected one at its batch (``step_time``). This cancels load, long prompts and an
emptier fleet. A replica slower than its peers has a slow GPU in its group (gpu-slow-peer). If it was slow from its
first minute, its placement is bad (tp-topology-bad). Most replicas of a service, after a change, are a
kernel-regression. If every engine of a node is slow, the GPU is not the cause and nothing is reported here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from detectors.base.changes import CHANGE_HOLD, changed_at
from detectors.base.condition_durations import ConditionDuration, Flags, measure_run, newest
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.engine import step_time
from detectors.statistics import peer_groups
from outrider.model import (
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

SLOW = 0.15  # a step this much longer at the same batch is several times the scatter of a minute's mean
SURE = 4.0  # standard errors added to the expectation
APART = 0.15  # of the step; excess over the median of its peers
LASTING_SECONDS = 45.0  # in addition to the trailing minute that every value covers
GROUP_SHARE = 0.5  # share of a service's replicas
ERRORS = 0.02  # of the responses; new replicas that fail requests are a bad rollout
LAG_SECONDS = 150.0  # newer values are not learned: they may be the start of a fault
FROZEN_AT_MOST = 86400.0  # after this, the slow step is the new normal
DECODE = "engine_itl_seconds"

_DEFAULTS: dict[str, float | bool] = {
    **step_time.DEFAULTS,
    "learnt_until": -np.inf,
    "slow_since": np.nan,
    "process": np.nan,
    "first_seen": np.nan,
    "well_seen": False,
    "changed_at": -np.inf,
    "revised_at": -np.inf,
}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Values of one window. ``over`` is the relative excess of the step time, (entities, times)."""

    window: Window
    memory: Arrays
    group: np.ndarray
    pace: step_time.StepTiming
    expected: Floats
    over: Floats
    slow: Flags


class SlownessDetector(StatefulDetector):
    """gpu-slow-peer and tp-topology-bad of a replica, kernel-regression of a service."""

    name = "slowness"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (
        *step_time.KEYS,
        SignalKey("engine_start_time_seconds"),
        SignalKey("engine_requests_failed_total"),
        SignalKey("engine_requests_finished_total"),
    )
    window = timedelta(minutes=10)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Findings of services and replicas; NoVerdict while too little is learned."""
        snapshot = _snapshot(window, memory, topology)
        _processes(snapshot)
        for name, ends in (("changed_at", True), ("revised_at", False)):
            snapshot.memory[name] = changed_at(window, snapshot.memory[name], topology, now, until_rollback=ends)
        verdicts: list[Finding | NoVerdict] = []
        known = ~np.isnan(snapshot.over)
        run = measure_run(known, snapshot.slow, window.times)
        lasting = (run.seconds >= LASTING_SECONDS) & ~np.isnan(newest(window, snapshot.over))
        regressed = self._services(snapshot, run, lasting, topology, now, verdicts)
        self._replicas(snapshot, run, lasting & ~regressed, topology, now, verdicts)
        _learn(snapshot)
        if not known.any():
            verdicts.append(NoVerdict(self.name, None, NoVerdictReason.WARMING_UP))
        return verdicts

    def _services(
        self,
        snapshot: _Snapshot,
        run: ConditionDuration,
        lasting: Flags,
        topology: Topology,
        now: datetime,
        verdicts: list[Finding | NoVerdict],
    ) -> Flags:
        """Appends the regressed services. Returns True for the replicas that this explains."""
        explained = np.zeros(lasting.size, dtype=np.bool_)
        if not lasting.any():
            return explained
        judged = ~np.isnan(newest(snapshot.window, snapshot.over))
        members: dict[EntityRef, list[int]] = defaultdict(list)
        touched = {service for row in np.flatnonzero(lasting) for service in _services(snapshot, row, topology)}
        for row in np.flatnonzero(judged):
            for service in _services(snapshot, row, topology):
                if service in touched:
                    members[service].append(int(row))
        wrong = _fails(snapshot.window)
        for service, rows in members.items():
            slow = [row for row in rows if lasting[row]]
            since = float(snapshot.window.times[run.start[slow]].min())
            change = float(snapshot.memory["changed_at"][rows].max())
            new = [row for row in rows if snapshot.memory["process"][row] >= change]
            most = len(slow) >= GROUP_SHARE * len(rows) and (len(slow) > 1 or len(rows) == 1)
            only_new = len(slow) > 1 and set(slow) <= set(new) and len(slow) > GROUP_SHARE * len(new)
            began = 0.0 <= since + step_time.TRAILING_SECONDS - change <= CHANGE_HOLD.total_seconds()
            if not (began and (most or only_new)):
                continue
            explained[slow] = True
            if wrong[slow].any():
                continue
            evidence_items = _evidence(snapshot, slow, "steps_longer_in_service", slow=len(slow), judged=len(rows))
            verdicts.append(
                finding(
                    self.name,
                    service,
                    "kernel-regression",
                    score=0.85,
                    since=since,
                    now=now,
                    evidence_items=evidence_items,
                )
            )
        return explained

    def _replicas(
        self,
        snapshot: _Snapshot,
        run: ConditionDuration,
        lasting: Flags,
        topology: Topology,
        now: datetime,
        verdicts: list[Finding | NoVerdict],
    ) -> None:
        """Appends the replicas that are slower than their peers."""
        if not lasting.any():
            return
        value = newest(snapshot.window, snapshot.over)
        apart = value - _median_of_others(value, snapshot.group)
        rows = np.flatnonzero(lasting & ~(apart < APART))
        crowded = _nodes_with_all_slow(snapshot, rows, value, topology)
        for row in rows:
            entity = snapshot.window.entities[row]
            if crowded & set(topology.below(entity, EntityKind.NODE)) or _is_new(snapshot.memory, row, now):
                continue
            cards = topology.below(entity, EntityKind.GPU)
            grouped = len(cards) > 1 or topology.label(entity, "tensor_parallel", "1") not in ("", "1")
            from_birth = bool(snapshot.memory["process"][row] > snapshot.memory["first_seen"][row]) and not bool(
                snapshot.memory["well_seen"][row]
            )
            fault = "tp-topology-bad" if grouped and from_birth else "gpu-slow-peer"
            # Ranks of a group wait for each other, so no counter shows which of its GPUs is slow.
            place = cards[0] if fault == "gpu-slow-peer" and len(cards) == 1 else entity
            text = "slow_from_first_minute" if from_birth else "steps_longer_than_peers"
            evidence_items = _evidence(snapshot, [int(row)], text, cards=", ".join(card.name for card in cards) or "-")
            since = float(snapshot.window.times[run.start[row]])
            verdicts.append(
                finding(
                    self.name,
                    place,
                    fault,
                    score=0.8 if fault == "tp-topology-bad" else 0.75,
                    since=since,
                    now=now,
                    evidence_items=evidence_items,
                )
            )


def _is_new(memory: Arrays, row: int | np.intp, now: datetime) -> bool:
    """True for the first replica of a new revision that is slow from the start: not a placement fault."""
    recent = now.timestamp() - memory["revised_at"][row] <= CHANGE_HOLD.total_seconds()
    return bool(recent and memory["process"][row] >= memory["revised_at"][row] and not memory["well_seen"][row])


def _snapshot(window: Window, memory: Arrays, topology: Topology) -> _Snapshot:
    group = peer_groups.groups(window.entities, topology)
    shown = step_time.read(window)
    expected, error = step_time.expected(memory, group, shown)
    over, unsure = step_time.stretched(window, shown, expected, error)
    with np.errstate(invalid="ignore"):
        alone = shown.step / expected - 1.0  # a returning series may contain a long past in one scrape
        slow: Flags = (over > SLOW + SURE * unsure) & ~(alone <= SLOW / 2)
    return _Snapshot(window, memory, group, shown, expected, over, slow)


def _processes(snapshot: _Snapshot) -> None:
    """Stores the start of each process, and whether it was ever seen at normal speed."""
    memory, window = snapshot.memory, snapshot.window
    started = newest(window, window.column("engine_start_time_seconds"))
    fresh = ~np.isnan(started) & ~(np.abs(started - memory["process"]) < 1.0)
    memory["first_seen"] = np.fmin(memory["first_seen"], np.where(np.isnan(started), np.nan, window.times[-1]))
    memory["process"] = np.where(np.isnan(started), memory["process"], started)
    well = newest(window, snapshot.over) < SLOW / 2
    memory["well_seen"] = (memory["well_seen"] & ~fresh) | well


def _learn(snapshot: _Snapshot) -> None:
    """Learns the columns that are old enough, of replicas at their expected speed."""
    memory, times = snapshot.memory, snapshot.window.times
    is_slow = newest(snapshot.window, snapshot.over) > SLOW / 2
    memory["slow_since"] = np.where(is_slow, np.fmin(memory["slow_since"], times[-1]), np.nan)
    frozen = is_slow & ~(times[-1] - memory["slow_since"] > FROZEN_AT_MOST)
    until = times[-1] - LAG_SECONDS
    where = (times[None, :] > memory["learnt_until"][:, None]) & (times <= until)[None, :] & ~frozen[:, None]
    where &= ~snapshot.slow
    forget = float(np.exp(-snapshot.window.step.total_seconds() / step_time.MEMORY_SECONDS))
    step_time.learn(memory, snapshot.pace, where, forget)
    memory["learnt_until"] = np.maximum(memory["learnt_until"], until)


def _services(snapshot: _Snapshot, row: int | np.intp, topology: Topology) -> tuple[EntityRef, ...]:
    return topology.above(snapshot.window.entities[row], EntityKind.SERVICE)


def _fails(window: Window) -> Flags:
    """True for replicas that failed more than ``ERRORS`` of their responses in the window."""
    failed = np.nan_to_num(window.column("engine_requests_failed_total")).sum(axis=1)
    finished = np.nan_to_num(window.column("engine_requests_finished_total")).sum(axis=1)
    result: Flags = (failed > 0) & (failed > ERRORS * finished)
    return result


def _median_of_others(value: Floats, group: np.ndarray) -> Floats:
    """The median of each value's group, 0 (as expected) for those without peers."""
    result = np.zeros(value.size)
    for number in np.unique(group[group >= 0]):
        inside = group == number
        known = value[inside & ~np.isnan(value)]
        result[inside] = max(0.0, float(np.median(known))) if known.size else 0.0
    return result


def _nodes_with_all_slow(snapshot: _Snapshot, rows: np.ndarray, value: Floats, topology: Topology) -> set[EntityRef]:
    """Nodes with two or more slow replicas and no normal one: the common cause is not a GPU."""
    slow = {snapshot.window.entities[row] for row in rows}
    judged = {snapshot.window.entities[row] for row in np.flatnonzero(~np.isnan(value))}
    entities = set()
    for node in {node for entity in slow for node in topology.below(entity, EntityKind.NODE)}:
        on_it = topology.affected_by(node) & judged
        if len(on_it) > 1 and on_it <= slow:
            entities.add(node)
    return entities


def _evidence(snapshot: _Snapshot, rows: list[int], text: str, **more: object) -> tuple[Evidence, ...]:
    """Step time of the slowest of ``rows``, its expectation, and the batch it was judged at."""
    window = snapshot.window
    value = newest(window, snapshot.over)
    worst = max(rows, key=lambda row: value[row])
    step, due, batch = (
        float(newest(window, values[worst : worst + 1])[0])
        for values in (snapshot.pace.step, snapshot.expected, snapshot.pace.batch)
    )
    limit = Interval(None, due * (1.0 + SLOW))
    arguments = {"milliseconds": step * 1e3, "due": due * 1e3, "batch": batch, **more}
    return (
        evidence(DECODE, step, text, limit, **arguments),
        evidence("engine_requests_running", batch, "at_this_batch", batch=batch),
    )
