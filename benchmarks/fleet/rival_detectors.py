"""Common rival detectors on the scored runs: peers of the drill benchmark.

Static thresholds, a z-score per metric, one isolation forest per entity kind, and published Prometheus alert rules.
They get the same signals at the same times and learn from the same fault-free run. An alarm opens a P1 incident on its
entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from outrider.clock import from_unix
from outrider.model import EntityKind, EntityRef, Floats, Priority, SignalKey
from service.drills.recording import Matrix, RecordedRun
from simulator.scoring.run import FiredAlert, Run, ScoredIncident

if TYPE_CHECKING:
    from sklearn.ensemble import IsolationForest

Flags = np.ndarray  # (times, entities) of bool
MERGE_WITHIN = timedelta(minutes=5)  # alarms of one entity within this time are one incident
Z_LIMIT = 6.0
Z_FLOOR_RATIO = 0.02  # of the level: a constant signal has no scale of its own
PERSISTS = 3  # samples in a row
FOREST_QUANTILE = 0.9995


@dataclass(frozen=True, slots=True)
class StaticRule:
    """``signal`` beyond ``limit`` for ``samples`` in a row; ``fault`` is the fault that the rule names."""

    kind: EntityKind
    signal: str
    above: bool
    limit: float
    fault: str
    samples: int = 2


def _rules(*rows: tuple[EntityKind, str, str, float, str, int]) -> tuple[StaticRule, ...]:
    return tuple(
        StaticRule(kind, signal, side == ">", limit, fault, samples)
        for kind, signal, side, limit, fault, samples in rows
    )


_G, _N, _R, _S, _P = EntityKind.GPU, EntityKind.NODE, EntityKind.REPLICA, EntityKind.SERVICE, EntityKind.POD
STATIC = _rules(
    (_G, "hw_accel_temperature_celsius", ">", 85.0, "gpu-thermal-throttle", 2),
    (_G, "hw_accel_memory_used_ratio", ">", 0.95, "gpu-memory-leak", 2),
    (_G, "hw_accel_fault_code", ">", 0.0, "gpu-xid-hardware", 1),
    (_G, "hw_accel_seen", "<", 0.5, "gpu-lost", 1),
    (_G, "hw_accel_ecc_uncorrectable_total", ">", 0.0, "gpu-ecc-uncorrectable", 1),
    (_N, "node_cpu_utilization_ratio", ">", 0.9, "noisy-neighbour", 2),
    (_N, "node_memory_available_ratio", "<", 0.1, "host-memory-leak", 2),
    (_N, "node_filesystem_available_ratio", "<", 0.1, "disk-full", 2),
    (_N, "node_ready", "<", 0.5, "node-lost", 1),
    (_R, "engine_up", "<", 0.5, "engine-dead", 1),
    (_R, "engine_kv_cache_usage_ratio", ">", 0.95, "kv-pressure", 2),
    (_R, "engine_requests_waiting", ">", 20.0, "traffic-surge", 2),
    (_S, "svc_success_ratio", "<", 0.99, "bad-rollout", 2),
)
# Waiting times of published rules: node and target rules of kube-prometheus 10-15 min, device rules of the DCGM
# examples 1-5 min, engine rules of the vLLM examples 5 min. Here in samples of 15 s, at most 10 min.
SHIPPED = _rules(
    (_G, "hw_accel_temperature_celsius", ">", 85.0, "gpu-thermal-throttle", 20),
    (_G, "hw_accel_fault_code", ">", 0.0, "gpu-xid-hardware", 4),
    (_N, "node_ready", "<", 0.5, "node-lost", 40),
    (_N, "node_filesystem_available_ratio", "<", 0.05, "disk-full", 20),
    (_N, "hw_accel_present", "<", 1.0, "gpu-lost", 20),
    (_R, "engine_up", "<", 0.5, "engine-dead", 20),
    (_R, "engine_requests_waiting", ">", 50.0, "traffic-surge", 20),
    (_R, "engine_kv_cache_usage_ratio", ">", 0.95, "kv-pressure", 20),
    (_P, "pod_restarts", ">", 3.0, "crash-loop", 20),
    (_P, "pod_unschedulable", ">", 0.5, "pods-pending", 40),
    (_S, "svc_success_ratio", "<", 0.95, "bad-rollout", 20),
)


@dataclass(frozen=True, slots=True)
class _Alarm:
    at: float
    entity: EntityRef
    fault: str


def by_rules(rules: Sequence[StaticRule]) -> Callable[[RecordedRun, RecordedRun], list[_Alarm]]:
    """Returns a rival with only static thresholds."""

    def detect(recorded: RecordedRun, _: RecordedRun) -> list[_Alarm]:
        result: list[_Alarm] = []
        for rule in rules:
            matrix = recorded.matrices.get(rule.kind)
            column = None if matrix is None else matrix.column(rule.signal)
            if matrix is None or column is None:
                continue
            distance = column - rule.limit if rule.above else rule.limit - column
            beyond: Flags = np.nan_to_num(distance) > 0
            result += _alarms(matrix, lasting(beyond, rule.samples), rule.fault)
        return result

    return detect


def by_z_score(recorded: RecordedRun, quiet: RecordedRun) -> list[_Alarm]:
    """Alarms on the z-score of each signal of each entity, with mean and deviation of the fault-free run."""
    result: list[_Alarm] = []
    for matrix, learned in _pairs(recorded, quiet):
        flags = lasting(np.asarray((np.abs(_z(matrix, learned)) > Z_LIMIT).any(axis=2)), PERSISTS)
        result += _alarms(matrix, flags, "unknown")
    return result


def by_forest(recorded: RecordedRun, quiet: RecordedRun) -> list[_Alarm]:
    """Alarms by one isolation forest per entity kind over all entities pooled, on raw values."""
    result: list[_Alarm] = []
    for kind, matrix in recorded.matrices.items():
        if kind in quiet.matrices:
            keys = tuple(key for key in quiet.matrices[kind].plain().keys if key in matrix.keys)
            forest, limit = _trained(quiet.matrices[kind], keys)
            scores = -forest.score_samples(_rows(matrix, keys)).reshape(matrix.values.shape[:2])
            result += _alarms(matrix, lasting(scores > limit, PERSISTS), "unknown")
    return result


@lru_cache(maxsize=32)
def _trained(learned: Matrix, keys: tuple[SignalKey, ...]) -> tuple[IsolationForest, float]:
    """Returns a forest trained on the fault-free run, and the score that few rows of that run exceed."""
    from sklearn.ensemble import IsolationForest  # noqa: PLC0415 - slow import, not needed to list drills

    train = _rows(learned, keys)
    forest = IsolationForest(n_estimators=100, max_samples=min(1024, len(train)), random_state=0).fit(train)
    return forest, float(np.quantile(-forest.score_samples(train), FOREST_QUANTILE))


def _pairs(recorded: RecordedRun, quiet: RecordedRun) -> Iterator[tuple[Matrix, Matrix]]:
    for kind, matrix in recorded.matrices.items():
        if kind in quiet.matrices:
            yield matrix.plain(), quiet.matrices[kind].plain()


RIVALS: Mapping[str, Callable[[RecordedRun, RecordedRun], list[_Alarm]]] = {
    "static thresholds": by_rules(STATIC),
    "z-score per metric": by_z_score,
    "pooled isolation forest": by_forest,
    "shipped Prometheus rules": by_rules(SHIPPED),
}


def compare(run: Run, recorded: RecordedRun, quiet: RecordedRun) -> dict[str, Run]:
    """Returns the run with the incidents of each rival; a ``Comparison`` of ``service.drills.runner``."""
    return {name: _run_of_rival(name, run, recorded, quiet) for name in RIVALS}


def _run_of_rival(name: str, run: Run, recorded: RecordedRun, quiet: RecordedRun) -> Run:
    """Returns the run of one rival. Rivals do not group: each alarm is its own incident."""
    opened = incidents(name, recorded, quiet)
    fired = tuple(
        FiredAlert(entity, incident.opened_at, incident.id) for incident in opened for entity in incident.entities
    )
    return replace(run, incidents=opened, alerts=len(opened), acted=(), fired=fired)


def incidents(name: str, recorded: RecordedRun, quiet: RecordedRun) -> tuple[ScoredIncident, ...]:
    """Returns the incidents of a rival; alarms of one entity close in time are one incident."""
    opened: list[ScoredIncident] = []
    newest: dict[EntityRef, tuple[int, float]] = {}
    for alarm in sorted(RIVALS[name](recorded, quiet), key=lambda one: (one.at, one.entity.key)):
        known = newest.get(alarm.entity)
        if known is not None and alarm.at - known[1] <= MERGE_WITHIN.total_seconds():
            newest[alarm.entity] = (known[0], alarm.at)
            continue
        newest[alarm.entity] = (len(opened), alarm.at)
        opened.append(_opened(f"{name}-{len(opened)}", alarm))
    return tuple(opened)


def _opened(name: str, alarm: _Alarm) -> ScoredIncident:
    at = from_unix(alarm.at)
    return ScoredIncident(
        id=name,
        opened_at=at,
        resolved_at=None,
        priority=Priority.P1,
        hypotheses=((alarm.entity, alarm.fault),),
        entities=frozenset({alarm.entity}),
        paged_at=at,
        notified_at=at,
    )


def lasting(flags: Flags, samples: int) -> Flags:
    """True if a flag has been set for ``samples`` consecutive rows, this one included. Shape (times, entities)."""
    count = np.zeros(flags.shape[1], dtype=np.int64)
    held = np.zeros(flags.shape, dtype=bool)
    for row, up in enumerate(flags):
        count = np.where(up, count + 1, 0)
        held[row] = count >= samples
    return held


def _alarms(matrix: Matrix, flags: Flags, fault: str) -> list[_Alarm]:
    rows, columns = np.nonzero(flags)
    return [
        _Alarm(float(matrix.times[row]), matrix.entities[column], fault)
        for row, column in zip(rows, columns, strict=True)
    ]


def _z(matrix: Matrix, learned: Matrix) -> Floats:
    """Returns z-scores against the fault-free run; 0 without a baseline."""
    places = [learned.entities.index(entity) if entity in learned.entities else -1 for entity in matrix.entities]
    columns = [learned.keys.index(key) if key in learned.keys else -1 for key in matrix.keys]
    known = np.array(places)[:, None] >= 0
    known = known & (np.array(columns)[None, :] >= 0)
    with np.errstate(invalid="ignore"):
        mean = _mean(learned.values)[np.ix_(places, columns)]
        spread = _spread(learned.values)[np.ix_(places, columns)]
    scale = np.maximum(spread, Z_FLOOR_RATIO * np.abs(mean)) + 1e-9
    return np.asarray(np.where(known, np.nan_to_num((matrix.values - mean) / scale), 0.0), dtype=np.float64)


def _mean(values: Floats) -> Floats:
    count = np.maximum((~np.isnan(values)).sum(axis=0), 1)
    return np.asarray(np.nansum(values, axis=0) / count, dtype=np.float64)


def _spread(values: Floats) -> Floats:
    count = np.maximum((~np.isnan(values)).sum(axis=0), 1)
    return np.asarray(np.sqrt(np.nansum((values - _mean(values)) ** 2, axis=0) / count), dtype=np.float64)


def _rows(matrix: Matrix, keys: Sequence[SignalKey]) -> Floats:
    columns = [matrix.keys.index(key) for key in keys]
    return np.nan_to_num(matrix.values[:, :, columns].reshape(-1, len(columns)), nan=-1.0)
