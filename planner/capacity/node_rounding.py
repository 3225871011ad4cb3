"""The whole nodes that a plan's replicas fill: a figure beside the count, which stays what a scaler is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.model import FleetService
from outrider.text.i18n import Language, translate
from planner.capacity import redundancy
from planner.performance.gpu_catalog import known_gpu


def size_of(service: FleetService) -> tuple[int | None, str]:
    """GPUs of a node and where that is from: what the fleet tells, else the usual server of the type; else nothing."""
    if service.gpus_per_node is not None:
        return service.gpus_per_node, service.node_source
    spec = known_gpu(service.gpu_type)
    return (None, "unknown") if spec is None else (spec.node, "prior")


def rounded(replicas: int, group: int, service: FleetService) -> dict[str, Any]:
    """Nodes for ``replicas`` of ``group`` GPUs as plain values; ``nodes`` is None where the size is not known.

    ``idle_gpus`` are those of the nodes that no replica takes, ``stranded_gpus`` those among them that none of this
    size could take.
    """
    size, source = size_of(service)
    found: dict[str, Any] = {"gpus_per_replica": group, "gpus_per_node": size, "source": source}
    if size is None:
        return {**found, "gpu_type": service.gpu_type, "nodes": None, "gpus": None, "idle_gpus": None}
    counted = redundancy.whole_nodes(replicas, gpus_per_replica=group, gpus_per_node=size)
    return {**found, **counted.as_dict(), "stranded_gpus": counted.stranded_gpus}


def line(found: Mapping[str, Any], language: Language = "en") -> str:
    """One step of a derivation; ``found`` is what ``rounded`` gave."""
    if found["nodes"] is None:
        return translate("plan.nodes_unknown", language, gpu=found["gpu_type"] or "unknown")
    figures = {
        "replicas": found["replicas"],
        "group": found["gpus_per_replica"],
        "node": found["gpus_per_node"],
        "nodes": found["nodes"],
        "gpus": found["gpus"],
        "idle": found["idle_gpus"],
        "stranded": found["stranded_gpus"],
        "source": translate(f"plan.node_source_{found['source']}", language),
    }
    return translate("plan.step_nodes", language, **figures)
