"""Canonical signals straight from the fleet's arrays: what collecting its pages would give, without pages.

For weeks of quiet time and for big histories, where writing and parsing text would take most of the
time. Left out on purpose, because it only exists on a page or on the way to one: pages that stand
still or spell names as another release does, lost packets, the exact size of a page (``target_samples``
is 1) and the time of a scrape (a constant), engines that say less than vLLM, container signals, and what
the gateway says. Devices and pods are remembered as collecting remembers them: a device that is gone
stays as a row that is not seen, a pod for 15 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, Statuses
from outrider.ports import Collected
from simulator import host_sheets as hosts
from simulator.fleet import Fleet
from simulator.replica_sheet import OWN, counters_of, replica_sheet, service_sheet
from simulator.sheets import REMEMBER_SECONDS, Grown, Ledger, Reading, Sheet, batches_of, refs

SCRAPE_SECONDS = 0.003
_REFUSED, _TIMEOUT, _HTTP_STATUS = 1.0, 2.0, 5.0  # target_failure_code of the catalogue
_ABOUT = ("target_up", "target_scrape_seconds", "target_samples", "target_failure_code")


class Sampler:
    """Reads a fleet as a platform would, one round a call. Deltas and rates are about the time since the last round."""

    def __init__(self, fleet: Fleet) -> None:
        """The first round has no increases, as the first scrape of a page has none."""
        self._fleet = fleet
        size, slots = fleet.nodes.size, len(fleet.pods.pods)
        self._of_slot = np.array([fleet.spec.services.index(pod.service) for pod in fleet.pods.pods], dtype=np.int64)
        self._longest = np.array([pod.service.engine.max_model_length for pod in fleet.pods.pods], dtype=np.float64)
        self._replicas, self._gpus = Ledger(slots), Ledger(fleet.gpus.size)
        self._nodes, self._devices, self._pods, self._cluster = Ledger(size), Ledger(size), Ledger(slots), Ledger(1)
        self._names = _Names(fleet)
        self._pod_seen = np.full(slots, -np.inf)
        self._gpu_known = np.zeros(fleet.gpus.size, dtype=bool)
        self._told = fleet.journal.newest

    def collected(self, at: datetime | None = None) -> Collected:
        """One round with the events since the last one."""
        return Collected(tuple(self.batches(at)), self.events())

    def events(self) -> tuple[Event, ...]:
        """What the journal tells since the last call."""
        lines = self._fleet.journal.after(self._told)
        self._told = self._fleet.journal.newest
        return tuple(line.event for line in lines)

    def batches(self, at: datetime | None = None) -> list[SampleBatch]:
        """One round at an instant, by default the fleet's own: replicas, devices, hosts, cluster, services, targets."""
        now = self._fleet.now if at is None else at
        return [
            *self._of_replicas(now),
            *self._of_devices(now),
            *self._of_hosts(now),
            *self._of_cluster(now),
        ]

    # --- replicas and services --------------------------------------------------------------------------

    def _of_replicas(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, lever = self._fleet, self._fleet.levers.slots
        pods = fleet.pods.pods
        listed = np.array([pod.exists and pod.ever_ready for pod in pods])
        self._replicas.forget(np.flatnonzero(~listed))
        node = np.array([-1 if pod.node is None else pod.node for pod in pods])
        reachable = self._reachable(node)
        alive = np.array([pod.ready for pod in pods])
        dead = lever.core_dead > 0.5
        up = listed & reachable & alive & ~dead
        code = np.where(~reachable, _TIMEOUT, np.where(~alive, _REFUSED, np.where(dead, _HTTP_STATUS, 0.0)))
        counters = counters_of(fleet.bank.counters, self._longest)
        started = np.round([pod.started_at for pod in pods], 2)
        grown = self._replicas.compare(at.timestamp(), up, counters, started)
        about = {
            "engine_up": up.astype(np.float64),
            "engine_health_ok": up.astype(np.float64),
            "engine_inflight_requests": np.where(up, fleet.bank.in_flight, np.nan),
            **_about(up, code),
        }
        sheet = replica_sheet(fleet, grown, about)
        yield from batches_of(sheet, Reading(self._names.replicas, listed, up, grown.seconds, grown.status), at, OWN)
        yield _watched(self._names.replica_targets, listed, about, at)
        yield from self._of_services(sheet, listed, up, grown, at)
        yield from self._reserved(up, at)

    def _of_services(
        self, replicas: Sheet, listed: np.ndarray, up: np.ndarray, grown: Grown, at: datetime
    ) -> Iterator[SampleBatch]:
        sheet, seconds, status = service_sheet(self._fleet, replicas, self._of_slot, listed, up, grown)
        known = np.bincount(self._of_slot[listed], minlength=status.size) > 0
        yield from batches_of(
            sheet, Reading(self._names.services, known, np.ones(status.size, dtype=bool), seconds, status), at
        )

    def _reserved(self, up: np.ndarray, at: datetime) -> Iterator[SampleBatch]:
        """What the engines that answered hold on their devices."""
        owner = self._fleet.pods.owner
        held = (owner >= 0) & up[np.maximum(owner, 0)]
        none = np.zeros(owner.size, dtype=np.uint8)
        reading = Reading(self._names.gpus, held, held, np.full(owner.size, np.nan), none)
        yield from batches_of(hosts.reserved_sheet(self._fleet), reading, at)

    # --- devices and hosts ------------------------------------------------------------------------------

    def _of_devices(self, at: datetime) -> Iterator[SampleBatch]:
        fleet = self._fleet
        up, about = self._exporters([f"dcgm-{name}" for name in fleet.nodes.names])
        of_node = fleet.gpus.node
        seen = up[of_node] & fleet.gpus.visible
        self._gpu_known |= seen
        self._gpus.forget(np.flatnonzero(up[of_node] & ~fleet.gpus.visible))
        grown = self._gpus.compare(at.timestamp(), seen, hosts.gpu_counters(fleet), identity=fleet.pods.owner)
        devices = self._devices.compare(at.timestamp(), up, np.zeros((up.size, 1)))
        recent = up | (at.timestamp() - np.nan_to_num(self._devices.at, nan=-np.inf) <= REMEMBER_SECONDS)
        known = self._gpu_known & recent[of_node]
        seconds = np.where(up[of_node], devices.seconds[of_node], np.nan)
        reading = Reading(self._names.gpus, known, up[of_node], seconds, grown.status)
        yield from batches_of(hosts.gpu_sheet(fleet, grown), reading, at)
        everyone = np.ones(up.size, dtype=bool)
        of_nodes = Reading(self._names.nodes, everyone, up, devices.seconds, devices.status)
        yield from batches_of(hosts.device_node_sheet(fleet, about), of_nodes, at, _ABOUT)
        yield _watched(self._names.device_targets, everyone, about, at)

    def _of_hosts(self, at: datetime) -> Iterator[SampleBatch]:
        fleet = self._fleet
        up, about = self._exporters(fleet.nodes.names)
        grown = self._nodes.compare(at.timestamp(), up, hosts.node_counters(fleet), fleet.nodes.boot)
        everyone = np.ones(up.size, dtype=bool)
        reading = Reading(self._names.nodes, everyone, up, grown.seconds, grown.status)
        yield from batches_of(hosts.node_sheet(fleet, grown, about), reading, at, _ABOUT)
        recent = up | (at.timestamp() - np.nan_to_num(self._nodes.at, nan=-np.inf) <= REMEMBER_SECONDS)
        ports = Reading(self._names.ports, recent, up, grown.seconds, grown.status)
        yield from batches_of(hosts.port_sheet(fleet, grown), ports, at)
        yield _watched(self._names.node_targets, everyone, about, at)

    # --- cluster ----------------------------------------------------------------------------------------

    def _of_cluster(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, now = self._fleet, at.timestamp()
        up, about = self._exporters(["kube-state"], on_nodes=False)
        cluster = self._cluster.compare(now, up, np.zeros((1, 1)))
        exists = np.array([pod.exists for pod in fleet.pods.pods])
        shown = exists & up[0]
        self._pod_seen = np.where(shown, now, self._pod_seen)
        generation = np.array([pod.generation for pod in fleet.pods.pods])
        grown = self._pods.compare(now, shown, hosts.pod_restarts(fleet), identity=generation)
        gone = ~exists & (now - self._pod_seen > REMEMBER_SECONDS)
        self._pods.forget(np.flatnonzero(~exists))
        remembered = (now - self._pod_seen <= REMEMBER_SECONDS) & ~gone
        recent = bool(up[0]) or bool(now - self._cluster.at[0] <= REMEMBER_SECONDS)
        if recent:
            all_up = np.full(fleet.nodes.size, up[0])
            yield from batches_of(
                hosts.kubernetes_node_sheet(fleet),
                _plain(self._names.nodes, all_up, float(cluster.seconds[0])),
                at,
            )
            pods = Reading(self._names.pods, remembered, shown, grown.seconds, grown.status)
            yield from batches_of(hosts.pod_sheet(fleet, grown), pods, at)
            per_service = np.full(len(fleet.spec.services), up[0])
            workloads = _plain(self._names.workloads, per_service, float(cluster.seconds[0]))
            yield from batches_of(hosts.workload_sheet(fleet, self._of_slot), workloads, at)
        own = _plain(self._names.cluster, up, float(cluster.seconds[0]))
        yield from batches_of(Sheet(EntityKind.CLUSTER, "kube-state", about, {}), own, at, _ABOUT)
        yield _watched(self._names.cluster_targets, np.ones(1, dtype=bool), about, at)

    # --- who answers ------------------------------------------------------------------------------------

    def _reachable(self, node: np.ndarray) -> np.ndarray:
        """Whether connections to these nodes stand; -1 is no node at all."""
        levers = self._fleet.levers
        seen = levers.cluster.alive[0] > 0.5 and levers.cluster.seen[0] > 0.5
        there = (levers.nodes.alive > 0.5) & (levers.nodes.reachable > 0.5)
        return np.asarray((there[np.maximum(node, 0)] | (node < 0)) & seen)

    def _exporters(self, names: list[str], on_nodes: bool = True) -> tuple[np.ndarray, dict[str, Floats]]:
        """Which of the exporters answer, and what is said of the attempts."""
        open_ports = np.array([name not in self._fleet.exporters_down for name in names])
        reachable = self._reachable(np.arange(len(names)) if on_nodes else np.full(len(names), -1))
        up = open_ports & reachable
        return up, _about(up, np.where(~reachable, _TIMEOUT, np.where(open_ports, 0.0, _REFUSED)))


class _Names:
    """The entities of every row, made once."""

    def __init__(self, fleet: Fleet) -> None:
        cluster, pods, nodes = fleet.spec.cluster, fleet.pods.pods, fleet.nodes.names

        def of(kind: EntityKind, names: list[tuple[str | None, str]]) -> np.ndarray:
            return refs([EntityRef(cluster, kind, namespace, name) for namespace, name in names])

        placed: list[tuple[str | None, str]] = [(pod.service.namespace, pod.name) for pod in pods]
        services: list[tuple[str | None, str]] = [(one.namespace, one.name) for one in fleet.spec.services]
        self.replicas, self.pods = of(EntityKind.REPLICA, placed), of(EntityKind.POD, placed)
        self.services, self.workloads = of(EntityKind.SERVICE, services), of(EntityKind.WORKLOAD, services)
        self.gpus = of(EntityKind.GPU, [(None, fleet.gpu_uuid(gpu)) for gpu in range(fleet.gpus.size)])
        self.nodes = of(EntityKind.NODE, [(None, name) for name in nodes])
        self.ports = of(EntityKind.PORT, [(None, f"{name}/mlx5_0/1") for name in nodes])
        self.cluster = of(EntityKind.CLUSTER, [(None, cluster)])
        self.replica_targets = of(EntityKind.WORKLOAD, [("targets", pod.name) for pod in pods])
        self.device_targets = of(EntityKind.WORKLOAD, [("targets", f"dcgm-{name}") for name in nodes])
        self.node_targets = of(EntityKind.WORKLOAD, [("targets", name) for name in nodes])
        self.cluster_targets = of(EntityKind.WORKLOAD, [("targets", "kube-state")])


def _about(up: np.ndarray, code: Floats) -> dict[str, Floats]:
    return {
        "target_up": up.astype(np.float64),
        "target_scrape_seconds": np.full(up.size, SCRAPE_SECONDS),
        "target_samples": np.where(up, 1.0, np.nan),
        "target_failure_code": code,
    }


def _plain(entities: np.ndarray, up: np.ndarray, seconds: float) -> Reading:
    """Rows that are all read from one page."""
    status: Statuses = np.zeros(up.size, dtype=np.uint8)
    return Reading(entities, np.ones(up.size, dtype=bool), up, np.full(up.size, seconds), status)


def _watched(entities: np.ndarray, known: np.ndarray, about: dict[str, Floats], at: datetime) -> SampleBatch:
    """What is said of each target on its monitoring entity."""
    cut = {name: about[name] for name in _ABOUT}
    up = np.ones(known.size, dtype=bool)
    none = np.zeros(known.size, dtype=np.uint8)
    reading = Reading(entities, known, up, np.full(known.size, np.nan), none)
    (batch,) = batches_of(Sheet(EntityKind.WORKLOAD, "targets", cut, {}), reading, at)
    return batch
