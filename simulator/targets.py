"""The fleet's scrape targets, and what each would answer now, without any network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.model import EntityKind, EntityRef
from simulator.fleet import Fleet
from simulator.pages import DcgmPages, KubeStatePage, NodePages, VllmPages


@dataclass(frozen=True, slots=True)
class SimulatedTarget:
    """One page. ``path`` is where the server publishes it; ``labels`` give the topology."""

    name: str
    adapter: str
    path: str
    entity: EntityRef
    labels: Mapping[str, str]

    def as_config(self, url: str) -> dict[str, Any]:
        """The target as a configuration lists it."""
        entity = {"kind": self.entity.kind.value, "namespace": self.entity.namespace, "name": self.entity.name}
        return {
            "name": self.name,
            "adapter": self.adapter,
            "url": url,
            "entity": {key: value for key, value in entity.items() if value is not None},
            "labels": dict(self.labels),
        }


def targets(fleet: Fleet) -> list[SimulatedTarget]:
    """Replicas that have served at least once, then node, device and cluster exporters.

    A replica that starts for the first time is not listed yet: its port opens when the model is loaded.
    """
    found = [
        SimulatedTarget(
            pod.name,
            "vllm",
            f"/replica/{pod.name}/metrics",
            fleet.entity(EntityKind.REPLICA, pod.name, pod.service.namespace),
            _replica_labels(fleet, pod.slot),
        )
        for pod in fleet.pods.pods
        if pod.exists and pod.ever_ready
    ]
    for node, name in enumerate(fleet.nodes.names):
        entity, labels = fleet.entity(EntityKind.NODE, name), {"node": name, "pool": fleet.nodes.pool[node]}
        found.append(SimulatedTarget(f"dcgm-{name}", "dcgm", f"/dcgm/{name}/metrics", entity, labels))
        found.append(SimulatedTarget(name, "node_exporter", f"/node/{name}/metrics", entity, labels))
    cluster = fleet.entity(EntityKind.CLUSTER, fleet.spec.cluster)
    found.append(SimulatedTarget("kube-state", "kube_state_metrics", "/kube-state/metrics", cluster, {}))
    return found


def _replica_labels(fleet: Fleet, slot: int) -> dict[str, str]:
    pod = fleet.pods.pods[slot]
    found = {
        "pod": pod.name,
        "service": pod.service.name,
        "model": pod.service.engine.model,
        "workload": pod.service.name,
        "version": "v1",
        "tensor_parallel": str(pod.service.tensor_parallel),
    }
    if pod.node is not None:
        found |= {"node": fleet.nodes.names[pod.node], "gpu_type": fleet.gpus.type_name[pod.gpus[0]]}
    return found


class Pages:
    """Answers for every target of one fleet. None is a refused connection."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._vllm, self._dcgm, self._node, self._kube = VllmPages(), DcgmPages(), NodePages(), KubeStatePage()
        self._by_adapter: dict[str, Callable[[str], bytes]] = {
            "vllm": self._replica,
            "dcgm": lambda name: self._dcgm.page(fleet, fleet.nodes.names.index(name.removeprefix("dcgm-"))),
            "node_exporter": lambda name: self._node.page(fleet, fleet.nodes.names.index(name)),
            "kube_state_metrics": lambda _: self._kube.page(fleet),
        }

    def up(self, target: SimulatedTarget) -> bool:
        """True when the target's port is open."""
        if target.adapter == "vllm":
            pod = self.fleet.pod_named(target.name)
            return pod is not None and pod.ready
        return target.name not in self.fleet.exporters_down

    def page(self, target: SimulatedTarget) -> bytes | None:
        """The page of a target, None when nothing listens."""
        return self._by_adapter[target.adapter](target.name) if self.up(target) else None

    def probe(self, target: SimulatedTarget) -> tuple[int | None, float | None]:
        """What ``GET /health`` and ``GET /load`` of an engine say: status and requests in flight."""
        if target.adapter != "vllm" or not self.up(target):
            return None, None
        pod = self.fleet.pod_named(target.name)
        return 200, None if pod is None else float(self.fleet.bank.in_flight[pod.slot])

    def all(self) -> dict[str, bytes | None]:
        """Every target's page by name."""
        return {target.name: self.page(target) for target in targets(self.fleet)}

    def _replica(self, name: str) -> bytes:
        pod = self.fleet.pod_named(name)
        if pod is None:
            raise KeyError(name)
        return self._vllm.page(self.fleet, pod)


def pages(fleet: Fleet) -> dict[str, bytes | None]:
    """Every target's page by name, None where the connection would be refused. Keep a ``Pages`` for speed."""
    return Pages(fleet).all()
