"""Nodes with GPUs that the store knows: where an image is pulled ahead."""

from __future__ import annotations

from outrider.model import EntityKind
from outrider.topology import Topology
from service.config.settings import Settings
from service.planning.node_sizes import known_as
from service.wiring import stores as wiring_stores
from store import migrate


def of_store(settings: Settings, gpu_type: str = "unknown") -> tuple[str, ...]:
    """Names of the nodes of this cluster that hold GPUs, of ``gpu_type`` alone where that is a known one.

    A node whose type nobody told counts as fitting. Empty where no store has been made yet: none is made for the
    question. Raises StoreUnavailableError.
    """
    if None in migrate.revision(settings.store.url).values():
        return ()
    with wiring_stores.state_reader(settings) as state:
        return fitting(state.topology(), settings.cluster, gpu_type)


def fitting(topology: Topology, cluster: str, gpu_type: str) -> tuple[str, ...]:
    """``of_store`` of a topology."""
    wanted = _type(gpu_type)
    found = []
    for node in topology.of_kind(EntityKind.NODE):
        here = _type(topology.label(node, "gpu_type"))
        has_any = bool(here) or bool(topology.above(node, EntityKind.GPU))
        if node.cluster == cluster and has_any and (not wanted or not here or here == wanted):
            found.append(node.name)
    return tuple(found)


def _type(name: str) -> str:
    """The table's name of a type of GPU, the name itself where the table has none, empty for an unknown one."""
    return "" if name in ("", "unknown") else known_as(name)
