"""Free GPUs of a fleet, and the replicas that fit on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityKind, EntityRef, signal_keys
from outrider.ports import MetricStore
from outrider.topology import Topology
from outrider.windows import believed

_FRESH = timedelta(minutes=2)
_STEP = timedelta(seconds=15)
_PLACED = (EntityKind.POD, EntityKind.REPLICA)
UNSCHEDULABLE, READY = NODE_KEYS = signal_keys("node_unschedulable", "node_ready")


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """Free GPUs by (GPU type, node), None for a GPU without a known node. ``known`` False: the fleet shows no GPU."""

    counts: Mapping[tuple[str, EntityRef | None], int] = field(default_factory=dict)
    known: bool = False

    def of(self, gpu_type: str) -> int | None:
        """Free GPUs of a type, or of all types if none of this name is known; None if the fleet shows no GPU."""
        return sum(count for _, count in self._of(gpu_type)) if self.known else None

    def replicas(self, gpu_type: str, gpus: int) -> int | None:
        """Replicas of so many GPUs that fit, each within one node; None if the fleet shows no GPU."""
        return sum(count // gpus for _, count in self._of(gpu_type)) if self.known else None

    def _of(self, gpu_type: str) -> list[tuple[EntityRef | None, int]]:
        same = [(node, count) for (name, node), count in self.counts.items() if name == gpu_type]
        if same or any(name == gpu_type for name, _ in self.counts):
            return same
        return [(node, count) for (_, node), count in self.counts.items()]


def free_gpus(topology: Topology, closed: frozenset[EntityRef] = frozenset()) -> FreeGpus:
    """Counts the GPUs without a pod. Those of ``closed`` nodes, which take no new pod, are not free."""
    gpus = topology.of_kind(EntityKind.GPU)
    counts: Counter[tuple[str, EntityRef | None]] = Counter()
    for gpu in gpus:
        nodes = topology.below(gpu, EntityKind.NODE)
        name = topology.label(gpu, "gpu_type") or next((topology.label(node, "gpu_type") for node in nodes), "")
        used = any(entity.kind in _PLACED for entity in topology.holds_up(gpu))
        counts[name, next(iter(nodes), None)] += 0 if used or not closed.isdisjoint(nodes) else 1
    return FreeGpus(dict(counts), bool(gpus))


def closed_nodes(metrics: MetricStore, topology: Topology, now: datetime) -> frozenset[EntityRef]:
    """Returns the nodes that are cordoned or not ready by their newest value. Raises StoreUnavailableError."""
    nodes = topology.of_kind(EntityKind.NODE)
    if not nodes:
        return frozenset()
    window = metrics.read_windows(EntityKind.NODE, NODE_KEYS, now - _FRESH, now + _STEP, _STEP, nodes)
    closed: set[EntityRef] = set()
    for key, bad in ((UNSCHEDULABLE, 1.0), (READY, 0.0)):
        for entity, values in zip(window.entities, believed(window, key), strict=True):
            known = values[~np.isnan(values)]
            if known.size and known[-1] == bad:
                closed.add(entity)
    return frozenset(closed)


def most_replicas(service: EntityRef, topology: Topology, free: FreeGpus, gpu_type: str, gpus: int) -> int | None:
    """Replicas of a service that can be placed: those that have GPUs, and those that fit on free ones.

    None if that is unknown: the fleet shows no GPU, or none of the service's replicas shows its GPUs.
    """
    replicas = topology.below(service, EntityKind.REPLICA)
    placed = sum(bool(topology.below(replica, EntityKind.GPU)) for replica in replicas)
    more = free.replicas(gpu_type, gpus)
    return None if more is None or (replicas and not placed) else placed + more
