"""Facts of one pod in a fleet that serves models: owner, replica, engine and accelerators. Pure.

Targets, topology, start-ups and audits share this reading of a pod. A replica is one TP x PP group with one
scheduler. A LeaderWorkerSet's group and a Ray cluster are one replica of several pods. Any other pod, including those
of a RayService, is a replica by itself with its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collectors.kubernetes.accelerators import devices_of, kind_of
from collectors.kubernetes.api import Json, deployment_of, items, mapping, text, texts
from collectors.kubernetes.engine_args import EngineArgs, engine_args, pod_accelerators, serving_container
from collectors.kubernetes.objects import key_of, labels_of, owner_of
from collectors.kubernetes.peers import PROTECTED_BY, ROLLOUT_HASH
from collectors.mapping.registry import ADAPTERS, adapter
from outrider.model import EntityKind, EntityRef
from outrider.vocabulary.cluster_peers import pod_protection

LWS_NAME, LWS_GROUP, LWS_WORKER = (
    f"leaderworkerset.sigs.k8s.io/{part}" for part in ("name", "group-index", "worker-index")
)
KSERVE = "serving.kserve.io/inferenceservice"
RAY_SERVICE, RAY_CRD, RAY_CLUSTER = "ray.io/originated-from-cr-name", "ray.io/originated-from-crd", "ray.io/cluster"
RAY_NODE = "ray.io/node-type"
SERVICE_LABEL = "app.kubernetes.io/name"
ADAPTER, SERVICE, MODEL = (f"outrider.io/{name}" for name in ("adapter", "service", "model"))
_FACT_LABELS = {"model": MODEL, "request_class": "outrider.io/request-class", "tenant": "outrider.io/tenant"}
# outrider.io's own first, then the labels of llm-d and NVIDIA Dynamo for disaggregated engines
_ROLES = ("outrider.io/role", "llm-d.ai/role", "nvidia.com/dynamo-sub-component-type")
_OURS = ("prometheus.io/", "outrider.io/")  # relevant annotations; others can be as large as the pod itself
_BY_NAME = {
    "dcgm-exporter": "dcgm", "nvidia-dcgm-exporter": "dcgm", "node-exporter": "node_exporter",
    "prometheus-node-exporter": "node_exporter", "kube-state-metrics": "kube_state_metrics",
}  # fmt: skip
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``accelerators`` by resource name; ``devices`` are those known by name.

    ``group`` names its replica, which has several pods if ``is_grouped``; ``leads`` marks the one with the scheduler.
    ``is_engine``: it has accelerators or its page is declared an engine's. ``engine_facts`` are engine facts from its
    labels, ``own`` those and the facts from its command. ``service`` comes from its labels; after ``with_service`` it
    is never empty for an engine. ``protected_by`` is the annotation that forbids to disrupt it. ``created`` is its
    creation time, ``since`` the start on its node: its edges hold from then on.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    address: str = ""
    created: str = ""
    since: str = ""
    owner_kind: str = ""
    workload: str = ""
    service: str = ""
    group: str = ""
    is_grouped: bool = False
    leads: bool = True
    is_over: bool = False
    adapter: str | None = None
    is_engine: bool = False
    engine_facts: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    args: EngineArgs = field(default_factory=EngineArgs)
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, int], ...] = ()
    accelerators: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    gpu_kind: str = ""
    protected_by: str = ""

    @property
    def gpus(self) -> float:
        """Accelerators of all types together."""
        return sum(self.accelerators.values())

    def entity(self, cluster: str) -> EntityRef:
        """The pod."""
        return EntityRef(cluster, EntityKind.POD, self.namespace, self.name)

    def replica(self, cluster: str) -> EntityRef:
        """The replica it is, or is a part of."""
        return EntityRef(cluster, EntityKind.REPLICA, self.namespace, self.group)

    def facts(self) -> dict[str, str]:
        """Labels of the pod."""
        labels = {
            "uid": self.uid,
            "node": self.node,
            "workload": self.workload,
            "owner_kind": self.owner_kind,
            "service": self.service,
            "since": self.since,
            "group": self.group if self.is_grouped else "",
            "gpus": f"{self.gpus:g}" if self.accelerators else "",
            "gpu_kind": self.gpu_kind,
            "devices": ",".join(self.devices),
            PROTECTED_BY: self.protected_by,
            **{f"asks:{name}": f"{amount:g}" for name, amount in self.accelerators.items() if "/mig-" in name},
        }
        return {name: value for name, value in labels.items() if value}


def pod_facts(pod: Json, service_label: str = SERVICE_LABEL) -> PodFacts:
    """Facts of a pod object. ``service_label`` is the label with the service name."""
    (namespace, name), labels = key_of(pod), labels_of(pod)
    spec, status, meta = (mapping(pod.get(part)) for part in ("spec", "status", "metadata"))
    notes = texts(meta.get("annotations"))
    kind, workload = workload_of(pod)
    group, leads = _group(labels)
    container = serving_container(spec)
    requested = pod_accelerators(spec)
    declared = {fact: labels.get(key) or notes.get(key) or "" for fact, key in _FACT_LABELS.items()}
    declared["version"] = labels.get("app.kubernetes.io/version", "")
    declared["role"] = next(filter(None, (labels.get(key) or notes.get(key) for key in _ROLES)), "")
    declared_facts = {fact: value for fact, value in declared.items() if value}
    args = engine_args(container)
    reader = notes.get(ADAPTER) or labels.get(ADAPTER) or _known_exporter(labels)
    created = text(meta.get("creationTimestamp"))
    return PodFacts(
        namespace=namespace or "default",
        name=name,
        uid=text(meta.get("uid")),
        node=text(spec.get("nodeName")),
        address=text(status.get("podIP")),
        created=created,
        since=text(status.get("startTime")) or created,
        owner_kind=kind,
        workload=workload,
        service=labeled_service(labels, notes, service_label),
        group=group or name,
        is_grouped=bool(group),
        leads=leads,
        is_over=text(status.get("phase")) in _OVER,
        adapter=reader,
        is_engine=bool(requested) or (reader in ADAPTERS and adapter(reader or "").target is EntityKind.REPLICA),
        engine_facts=declared_facts,
        own={**args.facts(engine=bool(requested)), **declared_facts},
        args=args,
        image=text(container.get("image")),
        labels=labels,
        notes={key: value for key, value in notes.items() if key.startswith(_OURS)},
        ports=_ports(spec),
        accelerators=requested,
        devices=devices_of(notes),
        gpu_kind=kind_of(requested, notes),
        protected_by=pod_protection(notes),
    )


def with_service(pod: PodFacts, front: str = "") -> PodFacts:
    """The pod with its service: from its labels, the Service in ``front`` of it, its owner, or itself."""
    name = pod.service or front or ((pod.workload or pod.name) if pod.is_engine or pod.is_grouped else "")
    return pod if name == pod.service else replace(pod, service=name)


def labeled_service(labels: Mapping[str, str], notes: Mapping[str, str], service_label: str) -> str:
    """Model service of a pod or workload by its labels: set by a user, by its operator, or its name."""
    service = labels.get(SERVICE) or notes.get(SERVICE) or labels.get(service_label) or labels.get(KSERVE)
    if not service and labels.get(RAY_CRD, "RayService") == "RayService":
        service = labels.get(RAY_SERVICE)
    return service or next(
        (labels[name] for name in (LWS_NAME, RAY_CLUSTER, SERVICE_LABEL, "app") if labels.get(name)), ""
    )


def workload_of(pod: Json) -> tuple[str, str]:
    """Kind and name of a pod's top-level owner; empty for a bare pod."""
    labels = labels_of(pod)
    if labels.get(KSERVE):
        return "InferenceService", labels[KSERVE]
    if labels.get(LWS_NAME):
        return "LeaderWorkerSet", labels[LWS_NAME]
    if labels.get(RAY_SERVICE) and labels.get(RAY_CRD, "RayService") == "RayService":
        return "RayService", labels[RAY_SERVICE]
    if labels.get(RAY_CLUSTER):
        return "RayCluster", labels[RAY_CLUSTER]
    kind, name = owner_of(pod)
    if kind == "Node":  # a static pod, created by its kubelet
        return "", ""
    if kind != "ReplicaSet":
        return kind, name
    if labels.get(ROLLOUT_HASH):
        return "Rollout", name.removesuffix(f"-{labels[ROLLOUT_HASH]}")
    template_hash = labels.get("pod-template-hash")
    return "Deployment", name.removesuffix(f"-{template_hash}") if template_hash else deployment_of(name)


def ended_at(pod: Json) -> str:
    """End of a pod from the API: the end of its last container, else its deletion time; "" for neither."""
    ends = [
        text(mapping(mapping(status.get("state")).get("terminated")).get("finishedAt"))
        for status in items(mapping(pod.get("status")).get("containerStatuses"))
    ]
    return max(ends, default="") or text(mapping(pod.get("metadata")).get("deletionTimestamp"))


def _known_exporter(labels: Mapping[str, str]) -> str | None:
    exporters = (_BY_NAME.get(labels.get(label, "")) for label in (SERVICE_LABEL, "app"))
    return next(filter(None, exporters), None)


def _group(labels: Mapping[str, str]) -> tuple[str, bool]:
    """Name of a replica of several pods, "" for none, and whether this pod leads it."""
    if labels.get(LWS_NAME) and labels.get(LWS_GROUP):  # also the name of its leader
        return f"{labels[LWS_NAME]}-{labels[LWS_GROUP]}", labels.get(LWS_WORKER, "0") == "0"
    ray = labels.get(RAY_CLUSTER)
    if ray and not labels.get(LWS_NAME) and labels.get(RAY_CRD) != "RayService":  # Ray Serve runs replicas inside it
        return ray, labels.get(RAY_NODE, "head") == "head"
    return "", True


def _ports(spec: Json) -> tuple[tuple[str, int], ...]:
    ports = [port for container in items(spec.get("containers")) for port in items(container.get("ports"))]
    ports_by_name = [(text(port.get("name")), port.get("containerPort")) for port in ports]
    return tuple((name, port) for name, port in ports_by_name if isinstance(port, int) and 0 < port < 65536)
