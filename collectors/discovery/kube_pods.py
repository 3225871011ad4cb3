"""What a pod is in a fleet that serves models: whose it is, its group, where its page is. Pure.

A replica is one TP x PP group with one scheduler. A LeaderWorkerSet group and a Ray cluster are one replica of
several pods, and only their leader is read as an engine; any other pod of a service, those of a RayService too,
is a replica by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.discovery.found import PATH, SCHEME, Found
from collectors.discovery.kube_gpus import Held, held_by
from collectors.kube_api import Json, deployment_of, items, mapping, text, texts
from collectors.kube_replicas import KSERVE, LWS_GROUP, LWS_NAME, LWS_WORKER, RAY_CLUSTER, RAY_CRD, RAY_SERVICE
from outrider.model import EntityKind, EntityRef

ADAPTER, SERVICE, MODEL = (f"outrider.io/{name}" for name in ("adapter", "service", "model"))
_SAID = {"model": MODEL, "request_class": "outrider.io/request-class", "tenant": "outrider.io/tenant"}
SCRAPE, PORT, METRICS_PATH, METRICS_SCHEME = (f"prometheus.io/{name}" for name in ("scrape", "port", "path", "scheme"))
_OURS = ("prometheus.io/", "outrider.io/")  # annotations that count; others can be as large as the pod itself
_PORT_NAMES = ("metrics", "http-metrics", "http-prometheus", "http")
_BY_NAME = {
    "dcgm-exporter": "dcgm", "nvidia-dcgm-exporter": "dcgm", "node-exporter": "node_exporter",
    "prometheus-node-exporter": "node_exporter", "kube-state-metrics": "kube_state_metrics",
}  # fmt: skip
_FLAGS = {
    "tensor_parallel": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--num-shard"),
    "pipeline_parallel": ("--pipeline-parallel-size", "-pp", "--pp-size"),
    "model": ("--served-model-name", "--model", "--model-id", "--model-path"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``group`` is the replica of several pods that it is a part of, "" for none.

    ``since`` is when it began to be what it is: its edges hold from then on.
    """

    entity: EntityRef
    uid: str
    node: str
    address: str
    since: str = ""
    service: str = ""
    workload: str = ""
    group: str = ""
    leads: bool = True
    adapter: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, int], ...] = ()
    held: Held = field(default_factory=Held)

    @property
    def replica(self) -> EntityRef:
        """The replica it is, or is a part of."""
        name = self.group or self.entity.name
        return EntityRef(self.entity.cluster, EntityKind.REPLICA, self.entity.namespace, name)

    @property
    def wants_scrape(self) -> bool:
        """True when it says so itself."""
        return self.notes.get(SCRAPE, "").lower() == "true"


def pod_of(pod: Json, cluster: str, service_label: str) -> PodFacts | None:
    """A pod that runs or is about to; None for one that is over or has no name."""
    meta, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace = text(meta.get("name")), text(meta.get("namespace"))
    if not name or text(status.get("phase")) in ("Succeeded", "Failed"):
        return None
    labels, notes = texts(meta.get("labels")), texts(meta.get("annotations"))
    workload = _workload(meta, labels)
    group, leads = _group(labels)
    flags = _flags(spec)
    said = {fact: labels.get(name) or notes.get(name) or "" for fact, name in _SAID.items()}
    said["version"] = labels.get("app.kubernetes.io/version", "")
    own = {**flags, **{fact: value for fact, value in said.items() if value}}
    return PodFacts(
        entity=EntityRef(cluster, EntityKind.POD, namespace or "default", name),
        uid=text(meta.get("uid")),
        node=text(spec.get("nodeName")),
        address=text(status.get("podIP")),
        since=text(status.get("startTime")),
        service=_service(labels, notes, service_label),
        workload=workload,
        group=group,
        leads=leads,
        adapter=notes.get(ADAPTER)
        or labels.get(ADAPTER)
        or _BY_NAME.get(labels.get("app.kubernetes.io/name", ""))
        or _BY_NAME.get(labels.get("app", "")),
        own=own,
        meta=labels,
        notes={name: value for name, value in notes.items() if name.startswith(_OURS)},
        ports=_ports(spec),
        held=held_by(pod),
    )


def ended_at(pod: Json) -> str:
    """When a pod ended, as the API tells it: its last container's end, else when it was told to go; "" for neither."""
    ends = [
        text(mapping(mapping(one.get("state")).get("terminated")).get("finishedAt"))
        for one in items(mapping(pod.get("status")).get("containerStatuses"))
    ]
    return max(ends, default="") or text(mapping(pod.get("metadata")).get("deletionTimestamp"))


def _service(labels: Mapping[str, str], notes: Mapping[str, str], service_label: str) -> str:
    """The model service of a pod: what somebody said, then what its operator wrote, then its common label."""
    said = labels.get(SERVICE) or notes.get(SERVICE) or labels.get(KSERVE)
    if said:
        return said
    if labels.get(RAY_CRD) == "RayService" and labels.get(RAY_SERVICE):
        return labels[RAY_SERVICE]
    for name in (service_label, LWS_NAME, RAY_CLUSTER, "app.kubernetes.io/name", "app"):
        if labels.get(name):
            return labels[name]
    return ""


def _group(labels: Mapping[str, str]) -> tuple[str, bool]:
    """The name of a replica of several pods, and whether this one leads it."""
    name = labels.get(LWS_NAME)
    if name:
        number = labels.get(LWS_GROUP, "0")
        return f"{name}-{number}", labels.get(LWS_WORKER, "0") == "0"
    ray = labels.get(RAY_CLUSTER)
    if ray and labels.get(RAY_CRD) != "RayService":  # Ray Serve has replicas of its own in it
        return ray, labels.get("ray.io/node-type", "head") == "head"
    return "", True


def _workload(meta: Json, labels: Mapping[str, str]) -> str:
    """What people know a pod's owner by: the deployment of a replica set, the custom resource of an operator."""
    known = labels.get(KSERVE) or labels.get(LWS_NAME) or labels.get(RAY_CLUSTER)
    if known:
        return known
    owner = next((one for one in items(meta.get("ownerReferences")) if one.get("controller")), {})
    name = text(owner.get("name"))
    return deployment_of(name) if owner.get("kind") == "ReplicaSet" else name


def _ports(spec: Json) -> tuple[tuple[str, int], ...]:
    ports = [port for container in items(spec.get("containers")) for port in items(container.get("ports"))]
    found = [(text(one.get("name")), one.get("containerPort")) for one in ports]
    return tuple((name, port) for name, port in found if isinstance(port, int) and 0 < port < 65536)


def _flags(spec: Json) -> dict[str, str]:
    """What the command of an engine says of its model and of how it is split over devices."""
    words: list[str] = []
    for container in items(spec.get("containers")):
        for part in ("command", "args"):
            given = container.get(part)
            for word in given if isinstance(given, list) else ():
                words += str(word).split() if part == "args" and " --" in str(word) else [str(word)]
    found: dict[str, str] = {}
    for fact, spellings in _FLAGS.items():
        for spelling in spellings:
            value = _value(words, spelling)
            if value and (fact == "model" or (value.isdigit() and 0 < int(value) <= 1024)):
                found[fact] = value.rstrip("/")
                break
    return found


def _value(words: list[str], flag: str) -> str:
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words) and not words[place + 1].startswith("-"):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""


def page_of(pod: PodFacts, *, service: str = "", notes: Mapping[str, str] | None = None) -> Found | str:
    """Where the page of a pod is, or in one sentence why nobody can tell.

    ``notes`` are the annotations that ask for it: the pod's own, or those of a Service in front of it.
    """
    asked = pod.notes if notes is None else notes
    told = asked.get(PORT, "")
    named = dict(reversed(pod.ports))
    if told.isdigit() and 0 < int(told) < 65536:
        port: int | None = int(told)
    elif told:
        port = named.get(told)
        if port is None:
            return f"{pod.entity} has annotation {PORT}: {told!r}, which is neither a port nor the name of one"
    else:
        port = next((named[name] for name in _PORT_NAMES if name in named), pod.ports[0][1] if pod.ports else None)
        if port is None:
            return f"{pod.entity} declares no port; name one with annotation {PORT}"
    labels = {
        **{f"__meta_kubernetes_pod_label_{_safe(name)}": value for name, value in pod.meta.items()},
        **pod.own,
        "namespace": pod.entity.namespace or "",
        "pod": pod.entity.name,
        "node": pod.node,
        "service": pod.service or service or pod.workload,
        "workload": pod.workload,
        "replica": pod.replica.name,
        "group": pod.group,
        SCHEME: asked.get(METRICS_SCHEME, ""),
        PATH: asked.get(METRICS_PATH, ""),
    }
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    adapter = asked.get(ADAPTER) or pod.adapter
    return Found(f"{host}:{port}", {name: value for name, value in labels.items() if value}, adapter, pod.uid)


def _safe(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
