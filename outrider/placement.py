"""Free GPUs of a fleet, and the replicas that fit on them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

_PLACED = (EntityKind.POD, EntityKind.REPLICA)


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """Free GPUs by (cluster, GPU type, node), None for a GPU without a known node.

    ``known`` False: the fleet shows no GPU.
    """

    counts: Mapping[tuple[str, str, EntityRef | None], int] = field(default_factory=dict)
    known: bool = False

    def of(self, gpu_type: str, cluster: str | None = None) -> int | None:
        """Free GPUs of a type, or of all types if none of this name is known; None if the fleet shows no GPU.

        ``cluster`` None counts those of all clusters.
        """
        return sum(self._of(gpu_type, cluster)) if self.known else None

    def replicas(self, gpu_type: str, gpus: int, cluster: str | None = None) -> int | None:
        """Replicas of so many GPUs that fit, each within one node; None if the fleet shows no GPU."""
        return sum(count // gpus for count in self._of(gpu_type, cluster)) if self.known else None

    def _of(self, gpu_type: str, cluster: str | None) -> list[int]:
        here = [(name, count) for (place, name, _), count in self.counts.items() if cluster in (None, place)]
        is_known = any(name == gpu_type for name, _ in here)
        return [count for name, count in here if name == gpu_type or not is_known]


def free_gpus(topology: Topology, closed: frozenset[EntityRef] = frozenset()) -> FreeGpus:
    """Counts the GPUs without a pod. Those of ``closed`` nodes, which take no new pod, are not free."""
    gpus = topology.of_kind(EntityKind.GPU)
    counts: Counter[tuple[str, str, EntityRef | None]] = Counter()
    for gpu in gpus:
        nodes = topology.below(gpu, EntityKind.NODE)
        name = topology.label(gpu, "gpu_type") or next((topology.label(node, "gpu_type") for node in nodes), "")
        used = any(entity.kind in _PLACED for entity in topology.holds_up(gpu))
        counts[gpu.cluster, name, next(iter(nodes), None)] += 0 if used or not closed.isdisjoint(nodes) else 1
    return FreeGpus(dict(counts), bool(gpus))


def most_replicas(service: EntityRef, topology: Topology, free: FreeGpus, gpu_type: str, gpus: int) -> int | None:
    """Replicas of a service that can be placed: those that have GPUs, and those that fit on free ones of its cluster.

    None if that is unknown: the fleet shows no GPU, or none of the service's replicas shows its GPUs.
    """
    replicas = topology.below(service, EntityKind.REPLICA)
    placed = sum(bool(topology.below(replica, EntityKind.GPU)) for replica in replicas)
    more = free.replicas(gpu_type, gpus, service.cluster)
    return None if more is None or (replicas and not placed) else placed + more
