"""Canonical signals directly from the fleet's arrays: the values of collected exposition pages, without pages.

For weeks without faults and for large histories, where writing and parsing text would take most of the time.

Omitted, because it only exists on a page or in transit: frozen pages, metric names of other releases, packet loss, page
size (``target_samples`` is 1), scrape duration (a constant), trust (``target_trust_code``), gateway metrics, tokens of
tenants, and limits from the control plane. Every replica is read as vLLM; nodes with devices of other vendors than
NVIDIA have no device rows.

Missing entities are handled as in collecting: a lost device stays as a row marked as not seen; pods and containers
stay for 15 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from benchmarks.fleet import cluster_sheets, host_sheets
from benchmarks.fleet.blackbox_sheet import BlackboxSheets
from benchmarks.fleet.replica_sheet import OWN, counters_of, replica_sheet, service_sheet
from benchmarks.fleet.sheets import REMEMBER_SECONDS, Increases, LastCounters, Reading, Sheet, batches_of, refs
from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, Statuses
from outrider.ports import Collected
from simulator.exporters import cadvisor, dcgm, node
from simulator.exporters.xids import XidWindow
from simulator.fleet import Fleet

SCRAPE_SECONDS = 0.003
_REFUSED, _TIMEOUT, _HTTP_STATUS = 1.0, 2.0, 5.0  # target_failure_code in the signal catalog
_ABOUT = ("target_up", "target_scrape_seconds", "target_samples", "target_failure_code")


class Sampler:
    """Reads a fleet as a platform would, one cycle per call. Increases and rates cover the time since the last call."""

    def __init__(self, fleet: Fleet) -> None:
        """The first cycle has no increases, like the first scrape of a page."""
        self._fleet = fleet
        size, slots = fleet.nodes.size, len(fleet.pods.pods)
        self._of_slot = fleet.pods.service_of_slot
        self._longest = np.array([pod.service.engine.max_model_length for pod in fleet.pods.pods], dtype=np.float64)
        self._replicas, self._gpus, self._devices = (
            LastCounters(slots),
            LastCounters(fleet.gpus.size),
            LastCounters(size),
        )
        self._nodes, self._kubelets, self._containers = LastCounters(size), LastCounters(size), LastCounters(slots)
        self._pods, self._cluster = LastCounters(slots), LastCounters(1)
        self._names = _Names(fleet)
        self._blackbox = BlackboxSheets(fleet)
        self._seen_pods, self._seen_containers = _RecentRows(slots), _RecentRows(slots)
        self._seen_gpus = np.zeros(fleet.gpus.size, dtype=bool)
        self._nvidia = np.array([vendor == "nvidia" for vendor in fleet.gpus.vendor])
        self._codes = XidWindow()
        self._reported = fleet.journal.newest

    def collected(self, at: datetime | None = None) -> Collected:
        """Returns one cycle with the events since the last one."""
        return Collected(tuple(self.batches(at)), self.events())

    def events(self) -> tuple[Event, ...]:
        """Returns journal entries since the last call, as events."""
        lines = self._fleet.journal.after(self._reported)
        self._reported = self._fleet.journal.newest
        return tuple(line.event for line in lines)

    def batches(self, at: datetime | None = None) -> list[SampleBatch]:
        """Returns one cycle, by default at the fleet's time: replicas, devices, hosts, cluster, services, targets."""
        now = self._fleet.now if at is None else at
        return [
            *self._of_replicas(now),
            *self._of_devices(now),
            *self._of_hosts(now),
            *self._of_containers(now),
            *self._of_cluster(now),
            *self._of_blackbox(now),
        ]

    # --- replicas and services --------------------------------------------------------------------------

    def _of_replicas(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, pods = self._fleet, self._fleet.pods
        listed = pods.existing & np.array([pod.ever_ready for pod in pods.pods])
        self._replicas.forget(np.flatnonzero(~listed))
        reachable, dead = self._reachable(pods.node_of_slot), fleet.effects.slots.core_dead > 0.5
        up = listed & reachable & pods.ready & ~dead
        code = np.where(~reachable, _TIMEOUT, np.where(~pods.ready, _REFUSED, np.where(dead, _HTTP_STATUS, 0.0)))
        counters = counters_of(fleet.bank.counters, self._longest)
        started = np.round([pod.started_at for pod in pods.pods], 2)
        grown = self._replicas.compare(at.timestamp(), up, counters, started)
        about = {
            "engine_up": up.astype(np.float64),
            "engine_health_ok": up.astype(np.float64),
            "engine_inflight_requests": np.where(up | (reachable & pods.ready), fleet.bank.in_flight, np.nan),
            **_about(up, code),
        }
        sheet = replica_sheet(fleet, grown, about)
        yield from batches_of(sheet, Reading(self._names.replicas, listed, up, grown.seconds, grown.status), at, OWN)
        yield from _watched(self._names.replica_targets, listed, about, at)
        yield from self._of_services(sheet, listed, up, grown, at)
        yield from self._reserved(up, at)

    def _of_services(
        self, replicas: Sheet, listed: np.ndarray, up: np.ndarray, grown: Increases, at: datetime
    ) -> Iterator[SampleBatch]:
        sheet, seconds, status = service_sheet(self._fleet, replicas, self._of_slot, listed, up, grown)
        known = np.bincount(self._of_slot[listed], minlength=status.size) > 0
        yield from batches_of(
            sheet, Reading(self._names.services, known, np.ones(status.size, dtype=bool), seconds, status), at
        )

    def _reserved(self, up: np.ndarray, at: datetime) -> Iterator[SampleBatch]:
        """Yields device memory reserved by the engines that responded."""
        owner = self._fleet.pods.owner
        held = (owner >= 0) & up[np.maximum(owner, 0)]
        none = np.zeros(owner.size, dtype=np.uint8)
        reading = Reading(self._names.gpus, held, held, np.full(owner.size, np.nan), none)
        yield from batches_of(host_sheets.reserved_sheet(self._fleet), reading, at)

    # --- devices and hosts ------------------------------------------------------------------------------

    def _of_devices(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, now, of_node = self._fleet, at.timestamp(), self._fleet.gpus.node
        there = np.bincount(of_node[self._nvidia], minlength=fleet.nodes.size) > 0
        up, about = self._exporters([f"dcgm-{name}" for name in fleet.nodes.names])
        up &= there
        seen = up[of_node] & fleet.gpus.visible & self._nvidia
        self._seen_gpus |= seen
        self._gpus.forget(np.flatnonzero(up[of_node] & ~fleet.gpus.visible))
        self._codes.advance(fleet)
        shown = dcgm.numbers(fleet)
        grown = self._gpus.compare(now, seen, host_sheets.gpu_counters(shown), identity=fleet.pods.owner)
        devices = self._devices.compare(now, up, np.zeros((up.size, 1)))
        known = self._seen_gpus & self._devices.recent(now)[of_node]
        seconds = np.where(up[of_node], devices.seconds[of_node], np.nan)
        sheet = host_sheets.gpu_sheet(fleet, shown, self._codes, grown)
        yield from batches_of(sheet, Reading(self._names.gpus, known, up[of_node], seconds, grown.status), at)
        of_nodes = Reading(self._names.nodes, there, up, devices.seconds, devices.status)
        yield from batches_of(host_sheets.device_node_sheet(fleet, about), of_nodes, at, _ABOUT)
        yield from _watched(self._names.device_targets, there, about, at)

    def _of_hosts(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, now = self._fleet, at.timestamp()
        up, about = self._exporters(fleet.nodes.names)
        shown = node.numbers(fleet)
        grown = self._nodes.compare(now, up, host_sheets.node_counters(fleet, shown), fleet.nodes.boot)
        everyone = np.ones(up.size, dtype=bool)
        reading = Reading(self._names.nodes, everyone, up, grown.seconds, grown.status)
        yield from batches_of(host_sheets.node_sheet(shown, grown, about), reading, at, _ABOUT)
        ports = Reading(self._names.ports, self._nodes.recent(now), up, grown.seconds, grown.status)
        yield from batches_of(host_sheets.port_sheet(shown, grown), ports, at)
        yield from _watched(self._names.node_targets, everyone, about, at)

    def _of_containers(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, now, where = self._fleet, at.timestamp(), self._fleet.pods.node_of_slot
        up, about = self._exporters([f"cadvisor-{name}" for name in fleet.nodes.names])
        kubelets = self._kubelets.compare(now, up, np.zeros((up.size, 1)))
        shown = host_sheets.running(fleet) & up[np.maximum(where, 0)]
        self._seen_containers.note(shown, where, now)
        numbers = cadvisor.numbers(fleet)
        # Labels of a container change with its pod and its image.
        identity = np.array([hash((pod.generation, pod.revision)) for pod in fleet.pods.pods])
        counters = host_sheets.container_counters(fleet, numbers)
        self._containers.forget(np.flatnonzero(~shown & up[self._seen_containers.where]))
        grown = self._containers.compare(now, shown, counters, identity=identity)
        known = self._seen_containers.known(now) & self._kubelets.recent(now)[self._seen_containers.where]
        reading = Reading(self._names.containers, known, shown, grown.seconds, grown.status)
        yield from batches_of(host_sheets.container_sheet(numbers, grown), reading, at)
        everyone = np.ones(up.size, dtype=bool)
        own = Reading(self._names.nodes, everyone, up, kubelets.seconds, kubelets.status)
        yield from batches_of(Sheet(EntityKind.NODE, "containers", about, {}), own, at, _ABOUT)
        yield from _watched(self._names.kubelet_targets, everyone, about, at)

    # --- cluster ----------------------------------------------------------------------------------------

    def _of_cluster(self, at: datetime) -> Iterator[SampleBatch]:
        fleet, now = self._fleet, at.timestamp()
        up, about = self._exporters(["kube-state"], on_nodes=False)
        cluster = self._cluster.compare(now, up, np.zeros((1, 1)))
        shown = fleet.pods.existing & up[0]
        self._seen_pods.note(shown, np.zeros(shown.size, dtype=np.int64), now)
        generation = np.array([pod.generation for pod in fleet.pods.pods])
        restarts = cluster_sheets.pod_restarts(fleet)
        self._pods.forget(np.flatnonzero(~fleet.pods.existing))
        grown = self._pods.compare(now, shown, restarts, identity=generation)
        seconds = float(cluster.seconds[0])
        if self._cluster.recent(now)[0]:
            everywhere = np.full(fleet.nodes.size, up[0])
            yield from batches_of(cluster_sheets.node_sheet(fleet), _plain(self._names.nodes, everywhere, seconds), at)
            pods = Reading(self._names.pods, self._seen_pods.known(now), shown, grown.seconds, grown.status)
            yield from batches_of(cluster_sheets.pod_sheet(fleet, grown), pods, at)
            workloads = _plain(self._names.workloads, np.full(len(fleet.spec.services), up[0]), seconds)
            yield from batches_of(cluster_sheets.workload_sheet(fleet), workloads, at)
        own = _plain(self._names.cluster, up, seconds)
        yield from batches_of(Sheet(EntityKind.CLUSTER, "kube-state", about, {}), own, at, _ABOUT)
        yield from _watched(self._names.cluster_targets, np.ones(1, dtype=bool), about, at)

    # --- blackbox probes --------------------------------------------------------------------------------

    def _of_blackbox(self, at: datetime) -> Iterator[SampleBatch]:
        """Yields probe results, which do not depend on the cluster, and the SDK counters of the services."""
        names, everyone = self._names.service_names, np.ones(len(self._fleet.spec.services), dtype=bool)
        open_ports = np.array([f"probe-{name}" not in self._fleet.exporters_down for name in names])
        probed = _about(open_ports, np.where(open_ports, 0.0, _REFUSED))
        yield from self._blackbox.probed(open_ports, probed, at)
        yield from _watched(self._names.probe_targets, everyone, probed, at)
        up, counted = self._exporters([f"sdk-{name}" for name in names], on_nodes=False)
        yield from self._blackbox.counted(up, counted, at)
        yield from _watched(self._names.sdk_targets, everyone, counted, at)

    # --- reachability -----------------------------------------------------------------------------------

    def _reachable(self, node: np.ndarray) -> np.ndarray:
        """Returns True if connections to these nodes work; -1 stands for no node."""
        effects = self._fleet.effects
        seen = effects.cluster.alive[0] > 0.5 and effects.cluster.seen[0] > 0.5
        there = (effects.nodes.alive > 0.5) & (effects.nodes.reachable > 0.5)
        return np.asarray((there[np.maximum(node, 0)] | (node < 0)) & seen)

    def _exporters(self, names: list[str], on_nodes: bool = True) -> tuple[np.ndarray, dict[str, Floats]]:
        """Returns the exporters that respond, and the target signals of the attempts."""
        open_ports = np.array([name not in self._fleet.exporters_down for name in names])
        reachable = self._reachable(np.arange(len(names)) if on_nodes else np.full(len(names), -1))
        up = open_ports & reachable
        return up, _about(up, np.where(~reachable, _TIMEOUT, np.where(open_ports, 0.0, _REFUSED)))


class _RecentRows:
    """Rows of recent pages: collecting keeps removed pods and containers for 15 minutes."""

    def __init__(self, rows: int) -> None:
        self.where = np.zeros(rows, dtype=np.int64)  # the node whose page listed it
        self._last = np.full(rows, -np.inf)

    def note(self, shown: np.ndarray, where: np.ndarray, at: float) -> None:
        """Records the rows that are on a page now."""
        self._last = np.where(shown, at, self._last)
        self.where = np.where(shown, where, self.where)

    def known(self, at: float) -> np.ndarray:
        """Returns the rows that are or recently were on a page."""
        return np.asarray(at - self._last <= REMEMBER_SECONDS)


class _Names:
    """The entities of every row, created once."""

    def __init__(self, fleet: Fleet) -> None:
        cluster, pods, nodes = fleet.spec.cluster, fleet.pods.pods, fleet.nodes.names

        def of(kind: EntityKind, names: list[tuple[str | None, str]]) -> np.ndarray:
            return refs([EntityRef(cluster, kind, namespace, name) for namespace, name in names])

        placed: list[tuple[str | None, str]] = [(pod.service.namespace, pod.name) for pod in pods]
        services: list[tuple[str | None, str]] = [(service.namespace, service.name) for service in fleet.spec.services]
        self.replicas, self.pods = of(EntityKind.REPLICA, placed), of(EntityKind.POD, placed)
        self.services, self.workloads = of(EntityKind.SERVICE, services), of(EntityKind.WORKLOAD, services)
        self.gpus = of(EntityKind.GPU, [(None, fleet.gpu_uuid(gpu)) for gpu in range(fleet.gpus.size)])
        self.nodes = of(EntityKind.NODE, [(None, name) for name in nodes])
        self.ports = of(EntityKind.PORT, [(None, f"{name}/mlx5_0/1") for name in nodes])
        self.cluster = of(EntityKind.CLUSTER, [(None, cluster)])
        self.replica_targets = of(EntityKind.WORKLOAD, [("targets", pod.name) for pod in pods])
        self.device_targets = of(EntityKind.WORKLOAD, [("targets", f"dcgm-{name}") for name in nodes])
        self.node_targets = of(EntityKind.WORKLOAD, [("targets", name) for name in nodes])
        self.kubelet_targets = of(EntityKind.WORKLOAD, [("targets", f"cadvisor-{name}") for name in nodes])
        self.containers = of(
            EntityKind.CONTAINER,
            [(pod.service.namespace, f"{pod.name}/{pod.service.engine_kind}") for pod in pods],
        )
        self.cluster_targets = of(EntityKind.WORKLOAD, [("targets", "kube-state")])
        self.service_names = [service.name for service in fleet.spec.services]
        self.probe_targets = of(EntityKind.WORKLOAD, [("targets", f"probe-{name}") for name in self.service_names])
        self.sdk_targets = of(EntityKind.WORKLOAD, [("targets", f"sdk-{name}") for name in self.service_names])


def _about(up: np.ndarray, code: Floats) -> dict[str, Floats]:
    return {
        "target_up": up.astype(np.float64),
        "target_scrape_seconds": np.full(up.size, SCRAPE_SECONDS),
        "target_samples": np.where(up, 1.0, np.nan),
        "target_failure_code": code,
    }


def _plain(entities: np.ndarray, up: np.ndarray, seconds: float) -> Reading:
    """Returns a reading of rows from one page."""
    status: Statuses = np.zeros(up.size, dtype=np.uint8)
    return Reading(entities, np.ones(up.size, dtype=bool), up, np.full(up.size, seconds), status)


def _watched(entities: np.ndarray, known: np.ndarray, about: dict[str, Floats], at: datetime) -> Iterator[SampleBatch]:
    """Yields the signals of each target on its monitoring entity."""
    cut = {name: about[name] for name in _ABOUT}
    up = np.ones(known.size, dtype=bool)
    none = np.zeros(known.size, dtype=np.uint8)
    reading = Reading(entities, known, up, np.full(known.size, np.nan), none)
    yield from batches_of(Sheet(EntityKind.WORKLOAD, "targets", cut, {}), reading, at)
