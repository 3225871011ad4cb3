"""GPU nodes in the stored topology, the candidates for image pre-pull."""

from __future__ import annotations

from outrider.model import EntityKind
from outrider.topology import Topology
from service.config.settings import Settings
from service.planning.node_sizes import short_name
from service.wiring import stores as wiring_stores
from store import migrate


def of_store(settings: Settings, gpu_type: str = "unknown") -> tuple[str, ...]:
    """Returns the names of this cluster's nodes with GPUs, limited to ``gpu_type`` if it is known.

    A node of unknown type counts as fitting. Empty if no store exists yet; none is created.
    Raises StoreUnavailableError.
    """
    if None in migrate.revision(settings.store.url).values():
        return ()
    with wiring_stores.state_reader(settings) as state:
        return fitting(state.topology(), settings.cluster, gpu_type)


def fitting(topology: Topology, cluster: str, gpu_type: str) -> tuple[str, ...]:
    """As ``of_store``, for a topology."""
    wanted = _type(gpu_type)
    names = []
    for node in topology.of_kind(EntityKind.NODE):
        actual = _type(topology.label(node, "gpu_type"))
        has_gpus = bool(actual) or bool(topology.above(node, EntityKind.GPU))
        if node.cluster == cluster and has_gpus and (not wanted or not actual or actual == wanted):
            names.append(node.name)
    return tuple(names)


def _type(name: str) -> str:
    """Returns the catalog name of a GPU type, else the name itself; empty for "unknown"."""
    return "" if name in ("", "unknown") else short_name(name)
