"""Entity of a received alert, from its labels and the topology. Pure.

Labels of an exporter's own pod do not name the subject: Prometheus adds them to every series of the exporter. Labels
that it renamed (``exported_pod``) do name it. A subject that the topology lacks keeps the name that the labels give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from collectors.events.unresolved_event import pci_of
from collectors.mapping.entity_binding import first_label
from collectors.receive.targets import NAMESPACE_LABELS, NODE_LABELS, POD_LABELS
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

RECEIVED_NAMESPACE = "received"  # of an alert whose labels name no entity
_NODES = ("exported_node", *NODE_LABELS, "kubernetes_node", "node_name", "Hostname", "host")
_PODS = ("exported_pod", "pod_name", *POD_LABELS)
_NAMESPACES = ("exported_namespace", *NAMESPACE_LABELS)
_UUIDS = ("gpu_uuid", "UUID", "uuid")
_GPU_INDEX = ("gpu", "gpu_index", "minor_number")
_SERVICES = ("exported_service", "service_name", "inference_service", "model_name", "model", "service")
_WORKLOADS = ("deployment", "statefulset", "daemonset", "workload", "job_name")
_EXPORTERS = (
    "kube-state-metrics", "node-exporter", "prometheus-node-exporter", "dcgm-exporter", "nvidia-dcgm-exporter",
    "npu-exporter", "kubelet", "node-problem-detector",
)  # fmt: skip
_SWITCHES, _STORAGES, _POOLS = ("switch", "switch_name"), ("storage", "filesystem"), ("pool", "nodepool", "node_pool")
_NAMES = ("instance", "job", "alertname")
# A fault of a part may be reported for the whole, which the alert names.
_WHOLE = {EntityKind.GPU: EntityKind.NODE, EntityKind.PORT: EntityKind.NODE}


@dataclass(frozen=True, slots=True)
class AlertSubject:
    """The entity of an alert, and its fault if that fits the entity. ``known``: the topology has the entity."""

    entity: EntityRef
    known: bool
    fault: str | None


class AlertEntityResolver:
    """Resolves labels to entities. Built once per topology, because it reads every entity."""

    def __init__(self, topology: Topology, cluster: str) -> None:
        """``cluster`` is that of alerts without a known cluster in their labels."""
        self.topology = topology
        self._cluster = cluster
        self._clusters = {entity.cluster for entity in topology.entities}
        self._named: dict[tuple[str, EntityKind, str], list[EntityRef]] = {}
        self._devices: dict[tuple[str, str, str], EntityRef] = {}
        self._by_workload: dict[tuple[str, str | None, str], EntityRef] = {}
        for entity in sorted(topology.entities, key=lambda item: item.key):
            self._named.setdefault((entity.cluster, entity.kind, entity.name), []).append(entity)
        for entity, facts in topology.labels.items():
            if entity.kind is EntityKind.GPU:
                self._add_device(entity, facts)
            elif entity.kind is EntityKind.REPLICA and facts.get("workload"):
                for service in topology.above(entity, EntityKind.SERVICE)[:1]:
                    self._by_workload[entity.cluster, entity.namespace, facts["workload"]] = service

    def subject(self, labels: Mapping[str, str], fault: str | None) -> AlertSubject:
        """The subject of an alert. The kind of its fault comes first, then the most specific known entity."""
        kind = faults()[fault].entity if fault is not None and fault in faults() else None
        order = [kind, _WHOLE.get(kind)] if kind is not None else []
        finders = self._finders
        kinds = [*(item for item in order if item is not None), *finders]
        found = {item: finders[item](labels) for item in dict.fromkeys(kinds) if item in finders}
        wanted = [found[item] for item in order if item in found and found[item] is not None]
        known = [entity for entity in found.values() if entity in self.topology.entities]
        named = [entity for entity in found.values() if entity is not None]
        stated = [entity] if (entity := self._stated(labels)) is not None else []
        entity = next(iter([*stated, *wanted, *known, *named]), None) or self._unnamed(labels)
        fits = kind is not None and (entity.kind is kind or entity.kind is _WHOLE.get(kind))
        return AlertSubject(entity, entity in self.topology.entities, fault if fits else None)

    @property
    def _finders(self) -> Mapping[EntityKind, Callable[[Mapping[str, str]], EntityRef | None]]:
        return {
            EntityKind.GPU: self._gpu,
            EntityKind.REPLICA: self._replica,
            EntityKind.POD: self._pod,
            EntityKind.NODE: self._node,
            EntityKind.WORKLOAD: self._workload,
            EntityKind.SERVICE: self._service,
            EntityKind.SWITCH: partial(self._plain, EntityKind.SWITCH, _SWITCHES),
            EntityKind.STORAGE: partial(self._plain, EntityKind.STORAGE, _STORAGES),
            EntityKind.POOL: partial(self._plain, EntityKind.POOL, _POOLS),
        }

    def _add_device(self, gpu: EntityRef, facts: Mapping[str, str]) -> None:
        nodes = {entity.name for entity in self.topology.rests_on(gpu) if entity.kind is EntityKind.NODE}
        for node in nodes | ({facts["node"]} if facts.get("node") else set()):
            if facts.get("pci"):
                self._devices[gpu.cluster, node, pci_of(facts["pci"])] = gpu
            if facts.get("index"):
                self._devices[gpu.cluster, node, facts["index"]] = gpu

    def _cluster_of(self, labels: Mapping[str, str]) -> str:
        named = labels.get("cluster", "")
        return named if named in self._clusters else self._cluster

    def _find(self, labels: Mapping[str, str], kind: EntityKind, name: str | None) -> EntityRef | None:
        """The known entity of that name; in the named namespace if several have it."""
        if not name:
            return None
        matches = self._named.get((self._cluster_of(labels), kind, name), [])
        namespace = first_label(labels, _NAMESPACES)
        same = [entity for entity in matches if entity.namespace == namespace]
        return same[0] if same else matches[0] if len(matches) == 1 else None

    def _gpu(self, labels: Mapping[str, str]) -> EntityRef | None:
        uuid = first_label(labels, _UUIDS)
        known = self._find(labels, EntityKind.GPU, uuid)
        if known is not None:
            return known
        node, cluster = first_label(labels, _NODES) or "", self._cluster_of(labels)
        pci = first_label(labels, ("pci", "pci_bus_id"))
        for key in (pci_of(pci) if pci else None, first_label(labels, _GPU_INDEX)):
            if key and (cluster, node, key) in self._devices:
                return self._devices[cluster, node, key]
        if uuid and uuid.startswith("GPU-") and "," not in uuid:
            return EntityRef(cluster, EntityKind.GPU, None, uuid)
        return None

    def _pod(self, labels: Mapping[str, str]) -> EntityRef | None:
        pod = self._labeled_pod(labels)
        return None if pod is None or _is_exporter(labels) else pod

    def _labeled_pod(self, labels: Mapping[str, str]) -> EntityRef | None:
        name = first_label(labels, _PODS)
        known = self._find(labels, EntityKind.POD, name)
        if known is not None or not name:
            return known
        return EntityRef(self._cluster_of(labels), EntityKind.POD, first_label(labels, _NAMESPACES) or "default", name)

    def _replica(self, labels: Mapping[str, str]) -> EntityRef | None:
        for name in (labels.get("replica"), labels.get("instance")):
            known = self._find(labels, EntityKind.REPLICA, name)
            if known is not None:
                return known
        pod = self._pod(labels)
        replicas = self.topology.above(pod, EntityKind.REPLICA) if pod is not None else ()
        if len(replicas) == 1:
            return replicas[0]
        return self._find(labels, EntityKind.REPLICA, pod.name) if pod is not None else None

    def _node(self, labels: Mapping[str, str]) -> EntityRef | None:
        host = labels.get("instance", "").rsplit(":", 1)[0]
        name = first_label(labels, _NODES)
        known = self._find(labels, EntityKind.NODE, name) or self._find(labels, EntityKind.NODE, host)
        if known is not None:
            return known
        pod = self._labeled_pod(labels) if _is_exporter(labels) else None
        below = self.topology.below(pod, EntityKind.NODE) if pod is not None else ()
        if len(below) == 1 and not name:
            return below[0]
        return EntityRef(self._cluster_of(labels), EntityKind.NODE, None, name) if name else None

    def _workload(self, labels: Mapping[str, str]) -> EntityRef | None:
        name = first_label(labels, _WORKLOADS)
        if not name:
            return None
        cluster, namespace = self._cluster_of(labels), first_label(labels, _NAMESPACES)
        service = self._by_workload.get((cluster, namespace, name))
        known = service or self._find(labels, EntityKind.WORKLOAD, name)
        return known or EntityRef(cluster, EntityKind.WORKLOAD, namespace, name)

    def _stated(self, labels: Mapping[str, str]) -> EntityRef | None:
        """The entity as another Outrider states it: by kind, name and namespace."""
        name, kind = labels.get("entity", ""), labels.get("kind", "")
        if not name or kind not in tuple(EntityKind):
            return None
        known = self._find(labels, EntityKind(kind), name)
        return known or EntityRef(self._cluster_of(labels), EntityKind(kind), labels.get("namespace") or None, name)

    def _plain(self, kind: EntityKind, names: tuple[str, ...], labels: Mapping[str, str]) -> EntityRef | None:
        name = first_label(labels, names)
        return (
            (self._find(labels, kind, name) or EntityRef(self._cluster_of(labels), kind, None, name)) if name else None
        )

    def _service(self, labels: Mapping[str, str]) -> EntityRef | None:
        """A known service only: in Kubernetes the label often names the Service of an exporter."""
        names = (labels[label] for label in _SERVICES if labels.get(label))
        return next((known for name in names if (known := self._find(labels, EntityKind.SERVICE, name))), None)

    def _unnamed(self, labels: Mapping[str, str]) -> EntityRef:
        name = first_label(labels, _NAMES) or "unnamed"
        return EntityRef(self._cluster_of(labels), EntityKind.WORKLOAD, RECEIVED_NAMESPACE, name)


def _is_exporter(labels: Mapping[str, str]) -> bool:
    """True if the labels ``pod`` and ``namespace`` are those of the exporter that reported the series."""
    if labels.get("exported_pod"):
        return False
    names = (labels.get("container", ""), labels.get("job", ""), labels.get("pod", ""))
    if not any(name.startswith(_EXPORTERS) for name in names):
        return False
    # with honorLabels, kube-state-metrics and dcgm-exporter name the pod that they describe
    return labels.get("pod", "").startswith(_EXPORTERS) or labels.get("container", "").startswith(_EXPORTERS)
