"""Node families of kube-state-metrics."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from simulator.exporters.kube_pods import resource_name
from simulator.exporters.kube_table import CachedLines, KubeFamily, Lines, one_of, pairs
from simulator.fleet import Fleet

_STATUSES = ("true", "false", "unknown")
_MOST_PODS = 110.0
_MEMORY_LEFT_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the API server has it. ``reporting`` is False once the kubelet is silent."""

    number: int
    ready: bool
    reporting: bool
    cordoned: bool
    disk_pressure: bool
    memory_pressure: bool
    cpus: float
    memory_bytes: float
    devices: float
    healthy: float
    resource: str


class KubeNodes:
    """Writes the lines of all nodes."""

    def __init__(self) -> None:
        self._written = CachedLines(_TABLE)

    def update(self, fleet: Fleet) -> bool:
        """Updates all lines to the fleet's state; returns True if any has changed."""
        views = _views(fleet)
        keys: list[Hashable] = list(views)
        return self._written.update(keys, lambda node: (f'node="{fleet.nodes.names[node]}"', views[node]))

    def text(self) -> str:
        """Returns the text of all families."""
        return self._written.text()


def _views(fleet: Fleet) -> list[NodeView]:
    hosts, effects, vendors = fleet.nodes, fleet.effects.nodes, fleet.gpus.vendor
    healthy = np.bincount(fleet.gpus.node, fleet.pods.healthy & fleet.gpus.visible, hosts.size)
    first = np.searchsorted(fleet.gpus.node, np.arange(hosts.size))
    reporting = hosts.ready | ((effects.alive > 0.5) & (effects.reachable > 0.5))
    columns = (
        range(hosts.size),
        hosts.ready.tolist(),
        reporting.tolist(),
        fleet.pods.cordoned.tolist(),
        hosts.disk_pressure.tolist(),
        hosts.memory_pressure.tolist(),
        hosts.cpus.astype(float).tolist(),
        hosts.memory_bytes.tolist(),
        hosts.gpus.astype(float).tolist(),
        healthy.tolist(),
        [resource_name(vendors[gpu]) for gpu in first],
    )
    return [NodeView(*row) for row in zip(*columns, strict=True)]


def _about(view: NodeView) -> Lines:
    yield (
        pairs(
            kernel_version="6.8.0-87-generic",
            os_image="Ubuntu 24.04.3 LTS",
            container_runtime_version="containerd://2.1.4",
            kubelet_version="v1.34.1",
            internal_ip=f"10.0.{(view.number + 10) // 250}.{(view.number + 10) % 250 + 1}",
        ),
        1.0,
    )


def _conditions(view: NodeView) -> Lines:
    conditions = {
        "Ready": view.ready,
        "MemoryPressure": view.memory_pressure,
        "DiskPressure": view.disk_pressure,
        "PIDPressure": False,
    }
    for condition, holds in conditions.items():
        status = ("true" if holds else "false") if view.reporting else "unknown"
        for more, value in one_of("status", _STATUSES, status):
            yield pairs(condition=condition) + more, value


def _taints(view: NodeView) -> Lines:
    result = (
        (view.cordoned, "unschedulable"),
        (not view.reporting, "unreachable"),
        (view.reporting and not view.ready, "not-ready"),
        (view.reporting and view.disk_pressure, "disk-pressure"),
        (view.reporting and view.memory_pressure, "memory-pressure"),
    )
    for holds, name in result:
        if holds:
            yield pairs(key=f"node.kubernetes.io/{name}", value="", effect="NoSchedule"), 1.0


def _capacity(view: NodeView) -> Lines:
    yield pairs(resource="cpu", unit="core"), view.cpus
    yield pairs(resource="memory", unit="byte"), view.memory_bytes
    yield pairs(resource=view.resource, unit="integer"), view.devices
    yield pairs(resource="pods", unit="integer"), _MOST_PODS


def _allocatable(view: NodeView) -> Lines:
    yield pairs(resource="cpu", unit="core"), view.cpus - 1.0
    yield pairs(resource="memory", unit="byte"), float(np.rint(view.memory_bytes * _MEMORY_LEFT_RATIO))
    yield pairs(resource=view.resource, unit="integer"), view.healthy
    yield pairs(resource="pods", unit="integer"), _MOST_PODS


_TABLE = (
    KubeFamily("kube_node_info", "gauge", "[STABLE] Information about a cluster node.", _about),
    KubeFamily("kube_node_status_condition", "gauge", "[STABLE] The condition of a cluster node.", _conditions),
    KubeFamily(
        "kube_node_spec_unschedulable",
        "gauge",
        "[STABLE] Whether a node can schedule new pods.",
        lambda view: [("", float(view.cordoned))],
    ),
    KubeFamily("kube_node_spec_taint", "gauge", "[STABLE] The taint of a cluster node.", _taints),
    KubeFamily(
        "kube_node_status_capacity",
        "gauge",
        "[STABLE] The total amount of resources available for a node.",
        _capacity,
    ),
    KubeFamily(
        "kube_node_status_allocatable",
        "gauge",
        "[STABLE] The amount of resources allocatable for pods (after reserving some for system daemons).",
        _allocatable,
    ),
)
