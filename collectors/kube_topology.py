"""Topology from the Kubernetes API: node - pod - replica - service with what is known of each. Pure.

It holds where no exporter's page tells it. What pages tell of a replica and its service goes before: a replica
that has a page is not told a second time under another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.kube_api import Json, items, mapping, text
from collectors.kube_objects import NODES, Objects, key_of, labels_of
from collectors.kube_replicas import CLIQUE, Replica, Replicas
from collectors.places import first_label
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge, Topology

_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
# labels of NVIDIA's gpu-feature-discovery, and what people ask
_NODE_LABELS = {
    "gpu_type": ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator"),
    "gpu_count": ("nvidia.com/gpu.count",),
    "gpu_memory_mib": ("nvidia.com/gpu.memory",),
    "nvlink_domain": (CLIQUE,),
    "mig_strategy": ("nvidia.com/mig.strategy",),
    "zone": _ZONES,
    "instance_type": ("node.kubernetes.io/instance-type",),
}
_DRIVER = ("nvidia.com/cuda.driver-version.full",)
_CUDA = ("nvidia.com/cuda.runtime-version.full",)


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges and facts as pages give them (``outrider.ports.Collected``)."""

    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)


def gpu_type_of(labels: Mapping[str, str]) -> str:
    """The product name of a node's accelerators, empty when its labels do not tell."""
    return first_label(labels, _NODE_LABELS["gpu_type"]) or ""


def driver_of(labels: Mapping[str, str]) -> str:
    """The version of the NVIDIA driver that a node's labels tell."""
    return first_label(labels, _DRIVER) or _dotted(labels, "nvidia.com/cuda.driver", ("major", "minor", "rev"))


def cuda_of(labels: Mapping[str, str]) -> str:
    """The version of CUDA that the driver of a node supports."""
    older = _dotted(labels, "nvidia.com/cuda.runtime", ("major", "minor"))
    return first_label(labels, _CUDA) or _dotted(labels, "nvidia.com/cuda.runtime-version", ("major", "minor")) or older


def graph(objects: Objects, known: Replicas, cluster: str, pages: Topology | None = None) -> Graph:
    """The graph of one cluster. ``pages`` is what is known from pages, without this graph."""
    edges: list[Edge] = []
    labels: dict[EntityRef, dict[str, str]] = {}
    told = pages or Topology()
    for node in objects.all(NODES):
        labels[EntityRef(cluster, EntityKind.NODE, None, key_of(node)[1])] = node_facts(node)
    for pod in known.pods.values():
        entity = EntityRef(cluster, EntityKind.POD, pod.namespace, pod.name)
        facts = {"node": pod.node, "workload": pod.workload, "uid": pod.uid, "owner_kind": pod.owner_kind}
        facts |= {"since": pod.created, "gpus": f"{pod.gpus:g}" if pod.accelerators else ""}
        facts |= {f"asks:{name}": f"{amount:g}" for name, amount in pod.accelerators.items() if "/mig-" in name}
        labels[entity] = {name: value for name, value in facts.items() if value}
        if pod.node and not pod.is_over:
            edges.append((EntityRef(cluster, EntityKind.NODE, None, pod.node), entity))
    for replica in known.replicas.values():
        _add_replica(replica, cluster, told, edges, labels)
    return Graph(tuple(edges), labels)


def _add_replica(
    replica: Replica, cluster: str, pages: Topology, edges: list[Edge], labels: dict[EntityRef, dict[str, str]]
) -> None:
    pods = [EntityRef(cluster, EntityKind.POD, pod.namespace, pod.name) for pod in replica.pods]
    own = EntityRef(cluster, EntityKind.REPLICA, replica.namespace, replica.name)
    service = EntityRef(cluster, EntityKind.SERVICE, replica.namespace, replica.pods[0].service)
    paged = [one for pod in pods for one in pages.holds_up(pod) if one.kind is EntityKind.REPLICA]
    if not paged and own not in pages.entities and _has_unplaced(service, pages):
        return  # pages name replicas of this service without their pods: which of them this is nobody can say
    targets = list(dict.fromkeys(paged)) or [own]
    for target in targets:
        edges.extend((pod, target) for pod in pods)
        if not any(one.kind is EntityKind.SERVICE for one in pages.holds_up(target)):
            edges.append((target, service))
        labels[target] = {**_replica_facts(replica), **pages.labels.get(target, {})}


def _has_unplaced(service: EntityRef, pages: Topology) -> bool:
    members = [one for one in pages.rests_on(service) if one.kind is EntityKind.REPLICA]
    return any(all(below.kind is not EntityKind.POD for below in pages.rests_on(one)) for one in members)


def _replica_facts(replica: Replica) -> dict[str, str]:
    first, args = replica.pods[0], replica.args
    facts = {
        "workload": first.workload,
        "owner_kind": first.owner_kind,
        "engine": args.engine,
        "model": args.model,
        "image": replica.image,
        "gpus": f"{replica.gpus:g}",
        "pods": str(len(replica.pods)),
        "tensor_parallel": str(args.tensor_parallel),
        "pipeline_parallel": str(args.pipeline_parallel),
        "nvlink_domains": ",".join(sorted(one for one in replica.domains if not one.startswith("node:"))),
    }
    return {name: value for name, value in facts.items() if value}


def node_facts(node: Json) -> dict[str, str]:
    """What is told of a node; empty for one that is not there."""
    if not node:
        return {}
    labels, about = labels_of(node), mapping(mapping(node.get("status")).get("nodeInfo"))
    facts = {name: first_label(labels, spellings) or "" for name, spellings in _NODE_LABELS.items()}
    facts |= {"driver": driver_of(labels), "cuda": cuda_of(labels), "kubelet": text(about.get("kubeletVersion"))}
    facts["since"] = text(mapping(node.get("metadata")).get("creationTimestamp"))
    taints = [text(one.get("key")) for one in items(mapping(node.get("spec")).get("taints"))]
    facts["taints"] = ",".join(sorted(filter(None, taints)))
    return {name: value for name, value in facts.items() if value}


def _dotted(labels: Mapping[str, str], prefix: str, parts: tuple[str, ...]) -> str:
    """``535.161`` of ``PREFIX.major`` and ``PREFIX.minor``, as far as they are told."""
    found = [labels[f"{prefix}.{part}"] for part in parts if labels.get(f"{prefix}.{part}")]
    return ".".join(found)
