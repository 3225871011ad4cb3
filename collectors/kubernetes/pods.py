"""What one pod is in a fleet that serves models: whose it is, its replica, what it runs and holds. Pure.

The one reading of a pod that targets, topology, start-ups and audits share. A replica is one TP x PP group with one
scheduler: a LeaderWorkerSet's group and a Ray cluster are one replica of several pods; any other pod, those of a
RayService too, is a replica by itself, and bears its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collectors.kubernetes.accelerators import devices_of, kind_of
from collectors.kubernetes.api import Json, deployment_of, items, mapping, text, texts
from collectors.kubernetes.engine_args import EngineArgs, engine_args, pod_accelerators, serving_container
from collectors.kubernetes.objects import key_of, labels_of, owner_of
from collectors.mapping.registry import ADAPTERS, adapter
from outrider.model import EntityKind, EntityRef

LWS_NAME, LWS_GROUP, LWS_WORKER = (
    f"leaderworkerset.sigs.k8s.io/{part}" for part in ("name", "group-index", "worker-index")
)
KSERVE = "serving.kserve.io/inferenceservice"
RAY_SERVICE, RAY_CRD, RAY_CLUSTER = "ray.io/originated-from-cr-name", "ray.io/originated-from-crd", "ray.io/cluster"
RAY_NODE = "ray.io/node-type"
SERVICE_LABEL = "app.kubernetes.io/name"
ADAPTER, SERVICE, MODEL = (f"outrider.io/{name}" for name in ("adapter", "service", "model"))
_SAID = {"model": MODEL, "request_class": "outrider.io/request-class", "tenant": "outrider.io/tenant"}
# outrider.io's own first, then what llm-d and NVIDIA Dynamo put on the pods of engines that share the work
_ROLES = ("outrider.io/role", "llm-d.ai/role", "nvidia.com/dynamo-sub-component-type")
_OURS = ("prometheus.io/", "outrider.io/")  # annotations that count; others can be as large as the pod itself
_BY_NAME = {
    "dcgm-exporter": "dcgm", "nvidia-dcgm-exporter": "dcgm", "node-exporter": "node_exporter",
    "prometheus-node-exporter": "node_exporter", "kube-state-metrics": "kube_state_metrics",
}  # fmt: skip
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``accelerators`` by resource name, ``devices`` those of them that are known by name.

    ``group`` names its replica, which is of several pods where ``is_grouped``; ``leads`` is the one of them that
    schedules. ``is_engine``: it holds accelerators or says that its page is an engine's. ``said`` is what its labels
    tell of its engine, ``own`` that and what its command tells. ``service`` is what its labels say, and after
    ``served`` never empty for an engine. ``created`` is when it was made, ``since`` when its node took it up: its
    edges hold from then on.
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
    said: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    args: EngineArgs = field(default_factory=EngineArgs)
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, int], ...] = ()
    accelerators: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    gpu_kind: str = ""

    @property
    def gpus(self) -> float:
        """Accelerators of every sort together."""
        return sum(self.accelerators.values())

    def entity(self, cluster: str) -> EntityRef:
        """The pod."""
        return EntityRef(cluster, EntityKind.POD, self.namespace, self.name)

    def replica(self, cluster: str) -> EntityRef:
        """The replica it is, or is a part of."""
        return EntityRef(cluster, EntityKind.REPLICA, self.namespace, self.group)

    def facts(self) -> dict[str, str]:
        """Labels of the pod."""
        found = {
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
            **{f"asks:{name}": f"{amount:g}" for name, amount in self.accelerators.items() if "/mig-" in name},
        }
        return {name: value for name, value in found.items() if value}


def pod_facts(pod: Json, service_label: str = SERVICE_LABEL) -> PodFacts:
    """What counts of a pod object. ``service_label`` is the label that names services here."""
    (namespace, name), labels = key_of(pod), labels_of(pod)
    spec, status, meta = (mapping(pod.get(part)) for part in ("spec", "status", "metadata"))
    notes = texts(meta.get("annotations"))
    kind, workload = workload_of(pod)
    group, leads = _group(labels)
    container = serving_container(spec)
    asked = pod_accelerators(spec)
    said = {fact: labels.get(key) or notes.get(key) or "" for fact, key in _SAID.items()}
    said["version"] = labels.get("app.kubernetes.io/version", "")
    said["role"] = next(filter(None, (labels.get(key) or notes.get(key) for key in _ROLES)), "")
    known = {fact: value for fact, value in said.items() if value}
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
        service=service_said(labels, notes, service_label),
        group=group or name,
        is_grouped=bool(group),
        leads=leads,
        is_over=text(status.get("phase")) in _OVER,
        adapter=reader,
        is_engine=bool(asked) or (reader in ADAPTERS and adapter(reader or "").target is EntityKind.REPLICA),
        said=known,
        own={**args.facts(engine=bool(asked)), **known},
        args=args,
        image=text(container.get("image")),
        labels=labels,
        notes={key: value for key, value in notes.items() if key.startswith(_OURS)},
        ports=_ports(spec),
        accelerators=asked,
        devices=devices_of(notes),
        gpu_kind=kind_of(asked, notes),
    )


def served(pod: PodFacts, front: str = "") -> PodFacts:
    """The pod with the service it serves: what its labels say, the Service in ``front`` of it, its owner, itself."""
    name = pod.service or front or ((pod.workload or pod.name) if pod.is_engine or pod.is_grouped else "")
    return pod if name == pod.service else replace(pod, service=name)


def service_said(labels: Mapping[str, str], notes: Mapping[str, str], service_label: str) -> str:
    """The model service of a pod or workload by its labels: what somebody said, what its operator wrote, its name."""
    said = labels.get(SERVICE) or notes.get(SERVICE) or labels.get(service_label) or labels.get(KSERVE)
    if not said and labels.get(RAY_CRD, "RayService") == "RayService":
        said = labels.get(RAY_SERVICE)
    return said or next(
        (labels[name] for name in (LWS_NAME, RAY_CLUSTER, SERVICE_LABEL, "app") if labels.get(name)), ""
    )


def workload_of(pod: Json) -> tuple[str, str]:
    """Kind and name of what people know as the owner of a pod; of a bare pod itself, empty texts."""
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
    if kind == "Node":  # a static pod, which its kubelet made
        return "", ""
    if kind != "ReplicaSet":
        return kind, name
    known = labels.get("pod-template-hash")
    return "Deployment", name.removesuffix(f"-{known}") if known else deployment_of(name)


def ended_at(pod: Json) -> str:
    """When a pod ended, as the API tells it: its last container's end, else when it was told to go; "" for neither."""
    ends = [
        text(mapping(mapping(one.get("state")).get("terminated")).get("finishedAt"))
        for one in items(mapping(pod.get("status")).get("containerStatuses"))
    ]
    return max(ends, default="") or text(mapping(pod.get("metadata")).get("deletionTimestamp"))


def _known_exporter(labels: Mapping[str, str]) -> str | None:
    found = (_BY_NAME.get(labels.get(one, "")) for one in (SERVICE_LABEL, "app"))
    return next(filter(None, found), None)


def _group(labels: Mapping[str, str]) -> tuple[str, bool]:
    """The name of a replica of several pods, "" for none, and whether this one leads it."""
    if labels.get(LWS_NAME) and labels.get(LWS_GROUP):  # the name of its leader, too
        return f"{labels[LWS_NAME]}-{labels[LWS_GROUP]}", labels.get(LWS_WORKER, "0") == "0"
    ray = labels.get(RAY_CLUSTER)
    if ray and not labels.get(LWS_NAME) and labels.get(RAY_CRD) != "RayService":  # Ray Serve has replicas in it
        return ray, labels.get(RAY_NODE, "head") == "head"
    return "", True


def _ports(spec: Json) -> tuple[tuple[str, int], ...]:
    ports = [port for container in items(spec.get("containers")) for port in items(container.get("ports"))]
    found = [(text(one.get("name")), one.get("containerPort")) for one in ports]
    return tuple((name, port) for name, port in found if isinstance(port, int) and 0 < port < 65536)
