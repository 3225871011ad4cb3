"""Engines that became slower at the same work: one replica, or a whole service since a change.

Compares the step time with the expected one at its batch (``step_time``), which cancels load, long prompts and an
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
        sight = _look(window, memory, topology)
        _processes(sight)
        for name, ends in (("changed_at", True), ("revised_at", False)):
            sight.memory[name] = changed_at(window, sight.memory[name], topology, now, until_rollback=ends)
        verdicts: list[Finding | NoVerdict] = []
        known = ~np.isnan(sight.over)
        run = measure_run(known, sight.slow, window.times)
        lasting = (run.seconds >= LASTING_SECONDS) & ~np.isnan(newest(window, sight.over))
        regressed = self._services(sight, run, lasting, topology, now, verdicts)
        self._replicas(sight, run, lasting & ~regressed, topology, now, verdicts)
        _learn(sight)
        if not known.any():
            verdicts.append(NoVerdict(self.name, None, NoVerdictReason.WARMING_UP))
        return verdicts

    def _services(
        self,
        sight: _Snapshot,
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
        judged = ~np.isnan(newest(sight.window, sight.over))
        members: dict[EntityRef, list[int]] = defaultdict(list)
        touched = {service for row in np.flatnonzero(lasting) for service in _services(sight, row, topology)}
        for row in np.flatnonzero(judged):
            for service in _services(sight, row, topology):
                if service in touched:
                    members[service].append(int(row))
        wrong = _fails(sight.window)
        for service, rows in members.items():
            slow = [row for row in rows if lasting[row]]
            since = float(sight.window.times[run.start[slow]].min())
            change = float(sight.memory["changed_at"][rows].max())
            new = [row for row in rows if sight.memory["process"][row] >= change]
            most = len(slow) >= GROUP_SHARE * len(rows) and (len(slow) > 1 or len(rows) == 1)
            only_new = len(slow) > 1 and set(slow) <= set(new) and len(slow) > GROUP_SHARE * len(new)
            began = 0.0 <= since + step_time.TRAILING_SECONDS - change <= CHANGE_HOLD.total_seconds()
            if not (began and (most or only_new)):
                continue
            explained[slow] = True
            if wrong[slow].any():
                continue
            because = _why(sight, slow, "steps_longer_in_service", slow=len(slow), judged=len(rows))
            verdicts.append(
                finding(self.name, service, "kernel-regression", score=0.85, since=since, now=now, because=because)
            )
        return explained

    def _replicas(
        self,
        sight: _Snapshot,
        run: ConditionDuration,
        lasting: Flags,
        topology: Topology,
        now: datetime,
        verdicts: list[Finding | NoVerdict],
    ) -> None:
        """Appends the replicas that are slower than their peers."""
        if not lasting.any():
            return
        value = newest(sight.window, sight.over)
        apart = value - _median_of_others(value, sight.group)
        rows = np.flatnonzero(lasting & ~(apart < APART))
        crowded = _nodes_with_all_slow(sight, rows, value, topology)
        for row in rows:
            entity = sight.window.entities[row]
            if crowded & set(topology.below(entity, EntityKind.NODE)) or _is_new(sight.memory, row, now):
                continue
            cards = topology.below(entity, EntityKind.GPU)
            grouped = len(cards) > 1 or topology.label(entity, "tensor_parallel", "1") not in ("", "1")
            from_birth = bool(sight.memory["process"][row] > sight.memory["first_seen"][row]) and not bool(
                sight.memory["well_seen"][row]
            )
            fault = "tp-topology-bad" if grouped and from_birth else "gpu-slow-peer"
            # Ranks of a group wait for each other, so no counter shows which of its GPUs is slow.
            place = cards[0] if fault == "gpu-slow-peer" and len(cards) == 1 else entity
            text = "slow_from_first_minute" if from_birth else "steps_longer_than_peers"
            because = _why(sight, [int(row)], text, cards=", ".join(card.name for card in cards) or "-")
            since = float(sight.window.times[run.start[row]])
            verdicts.append(
                finding(
                    self.name,
                    place,
                    fault,
                    score=0.8 if fault == "tp-topology-bad" else 0.75,
                    since=since,
                    now=now,
                    because=because,
                )
            )


def _is_new(memory: Arrays, row: int | np.intp, now: datetime) -> bool:
    """True for the first replica of a new revision that is slow from the start: not a placement fault."""
    recent = now.timestamp() - memory["revised_at"][row] <= CHANGE_HOLD.total_seconds()
    return bool(recent and memory["process"][row] >= memory["revised_at"][row] and not memory["well_seen"][row])


def _look(window: Window, memory: Arrays, topology: Topology) -> _Snapshot:
    group = peer_groups.groups(window.entities, topology)
    shown = step_time.read(window)
    expected, error = step_time.expected(memory, group, shown)
    over, unsure = step_time.stretched(window, shown, expected, error)
    with np.errstate(invalid="ignore"):
        alone = shown.step / expected - 1.0  # a returning series may contain a long past in one scrape
        slow: Flags = (over > SLOW + SURE * unsure) & ~(alone <= SLOW / 2)
    return _Snapshot(window, memory, group, shown, expected, over, slow)


def _processes(sight: _Snapshot) -> None:
    """Stores the start of each process, and whether it was ever seen at normal speed."""
    memory, window = sight.memory, sight.window
    started = newest(window, window.column("engine_start_time_seconds"))
    fresh = ~np.isnan(started) & ~(np.abs(started - memory["process"]) < 1.0)
    memory["first_seen"] = np.fmin(memory["first_seen"], np.where(np.isnan(started), np.nan, window.times[-1]))
    memory["process"] = np.where(np.isnan(started), memory["process"], started)
    well = newest(window, sight.over) < SLOW / 2
    memory["well_seen"] = (memory["well_seen"] & ~fresh) | well


def _learn(sight: _Snapshot) -> None:
    """Learns the columns that are old enough, of replicas at their expected speed."""
    memory, times = sight.memory, sight.window.times
    odd = newest(sight.window, sight.over) > SLOW / 2
    memory["slow_since"] = np.where(odd, np.fmin(memory["slow_since"], times[-1]), np.nan)
    frozen = odd & ~(times[-1] - memory["slow_since"] > FROZEN_AT_MOST)
    until = times[-1] - LAG_SECONDS
    where = (times[None, :] > memory["learnt_until"][:, None]) & (times <= until)[None, :] & ~frozen[:, None]
    where &= ~sight.slow
    forget = float(np.exp(-sight.window.step.total_seconds() / step_time.MEMORY_SECONDS))
    step_time.learn(memory, sight.pace, where, forget)
    memory["learnt_until"] = np.maximum(memory["learnt_until"], until)


def _services(sight: _Snapshot, row: int | np.intp, topology: Topology) -> tuple[EntityRef, ...]:
    return topology.above(sight.window.entities[row], EntityKind.SERVICE)


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


def _nodes_with_all_slow(sight: _Snapshot, rows: np.ndarray, value: Floats, topology: Topology) -> set[EntityRef]:
    """Nodes with two or more slow replicas and no normal one: the common cause is not a GPU."""
    slow = {sight.window.entities[row] for row in rows}
    judged = {sight.window.entities[row] for row in np.flatnonzero(~np.isnan(value))}
    entities = set()
    for node in {node for entity in slow for node in topology.below(entity, EntityKind.NODE)}:
        on_it = topology.affected_by(node) & judged
        if len(on_it) > 1 and on_it <= slow:
            entities.add(node)
    return entities


def _why(sight: _Snapshot, rows: list[int], text: str, **more: object) -> tuple[Evidence, ...]:
    """Step time of the slowest of ``rows``, its expectation, and the batch it was judged at."""
    window = sight.window
    value = newest(window, sight.over)
    worst = max(rows, key=lambda row: value[row])
    step, due, batch = (
        float(newest(window, values[worst : worst + 1])[0])
        for values in (sight.pace.step, sight.expected, sight.pace.batch)
    )
    limit = Interval(None, due * (1.0 + SLOW))
    arguments = {"milliseconds": step * 1e3, "due": due * 1e3, "batch": batch, **more}
    return (
        evidence(DECODE, step, text, limit, **arguments),
        evidence("engine_requests_running", batch, "at_this_batch", batch=batch),
    )
