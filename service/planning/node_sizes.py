"""How many GPUs the nodes of each type have, as the fleet shows it."""

from __future__ import annotations

from collections import Counter

from outrider.model import EntityKind
from outrider.topology import Topology
from planner.performance.gpu_catalog import known_gpu
from service.config.service_settings import ServiceSettings


def node_sizes(topology: Topology) -> dict[str, int]:
    """GPUs of a node by type, the most usual size of each; key "" where all nodes are of one size.

    A node that has lost a GPU is one of few. Counted are the GPUs that a node holds up, else what its label tells.
    """
    seen: dict[str, Counter[int]] = {}
    for node in topology.of_kind(EntityKind.NODE):
        held = [one for one in topology.holds_up(node) if one.kind is EntityKind.GPU]
        told = topology.label(node, "gpu_count")
        size = len(held) or (int(told) if told.isdecimal() else 0)
        if size:
            types = {topology.label(one, "gpu_type") for one in held} - {""}
            name = types.pop() if len(types) == 1 else topology.label(node, "gpu_type")
            seen.setdefault(known_as(name), Counter())[size] += 1
    found = {name: _usual(sizes) for name, sizes in seen.items()}
    return found | ({"": next(iter(found.values()))} if len(set(found.values())) == 1 else {})


def node_of(gpu_type: str, setting: ServiceSettings, sizes: dict[str, int]) -> tuple[int | None, str]:
    """GPUs of a service's nodes and where that is from: configured, topology, or (None, "")."""
    if setting.gpus_per_node is not None:
        return setting.gpus_per_node, "configured"
    found = sizes.get(known_as(gpu_type), sizes.get("") if gpu_type == "unknown" else None)
    return (None, "") if found is None else (found, "topology")


def known_as(gpu_type: str) -> str:
    """A type by its short name: exporters, clouds and people call one device by several."""
    spec = known_gpu(gpu_type)
    return gpu_type if spec is None else spec.name


def _usual(sizes: Counter[int]) -> int:
    return max(sizes, key=lambda size: (sizes[size], size))
