"""Diagnostic of a node: what a test of its devices and links finds now."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from simulator.effects import FleetEffects
from simulator.hardware.gpus import Gpus
from simulator.hardware.nodes import Nodes

DIAGNOSTIC_SECONDS = 60.0
# Effects that a test measures: memory, links, bandwidth, clocks under load. A few corrected errors pass.
_GPU_EFFECTS = (
    "cooling_factor",
    "power_limit_ratio",
    "step_factor",
    "link_factor",
    "link_errors_per_second",
    "pcie_factor",
    "pcie_replays_per_second",
    "ecc_uncorrectable_per_second",
    "row_remap_pending",
    "row_remap_failed",
)
_NODE_EFFECTS = ("reachable", "alive", "port_up", "rdma_errors_per_second", "packet_loss_ratio", "fan_factor")


class DiagnosedFleet(Protocol):
    """The parts of a fleet that a diagnostic reads."""

    gpus: Gpus
    nodes: Nodes
    effects: FleetEffects


def node_failures(fleet: DiagnosedFleet, node: int) -> list[str]:
    """Returns one text per failed check of a node; empty if it passes."""
    gpus, effects, result = np.flatnonzero(fleet.gpus.node == node), fleet.effects, list[str]()
    if not fleet.nodes.ready[node]:
        result.append("node is not ready")
    for name in _NODE_EFFECTS:
        if getattr(effects.nodes, name)[node] != effects.nodes.NEUTRAL[name]:
            result.append(name)
    for gpu in gpus.tolist():
        index = int(fleet.gpus.index[gpu])
        if not (fleet.gpus.healthy[gpu] and fleet.gpus.visible[gpu]):
            result.append(f"GPU {index} is not usable")
        result += [
            f"GPU {index}: {name}"
            for name in _GPU_EFFECTS
            if getattr(effects.gpus, name)[gpu] != effects.gpus.NEUTRAL[name]
        ]
    return result
