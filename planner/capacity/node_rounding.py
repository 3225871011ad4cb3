"""Whole nodes filled by a plan's replicas: shown beside the replica count, which scalers use unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.model import FleetService
from outrider.text.i18n import Language, translate
from planner.capacity import redundancy
from planner.performance.gpu_catalog import known_gpu


def size_of(service: FleetService) -> tuple[int | None, str]:
    """GPUs of a node and their source: the fleet, otherwise the usual server of the GPU type; otherwise unknown."""
    if service.gpus_per_node is not None:
        return service.gpus_per_node, service.node_source
    spec = known_gpu(service.gpu_type)
    return (None, "unknown") if spec is None else (spec.node, "prior")


def round_to_nodes(replicas: int, group: int, service: FleetService) -> dict[str, Any]:
    """Nodes for ``replicas`` of ``group`` GPUs as plain values; ``nodes`` is None if the node size is unknown.

    ``idle_gpus`` are not used by any replica; ``stranded_gpus`` are those among them that no replica of this size fits.
    """
    size, source = size_of(service)
    facts: dict[str, Any] = {"gpus_per_replica": group, "gpus_per_node": size, "source": source}
    if size is None:
        return {**facts, "gpu_type": service.gpu_type, "nodes": None, "gpus": None, "idle_gpus": None}
    filled = redundancy.whole_nodes(replicas, gpus_per_replica=group, gpus_per_node=size)
    return {**facts, **filled.as_dict(), "stranded_gpus": filled.stranded_gpus}


def line(nodes: Mapping[str, Any], language: Language = "en") -> str:
    """One step of a derivation; ``nodes`` is the result of ``round_to_nodes``."""
    if nodes["nodes"] is None:
        return translate("plan.nodes_unknown", language, gpu=nodes["gpu_type"] or "unknown")
    figures = {
        "replicas": nodes["replicas"],
        "group": nodes["gpus_per_replica"],
        "node": nodes["gpus_per_node"],
        "nodes": nodes["nodes"],
        "gpus": nodes["gpus"],
        "idle": nodes["idle_gpus"],
        "stranded": nodes["stranded_gpus"],
        "source": translate(f"plan.node_source_{nodes['source']}", language),
    }
    return translate("plan.step_nodes", language, **figures)
