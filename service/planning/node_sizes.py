"""Number of GPUs per node, by GPU type, from the topology."""

from __future__ import annotations

from collections import Counter

from outrider.model import EntityKind
from outrider.topology import Topology
from planner.performance.gpu_catalog import known_gpu
from service.config.service_settings import ServiceSettings


def node_sizes(topology: Topology) -> dict[str, int]:
    """Returns the most common GPU count of a node, by GPU type; key "" if all nodes have one size.

    The most common count ignores nodes that lost a GPU. Counts come from the topology, else from the node's label.
    """
    seen: dict[str, Counter[int]] = {}
    for node in topology.of_kind(EntityKind.NODE):
        gpus = [entity for entity in topology.holds_up(node) if entity.kind is EntityKind.GPU]
        label = topology.label(node, "gpu_count")
        size = len(gpus) or (int(label) if label.isdecimal() else 0)
        if size:
            types = {topology.label(gpu, "gpu_type") for gpu in gpus} - {""}
            name = types.pop() if len(types) == 1 else topology.label(node, "gpu_type")
            seen.setdefault(short_name(name), Counter())[size] += 1
    common = {name: _most_common(sizes) for name, sizes in seen.items()}
    return common | ({"": next(iter(common.values()))} if len(set(common.values())) == 1 else {})


def node_of(gpu_type: str, setting: ServiceSettings, sizes: dict[str, int]) -> tuple[int | None, str]:
    """Returns the GPUs per node of a service and their source: configured, topology, or (None, "")."""
    if setting.gpus_per_node is not None:
        return setting.gpus_per_node, "configured"
    size = sizes.get(short_name(gpu_type), sizes.get("") if gpu_type == "unknown" else None)
    return (None, "") if size is None else (size, "topology")


def short_name(gpu_type: str) -> str:
    """Returns the catalog's short name of a GPU type, because exporters and clouds use several names."""
    spec = known_gpu(gpu_type)
    return gpu_type if spec is None else spec.name


def _most_common(sizes: Counter[int]) -> int:
    return max(sizes, key=lambda size: (sizes[size], size))
