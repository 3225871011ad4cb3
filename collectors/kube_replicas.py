"""Which pods make one replica, who owns them, and which service they serve. Pure.

A replica bears the name of its pod; of a LeaderWorkerSet's group, that of its leader. A pod with accelerators is
a replica, whatever page it has or lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collectors.engine_args import EngineArgs, engine_args, pod_accelerators, serving_container
from collectors.kube_api import Json, deployment_of, mapping, text
from collectors.kube_objects import NODES, PODS, Objects, key_of, labels_of, owner_of

LWS_NAME, LWS_GROUP, LWS_WORKER = (
    f"leaderworkerset.sigs.k8s.io/{part}" for part in ("name", "group-index", "worker-index")
)
KSERVE = "serving.kserve.io/inferenceservice"
RAY_SERVICE, RAY_CRD, RAY_CLUSTER = "ray.io/originated-from-cr-name", "ray.io/originated-from-crd", "ray.io/cluster"
SERVICE_LABEL = "app.kubernetes.io/name"
CLIQUE = "nvidia.com/gpu.clique"
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What counts of one pod. ``accelerators`` by resource name; ``group`` is the replica's name."""

    namespace: str
    name: str
    uid: str
    node: str
    owner_kind: str
    workload: str
    service: str
    group: str
    accelerators: Mapping[str, float]
    created: str
    is_over: bool

    @property
    def gpus(self) -> float:
        """Accelerators of every sort together."""
        return sum(self.accelerators.values())


@dataclass(frozen=True, slots=True)
class Replica:
    """One TP x PP group with its pods, leader first. ``args`` are the leader's."""

    namespace: str
    name: str
    pods: tuple[PodFacts, ...]
    args: EngineArgs
    image: str = ""
    domains: frozenset[str] = frozenset()

    @property
    def gpus(self) -> float:
        """Accelerators of all its pods."""
        return sum(pod.gpus for pod in self.pods)


@dataclass(slots=True)
class Replicas:
    """The pods of a cluster, read once a change: pods by uid, replicas by (namespace, name)."""

    pods: dict[str, PodFacts] = field(default_factory=dict)
    replicas: dict[tuple[str, str], Replica] = field(default_factory=dict)


def pod_facts(pod: Json, service_label: str = SERVICE_LABEL) -> PodFacts:
    """What counts of a pod object."""
    (namespace, name), labels = key_of(pod), labels_of(pod)
    spec, status, meta = (mapping(pod.get(part)) for part in ("spec", "status", "metadata"))
    kind, owner = workload_of(pod)
    asked = pod_accelerators(spec)
    service = labels.get(service_label) or labels.get(KSERVE) or (owner if kind == "RayService" else "")
    return PodFacts(
        namespace=namespace,
        name=name,
        uid=text(meta.get("uid")),
        node=text(spec.get("nodeName")),
        owner_kind=kind,
        workload=owner,
        service=service or (owner or name if asked else ""),
        group=_group(name, labels),
        accelerators=asked,
        created=text(meta.get("creationTimestamp")),
        is_over=text(status.get("phase")) in _OVER,
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
    if kind != "ReplicaSet":
        return kind, name
    known = labels.get("pod-template-hash")
    bare = name.removesuffix(f"-{known}") if known else deployment_of(name)
    return "Deployment", bare


@dataclass(slots=True)
class PodIndex:
    """What counts of every pod, read when it changes: most updates are of its status and change nothing here.

    ``version`` rises when a pod comes, goes, moves or becomes another's.
    """

    service_label: str = SERVICE_LABEL
    pods: dict[str, PodFacts] = field(default_factory=dict)
    version: int = 0
    _engines: dict[str, tuple[EngineArgs, str]] = field(default_factory=dict)

    def take(self, pod: Json) -> PodFacts:
        """A pod as it is now."""
        facts = pod_facts(pod, self.service_label)
        if self.pods.get(facts.uid) != facts:
            self.pods[facts.uid] = facts
            self.version += 1
            if facts.accelerators:
                container = serving_container(mapping(pod.get("spec")))
                self._engines[facts.uid] = (engine_args(container), text(container.get("image")))
        return facts

    def drop(self, uid: str) -> None:
        """A pod is no more."""
        self._engines.pop(uid, None)
        if self.pods.pop(uid, None) is not None:
            self.version += 1

    def replicas(self, nodes: Iterable[Json]) -> Replicas:
        """Replicas of the pods that ask for accelerators and are not over; ``nodes`` tell NVLink domains."""
        groups: dict[tuple[str, str], list[PodFacts]] = {}
        for facts in self.pods.values():
            if facts.accelerators and not facts.is_over:
                groups.setdefault((facts.namespace, facts.group), []).append(facts)
        clique_of = {key_of(node)[1]: labels_of(node).get(CLIQUE, "") for node in nodes}
        found = Replicas(dict(self.pods))
        for (namespace, name), pods in groups.items():
            pods.sort(key=lambda pod: (pod.name != name, pod.name))
            args, image = self._engines[pods[0].uid]
            domains = frozenset(clique_of.get(pod.node) or f"node:{pod.node}" for pod in pods if pod.node)
            found.replicas[namespace, name] = Replica(namespace, name, tuple(pods), args, image, domains)
        return found


def replicas_of(objects: Objects, service_label: str = SERVICE_LABEL) -> Replicas:
    """Every pod's facts and the replicas, read anew."""
    index = PodIndex(service_label)
    for pod in objects.all(PODS):
        index.take(pod)
    return index.replicas(objects.all(NODES))


def _group(name: str, labels: Mapping[str, str]) -> str:
    if labels.get(LWS_NAME) and labels.get(LWS_GROUP):
        return f"{labels[LWS_NAME]}-{labels[LWS_GROUP]}"
    return name


def of_workload(replicas: Iterable[Replica], namespace: str, name: str) -> list[Replica]:
    """The replicas of one workload."""
    return [one for one in replicas if one.namespace == namespace and one.pods[0].workload == name]
