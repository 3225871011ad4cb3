"""GPU figures of a week: hours allocated, idle and lost, utilization and energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityKind, EntityRef, Floats, SignalKey
from outrider.ports import MetricStore
from outrider.topology import Topology
from outrider.vocabulary import indicators

ACTIVE = SignalKey("hw_accel_tensor_active_ratio")
USED = SignalKey("hw_accel_utilization_ratio")
ENERGY = SignalKey("hw_accel_energy_joules_total")
POWER = SignalKey("hw_accel_power_watts")
RUNNING = SignalKey("engine_requests_running")
PREFIX = SignalKey("engine_prefix_cache_hit_ratio")
PROMPTS = SignalKey("engine_prompt_tokens_total")
UNSCHEDULABLE = SignalKey("node_unschedulable")
PRESENT = SignalKey("hw_accel_present")
CAPACITY = SignalKey("node_accel_capacity")
_SMALL_FLEET = 256


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Figures of the whole fleet over the period. Hours are GPU-hours; None is not measured."""

    gpus: int = 0
    held_hours: float = 0.0
    held_by_service: Mapping[EntityRef, float] = field(default_factory=dict)
    utilisation: float | None = None
    idle_hours: float | None = None
    lost_hours: float | None = None
    joules: float = 0.0
    prefix_hit: float | None = None


def read_fleet(metrics: MetricStore, topology: Topology, start: datetime, end: datetime) -> FleetFigures:
    """Reads GPUs, replicas and nodes in steps of ten minutes (an hour above 256 GPUs).

    A GPU is in use in a slot in which it has a value. It is allocated if the topology maps a replica to it; without any
    mapping, every GPU is.
    """
    step = timedelta(minutes=10 if len(metrics.entities(EntityKind.GPU)) <= _SMALL_FLEET else 60)
    window = metrics.read_windows(EntityKind.GPU, [ACTIVE, USED, ENERGY, POWER], start, end, step)
    if not window.entities:
        return FleetFigures(lost_hours=_lost(metrics, topology, start, end, step))
    known: indicators.Mask = np.any(~np.isnan(window.values), axis=2)
    replicas = {gpu: topology.above(gpu, EntityKind.REPLICA) for gpu in window.entities}
    mapped = any(replicas.values())
    allocated = known & np.array([[bool(replicas[gpu]) or not mapped] for gpu in window.entities])
    running, prefix = _replicas(metrics, replicas, window.entities, start, end, step)
    return FleetFigures(
        gpus=int(known.any(axis=1).sum()),
        held_hours=indicators.gpu_hours(known, step),
        held_by_service=_by_service(topology, window.entities, known, step),
        utilisation=indicators.gpu_utilisation(window.column(ACTIVE), window.column(USED), allocated),
        idle_hours=None if running is None else indicators.gpu_hours_idle(allocated, running, step),
        lost_hours=_lost(metrics, topology, start, end, step),
        joules=_joules(window.column(ENERGY), window.column(POWER), step),
        prefix_hit=prefix,
    )


def _replicas(
    metrics: MetricStore,
    replicas: Mapping[EntityRef, tuple[EntityRef, ...]],
    gpus: tuple[EntityRef, ...],
    start: datetime,
    end: datetime,
    step: timedelta,
) -> tuple[Floats | None, float | None]:
    """(requests running on each GPU and slot, prefix-cache hit ratio weighted by prompt tokens)."""
    window = metrics.read_windows(EntityKind.REPLICA, [RUNNING, PREFIX, PROMPTS], start, end, step)
    if not window.entities:
        return None, None
    ratios, prompts = window.column(PREFIX), window.column(PROMPTS)
    both = ~np.isnan(ratios) & (np.nan_to_num(prompts, nan=0.0) > 0)
    prefix = indicators.prefix_hit_ratio(float((ratios * prompts)[both].sum()), float(prompts[both].sum()))
    rows = {replica: row for row, replica in enumerate(window.entities)}
    values = window.column(RUNNING)
    unknown = np.full(values.shape[1], np.nan)
    running = [
        np.sum([values[rows[replica]] for replica in replicas[gpu] if replica in rows], axis=0)
        if any(replica in rows for replica in replicas[gpu])
        else unknown
        for gpu in gpus
    ]
    return np.stack(running), prefix


def _by_service(
    topology: Topology, gpus: tuple[EntityRef, ...], known: indicators.Mask, step: timedelta
) -> dict[EntityRef, float]:
    hours: dict[EntityRef, float] = {}
    for row, gpu in enumerate(gpus):
        for service in topology.above(gpu, EntityKind.SERVICE):
            hours[service] = hours.get(service, 0.0) + indicators.gpu_hours(known[row], step)
    return hours


def _lost(metrics: MetricStore, topology: Topology, start: datetime, end: datetime, step: timedelta) -> float | None:
    """GPU-hours of cordoned nodes, and of missing GPUs of nodes."""
    window = metrics.read_windows(EntityKind.NODE, [UNSCHEDULABLE, PRESENT, CAPACITY], start, end, step)
    if not window.entities or np.isnan(window.values).all():
        return None
    holds = np.array([[float(_gpus_on(topology, node))] for node in window.entities])
    capacity = np.where(np.isnan(window.column(CAPACITY)), holds, window.column(CAPACITY))
    missing = np.maximum(capacity - window.column(PRESENT), 0.0)
    lost = np.where(window.column(UNSCHEDULABLE) == 1.0, capacity, np.nan_to_num(missing, nan=0.0))
    return float(lost.sum()) * step.total_seconds() / 3600.0


def _gpus_on(topology: Topology, node: EntityRef) -> int:
    return sum(1 for entity in topology.holds_up(node) if entity.kind is EntityKind.GPU)


def _joules(energy: Floats, power: Floats, step: timedelta) -> float:
    """Energy counters if published, otherwise power x time."""
    counted = float(np.nansum(energy))
    return counted if counted > 0 else float(np.nansum(power)) * step.total_seconds()
