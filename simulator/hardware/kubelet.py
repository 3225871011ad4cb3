"""Node lifecycle of Kubernetes: silent nodes become NotReady; their pods, and pods on full disks, are evicted."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from outrider.model import EntityKind, EntityRef
from simulator.cluster.load_balancer import Router
from simulator.cluster.pod import Phase, Pod
from simulator.cluster.pods import Pods
from simulator.effects import FleetEffects
from simulator.hardware.containers import Containers
from simulator.hardware.gpus import Gpus
from simulator.hardware.nodes import Nodes
from simulator.journal import Journal, JournalSource

# kube-controller-manager's node-monitor-grace-period until Kubernetes 1.32; the toleration that admission gives pods.
SILENT_SECONDS = 40.0
TOLERATION_SECONDS = 300.0
# The kubelet's eviction-pressure-transition-period, and the pause between two evictions.
EVICTION_AFTER_SECONDS, EVICTION_EVERY_SECONDS = 60.0, 120.0
HOST_GONE = "host-gone"
OOM_KILLED = "OOMKilled"


class HostedFleet(Protocol):
    """The parts of a fleet that its hosts read and change, and what they do to its pods."""

    journal: Journal
    gpus: Gpus
    nodes: Nodes
    pods: Pods
    router: Router
    effects: FleetEffects
    containers: Containers

    @property
    def at(self) -> float:
        """The fleet's time in unix seconds."""
        ...

    def entity(self, kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
        """Returns an entity of the fleet's cluster."""
        ...

    def crash(self, slot: int, reason: str, *, held: bool = True, ended: str = "Error") -> None:
        """Ends the engine process of a slot."""
        ...

    def restart(self, slot: int) -> None:
        """Deletes the pod of a slot; its controller creates a new one."""
        ...


class Kubelets:
    """Watches the hosts of a fleet. ``pod_ready`` is the Ready condition of each slot's pod, bool of shape (slots,)."""

    def __init__(self, fleet: HostedFleet) -> None:
        self._fleet = fleet
        nodes = fleet.nodes.size
        self._alive = np.ones(nodes, dtype=bool)
        self._silent_since = np.full(nodes, np.inf)
        self._full_since = np.full(nodes, np.inf)
        self._evict_at = np.full(nodes, np.inf)
        self.pod_ready = np.zeros(fleet.pods.ready.size, dtype=bool)

    def advance(self) -> None:
        """Checks every node once; called every tick."""
        fleet = self._fleet
        effects = fleet.effects.nodes
        alive = effects.alive > 0.5
        for node in np.flatnonzero(self._alive & ~alive).tolist():
            self._stop(node)
        for node in np.flatnonzero(alive & ~self._alive).tolist():
            self._boot(node)
        self._alive = alive
        self._heartbeats(~(alive & (effects.reachable > 0.5)))
        self._disks()
        self._memory()
        fleet.pods.blocked = ~fleet.nodes.ready | fleet.nodes.disk_pressure
        self.pod_ready = fleet.router.believed_up & fleet.pods.ready
        placed = fleet.pods.node_of_slot >= 0
        self.pod_ready &= ~placed | fleet.nodes.ready[np.maximum(fleet.pods.node_of_slot, 0)]

    def _stop(self, node: int) -> None:
        """Stops a host: every process on it ends at once."""
        fleet = self._fleet
        fleet.pods.dark[node] = True
        for pod in fleet.pods.on_node(node):
            if pod.phase is not Phase.CRASHED:
                fleet.crash(pod.slot, HOST_GONE)

    def _boot(self, node: int) -> None:
        """Boots a host; its kubelet restarts the containers that are still assigned to it."""
        fleet = self._fleet
        fleet.pods.dark[node] = False
        fleet.nodes.reboot(node, fleet.at)
        fleet.gpus.reload(fleet.gpus.node == node)
        self._log_event(node, "Rebooted", f"Node {fleet.nodes.names[node]} has been rebooted", "Warning")
        for pod in fleet.pods.on_node(node):
            fleet.pods.cure(pod.slot, pod.generation, HOST_GONE, fleet.at)

    def _heartbeats(self, silent: np.ndarray) -> None:
        fleet, hosts = self._fleet, self._fleet.nodes
        if not silent.any() and hosts.ready.all():
            return
        self._silent_since = np.where(silent, np.minimum(self._silent_since, fleet.at), np.inf)
        quiet = fleet.at - self._silent_since
        lost = hosts.ready & (quiet >= SILENT_SECONDS)
        back = ~hosts.ready & ~silent
        hosts.ready = (hosts.ready | back) & ~lost
        for node in np.flatnonzero(lost).tolist():
            self._log_event(node, "NodeNotReady", f"Node {hosts.names[node]} status is now: NodeNotReady")
        for node in np.flatnonzero(back).tolist():
            self._log_event(node, "NodeReady", f"Node {hosts.names[node]} status is now: NodeReady")
        for node in np.flatnonzero(quiet >= SILENT_SECONDS + TOLERATION_SECONDS).tolist():
            for pod in fleet.pods.on_node(node):
                fleet.pods.write(pod, fleet.at, "TaintManagerEviction", "Marking for deletion Pod " + pod.name)
                fleet.restart(pod.slot)

    def _disks(self) -> None:
        """Sets disk pressure: the host takes no new pods and evicts one after another."""
        fleet, hosts = self._fleet, self._fleet.nodes
        full = hosts.disk_pressure & hosts.ready
        if not full.any() and np.isinf(self._full_since).all():
            return
        for node in np.flatnonzero(full & np.isinf(self._full_since)).tolist():
            self._full_since[node], self._evict_at[node] = fleet.at, fleet.at + EVICTION_AFTER_SECONDS
            self._log_event(
                node, "NodeHasDiskPressure", f"Node {hosts.names[node]} status is now: NodeHasDiskPressure", "Warning"
            )
        for node in np.flatnonzero(~full & np.isfinite(self._full_since)).tolist():
            self._full_since[node] = self._evict_at[node] = np.inf
            self._log_event(
                node, "NodeHasNoDiskPressure", f"Node {hosts.names[node]} status is now: NodeHasNoDiskPressure"
            )
        for node in np.flatnonzero(fleet.at >= self._evict_at).tolist():
            self._evict_at[node] = fleet.at + EVICTION_EVERY_SECONDS
            for pod in fleet.pods.on_node(node)[:1]:
                text = "The node was low on resource: ephemeral-storage. Threshold quantity: 10%."
                fleet.pods.write(pod, fleet.at, "Evicted", text, "Warning")
                fleet.restart(pod.slot)

    def _memory(self) -> None:
        """Kills processes above their container's memory limit; the kubelet restarts them."""
        fleet = self._fleet
        over = fleet.containers.working_set_bytes > fleet.containers.memory_limit_bytes
        for slot in np.flatnonzero(over & (fleet.pods.loaded_ratio > 0)).tolist():
            self.kill_for_memory(fleet.pods.pods[slot])

    def kill_for_memory(self, pod: Pod) -> None:
        """OOM-kills a pod's engine and logs it."""
        fleet = self._fleet
        node = pod.node or 0
        fleet.nodes.oom_kills[node] += 1
        fleet.containers.oom_kills[pod.slot] += 1
        limit = fleet.containers.memory_limit_bytes[pod.slot] / 1024
        number = 20_000 + pod.slot * 7 + pod.process
        text = (
            f"Memory cgroup out of memory: Killed process {number} (VLLM::EngineCor) total-vm:{limit * 3:.0f}kB, "
            f"anon-rss:{limit:.0f}kB, file-rss:0kB, shmem-rss:0kB, UID:0 oom_score_adj:-997"
        )
        where = fleet.entity(EntityKind.POD, pod.name, pod.service.namespace)
        fleet.journal.write(fleet.at, JournalSource.KERNEL, where, "oom-kill", text, pod=pod.name)
        self._log_event(node, "OOMKilling", text, "Warning")
        fleet.crash(pod.slot, OOM_KILLED, held=False, ended=OOM_KILLED)

    def _log_event(self, node: int, code: str, text: str, kind: str = "Normal") -> None:
        fleet = self._fleet
        about = fleet.entity(EntityKind.NODE, fleet.nodes.names[node])
        fleet.journal.write(fleet.at, JournalSource.KUBERNETES, about, code, text, type=kind)
