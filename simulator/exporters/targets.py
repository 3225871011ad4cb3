"""The fleet's scrape targets and their current responses, without any network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.model import EntityKind, EntityRef
from simulator.cluster.pods import Pod
from simulator.exporters import (
    ENGINE_PAGES,
    CadvisorPages,
    DcgmPages,
    IstioPage,
    KubeStatePage,
    NodePages,
    NpuPages,
    ProbePages,
    SdkPages,
)
from simulator.exporters.responses import PATIENCE_SECONDS, Answer, Status, host_status, transfer_seconds
from simulator.fleet import Fleet

__all__ = ["Answer", "Pages", "SimulatedTarget", "Status", "pages", "targets"]

# Pages without a packaged adapter: served, but listed only on request.
_READ = frozenset({"vllm", "dcgm", "node_exporter", "cadvisor", "kube_state_metrics", "probe", "sdk"})


@dataclass(frozen=True, slots=True)
class SimulatedTarget:
    """One page. ``path`` is its URL path; ``labels`` give the topology.

    ``node`` is the index of its node, None for the control plane and for a pod without a node. ``slot`` is the index of
    the engine, None for exporters; ``service`` that of its service.
    """

    name: str
    adapter: str
    path: str
    entity: EntityRef
    labels: Mapping[str, str]
    node: int | None = None
    slot: int | None = None
    service: int | None = None

    def as_config(self, url: str) -> dict[str, Any]:
        """Returns the target in the format of the configuration."""
        entity = {"kind": self.entity.kind.value, "namespace": self.entity.namespace, "name": self.entity.name}
        return {
            "name": self.name,
            "adapter": self.adapter,
            "url": url,
            "entity": {key: value for key, value in entity.items() if value is not None},
            "labels": dict(self.labels),
        }


def targets(fleet: Fleet, adapters: Collection[str] | None = None) -> list[SimulatedTarget]:
    """Returns replicas that have served at least once, then node, device and cluster exporters.

    A replica in its first start-up is not listed yet: its port opens when the model is loaded. ``adapters`` limits the
    targets to these adapters, None to the packaged ones. Targets that are not listed are served as well.
    """
    read = _READ if adapters is None else adapters
    return [target for target in every_target(fleet) if target.adapter in read]


def every_target(fleet: Fleet) -> Iterator[SimulatedTarget]:
    """Yields all targets of a fleet, with or without an adapter."""
    for pod in fleet.pods.pods:
        if pod.exists and pod.ever_ready:
            entity = fleet.entity(EntityKind.REPLICA, pod.name, pod.service.namespace)
            path, labels = f"/replica/{pod.name}/metrics", _replica_labels(fleet, pod)
            yield SimulatedTarget(pod.name, pod.service.engine_kind, path, entity, labels, pod.node, pod.slot)
    devices = _device_exporters(fleet)
    for node, name in enumerate(fleet.nodes.names):
        entity, labels = fleet.entity(EntityKind.NODE, name), _node_labels(fleet, node)
        short, adapter = devices[fleet.nodes.pool[node]]
        yield SimulatedTarget(f"{short}-{name}", adapter, f"/{short}/{name}/metrics", entity, labels, node)
        yield SimulatedTarget(name, "node_exporter", f"/node/{name}/metrics", entity, labels, node)
        yield SimulatedTarget(f"cadvisor-{name}", "cadvisor", f"/cadvisor/{name}/metrics", entity, labels, node)
    cluster = fleet.entity(EntityKind.CLUSTER, fleet.spec.cluster)
    yield SimulatedTarget("kube-state", "kube_state_metrics", "/kube-state/metrics", cluster, {})
    yield SimulatedTarget("istio-gateway", "istio", "/istio-gateway/metrics", cluster, {})
    for adapter in ("probe", "sdk"):
        for place, service in enumerate(fleet.spec.services):
            name, entity = (
                f"{adapter}-{service.name}",
                fleet.entity(EntityKind.SERVICE, service.name, service.namespace),
            )
            yield SimulatedTarget(name, adapter, f"/{adapter}/{service.name}/metrics", entity, {}, service=place)


def _device_exporters(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """Returns the short name and adapter of each pool's device exporter."""
    huawei = {pool.name for pool in fleet.spec.pools if "Ascend" in pool.gpu_type}
    return {
        pool.name: ("npu", "npu_exporter") if pool.name in huawei else ("dcgm", "dcgm") for pool in fleet.spec.pools
    }


def _node_labels(fleet: Fleet, node: int) -> dict[str, str]:
    hosts = fleet.nodes
    return {
        "node": hosts.names[node],
        "pool": hosts.pool[node],
        "switch": hosts.switch[node],
        "storage": hosts.storage[node],
    }


def _replica_labels(fleet: Fleet, pod: Pod) -> dict[str, str]:
    result = {
        "pod": pod.name,
        "service": pod.service.name,
        "model": pod.service.engine.model,
        "workload": pod.service.name,
        "version": pod.revision,
        "tensor_parallel": str(pod.service.tensor_parallel),
    }
    if pod.node is not None:
        result |= {"node": fleet.nodes.names[pod.node], "gpu_type": fleet.gpus.type_name[pod.gpus[0]]}
    return result


class Pages:
    """Responses of every target of one fleet, as for a client in the cluster's network."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._engines = {kind: written() for kind, written in ENGINE_PAGES.items()}
        dcgm, npu, node, cadvisor = DcgmPages(), NpuPages(), NodePages(), CadvisorPages()
        kube, istio = KubeStatePage(), IstioPage()
        self._hosts: dict[str, Callable[[Fleet, int], bytes]] = {
            "dcgm": dcgm.page,
            "npu_exporter": npu.page,
            "node_exporter": node.page,
            "cadvisor": cadvisor.page,
        }
        self._cluster: dict[str, Callable[[Fleet], bytes]] = {"kube_state_metrics": kube.page, "istio": istio.page}
        probe, sdk = ProbePages(), SdkPages()
        self._services: dict[str, Callable[[Fleet, int], bytes]] = {"probe": probe.page, "sdk": sdk.page}
        self._frozen: dict[str, bytes] = {}

    def answer(self, target: SimulatedTarget) -> Answer:
        """Returns the current response to a scrape of the target."""
        status = self.status(target)
        if status is Status.TIMEOUT:
            return Answer(status, None, PATIENCE_SECONDS)
        seconds = transfer_seconds(0)
        if status is Status.REFUSED:
            return Answer(status, None, seconds)
        health, load = self._probed(target, status)
        if status is not Status.OK:
            return Answer(status, None, seconds, health, load)
        body = self._body(target)
        seconds = transfer_seconds(len(body), self._loss_ratio(target), f"{target.name}@{self.fleet.at}")
        if seconds > PATIENCE_SECONDS:
            return Answer(Status.TIMEOUT, None, PATIENCE_SECONDS)
        return Answer(status, body, seconds, health, load)

    def up(self, target: SimulatedTarget) -> bool:
        """Returns True if the target's port accepts connections."""
        return self.status(target) is not Status.REFUSED

    def page(self, target: SimulatedTarget) -> bytes | None:
        """Returns the page of a target, None without one."""
        return self.answer(target).body

    def probe(self, target: SimulatedTarget) -> tuple[int | None, float | None]:
        """Returns the responses of an engine to ``GET /health`` and ``GET /load``: status, requests in flight."""
        status = self.status(target)
        return (None, None) if status in (Status.REFUSED, Status.TIMEOUT) else self._probed(target, status)

    def all(self) -> dict[str, bytes | None]:
        """Returns every listed target's page by name."""
        return {target.name: self.page(target) for target in targets(self.fleet)}

    def status(self, target: SimulatedTarget) -> Status:
        """Returns the connection status of the target."""
        fleet, slot = self.fleet, target.slot
        # Probes run outside the clusters, so their exporters always respond.
        status = Status.OK if target.adapter == "probe" else host_status(fleet, target.node)
        if status is not Status.OK:
            return status
        if slot is None:
            return Status.REFUSED if target.name in fleet.exporters_down else Status.OK
        if not fleet.pods.pods[slot].ready:
            return Status.REFUSED
        return Status.HTTP_503 if fleet.effects.slots.core_dead[slot] > 0.5 else Status.OK

    def _probed(self, target: SimulatedTarget, status: Status) -> tuple[int | None, float | None]:
        """Returns health status and load. A hung or sleeping engine is healthy; only vLLM reports its load."""
        if target.slot is None:
            return None, None
        load = float(self.fleet.bank.in_flight[target.slot]) if target.adapter == "vllm" else None
        return (503 if status is Status.HTTP_503 else 200), load

    def _loss_ratio(self, target: SimulatedTarget) -> float:
        return 0.0 if target.node is None else float(self.fleet.effects.nodes.packet_loss_ratio[target.node])

    def _body(self, target: SimulatedTarget) -> bytes:
        if not self._stands_still(target):
            self._frozen.pop(target.name, None)
            return self._written(target)
        if target.name not in self._frozen:
            self._frozen[target.name] = self._written(target)
        return self._frozen[target.name]

    def _stands_still(self, target: SimulatedTarget) -> bool:
        return target.slot is not None and self.fleet.effects.slots.page_frozen[target.slot] > 0.5

    def _written(self, target: SimulatedTarget) -> bytes:
        fleet = self.fleet
        if target.slot is not None:
            return self._engines[target.adapter].page(fleet, fleet.pods.pods[target.slot])
        if target.node is not None:
            return self._hosts[target.adapter](fleet, target.node)
        if target.service is not None:
            return self._services[target.adapter](fleet, target.service)
        return self._cluster[target.adapter](fleet)


def pages(fleet: Fleet) -> dict[str, bytes | None]:
    """Returns every listed target's page by name, None without a page. Reuse a ``Pages`` for speed."""
    return Pages(fleet).all()
