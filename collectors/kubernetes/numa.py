"""NUMA and PCIe domains of a node and its devices, if published. Pure.

Two sources: NodeResourceTopology objects (``topology.node.k8s.io``) are written by node-feature-discovery's topology
updater and by resource-topology-exporter. Zones of type Node are NUMA nodes, with resources and distances.
ResourceSlices of DRA drivers have device attributes: NVIDIA's driver publishes uuid, PCI address and PCIe root but no
NUMA node, AMD's the NUMA node but no uuid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from collectors.kubernetes.api import Json, items, mapping, text
from collectors.kubernetes.engine_args import accelerators
from collectors.kubernetes.objects import key_of
from outrider.model import EntityKind, EntityRef

_ZONES = frozenset({"node", "numa", "numanode"})
_DEVICE = {  # attributes of a device: driver-specific or common to all drivers
    "numa_node": ("resource.kubernetes.io/numaNode", "numaNode", "dra.net/numaNode"),
    "pcie_root": ("resource.kubernetes.io/pcieRoot", "pcieRoot"),
    "pci": ("resource.kubernetes.io/pciBusID", "pciBusID"),
    "gpu_type": ("productName",),
}


def zone_facts(topology: Json) -> dict[str, str]:
    """Labels of a node from its NodeResourceTopology.

    ``numa_zones`` are the names of its NUMA nodes, ``numa_gpus`` the accelerators of each (``node-0=4,node-1=4``),
    ``numa_distances`` the distances between two of them (``node-0:node-1=21``).
    """
    zones = {text(zone.get("name")): zone for zone in items(topology.get("zones")) if _is_numa(zone)}
    gpus = {name: _gpus(zone) for name, zone in zones.items()}
    far = {
        f"{name}:{text(cost.get('name'))}={text(cost.get('value'))}"
        for name, zone in zones.items()
        for cost in items(zone.get("costs"))
        if name < text(cost.get("name")) in zones and text(cost.get("value"))
    }
    facts = {
        "numa_zones": ",".join(sorted(zones)),
        "numa_gpus": ",".join(f"{name}={count:g}" for name, count in sorted(gpus.items()))
        if any(gpus.values())
        else "",
        "numa_distances": ",".join(sorted(far)),
    }
    return {name: value for name, value in facts.items() if value}


def node_zones(topologies: Iterable[Json]) -> dict[str, dict[str, str]]:
    """Labels of each node with a NodeResourceTopology; the object has the node's name."""
    return {key_of(topology)[1]: zone_facts(topology) for topology in topologies}


def devices(slices: Iterable[Json], cluster: str) -> Iterator[tuple[EntityRef, dict[str, str]]]:
    """Devices published by DRA drivers with a uuid, each with its labels; ``node`` is its node.

    Only the newest generation of a pool counts.
    """
    newest: dict[tuple[str, str], int] = {}
    every = [(item, mapping(item.get("spec"))) for item in slices]
    for _, spec in every:
        newest[_pool(spec)] = max(newest.get(_pool(spec), 0), _generation(spec))
    for _, spec in every:
        node = text(spec.get("nodeName"))
        if not node or _generation(spec) < newest[_pool(spec)]:
            continue
        for device in items(spec.get("devices")):
            attributes = mapping(device.get("attributes"))
            uuid = _attribute(attributes, ("uuid",))
            if uuid.startswith("GPU-"):  # MIG instances are related to their device by metrics pages
                facts = {name: _attribute(attributes, spellings) for name, spellings in _DEVICE.items()}
                set_facts = {name: value for name, value in facts.items() if value}
                yield EntityRef(cluster, EntityKind.GPU, None, uuid), {"node": node, **set_facts}


def _is_numa(zone: Json) -> bool:
    return text(zone.get("type")).lower() in _ZONES and bool(text(zone.get("name")))


def _gpus(zone: Json) -> float:
    amounts = {text(resource.get("name")): resource.get("capacity") for resource in items(zone.get("resources"))}
    return sum(accelerators({"resources": {"limits": amounts}}).values())


def _pool(spec: Json) -> tuple[str, str]:
    return text(spec.get("driver")), text(mapping(spec.get("pool")).get("name"))


def _generation(spec: Json) -> int:
    generation = mapping(spec.get("pool")).get("generation")
    return generation if isinstance(generation, int) else 0


def _attribute(attributes: Mapping[str, object], names: tuple[str, ...]) -> str:
    """Value of the first of these attributes: ``{"string": ..}``, ``{"int": ..}``; -1 means no NUMA node."""
    for name in names:
        value = mapping(attributes.get(name))
        value_text = text(value.get("string")) or text(value.get("int"))
        if value_text and value_text != "-1":
            return value_text
    return ""
