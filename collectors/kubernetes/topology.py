"""Topology from the Kubernetes API: node - GPU - pod - replica - service with their facts. Pure.

Discovery and the event source use this graph. It applies if no exporter's page covers it. Facts from pages take
precedence (``outrider.topology.unlisted_by_pages``): a replica with a page is not added again under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collectors.kubernetes.accelerators import node_facts
from collectors.kubernetes.disruption_budgets import blocked_pods
from collectors.kubernetes.numa import devices, node_zones
from collectors.kubernetes.objects import (
    AUTOSCALERS,
    DEPLOYMENTS,
    NODE_TOPOLOGIES,
    NODES,
    RESOURCE_SLICES,
    STATEFUL_SETS,
    Objects,
    key_of,
)
from collectors.kubernetes.peers import REPLICAS_OWNER, TEMPLATE_OWNER, replicas_owners, template_owner
from collectors.kubernetes.pods import PodFacts
from collectors.kubernetes.replicas import Replica, Replicas
from outrider.model import EntityKind, EntityRef
from outrider.topology import DELETED, Edge, Graph


@dataclass(frozen=True, slots=True)
class DeletedPod:
    """A deleted pod; ``until`` is its end by the API's clock, if known."""

    pod: PodFacts
    until: str = ""


def graph(objects: Objects, replicas: Replicas, cluster: str, gone: Iterable[DeletedPod] = ()) -> Graph:
    """Graph of one cluster. Of ``gone`` pods only the edges below them, with the labels ``deleted`` and ``until``."""
    edges: dict[Edge, None] = {}
    labels: dict[EntityRef, dict[str, str]] = {}
    zones = node_zones(objects.all(NODE_TOPOLOGIES))
    owners = workload_owners(objects)
    for node in objects.all(NODES):
        name = key_of(node)[1]
        labels[_node(cluster, name)] = {**node_facts(node), **zones.get(name, {})}
    for gpu, facts in devices(objects.all(RESOURCE_SLICES), cluster):
        labels[gpu] = facts
        edges[_node(cluster, facts["node"]), gpu] = None
    for deleted in gone:
        facts = {
            "uid": deleted.pod.uid,
            "node": deleted.pod.node,
            "since": deleted.pod.since,
            "until": deleted.until,
            DELETED: "true",
        }
        labels[deleted.pod.entity(cluster)] = {name: value for name, value in facts.items() if value}
        edges.update(dict.fromkeys(_below(deleted.pod, cluster)))
    blocked = blocked_pods(objects, replicas.pods)
    for pod in replicas.pods.values():
        labels[pod.entity(cluster)] = {**pod.facts(), **blocked.get(pod.uid, {})}
        if not pod.is_over:
            edges.update(dict.fromkeys(_below(pod, cluster)))
    for replica in replicas.replicas.values():
        own = replica.pods[0].replica(cluster)
        labels[own] = {**replica.facts, **owners.get((replica.namespace, *_workload(replica)), {})}
        edges.update(((pod.entity(cluster), own), None) for pod in replica.pods)
        edges[own, EntityRef(cluster, EntityKind.SERVICE, replica.namespace, replica.service)] = None
    return Graph(tuple(edges), labels)


def _workload(replica: Replica) -> tuple[str, str]:
    return replica.pods[0].owner_kind, replica.pods[0].workload


def workload_owners(objects: Objects) -> dict[tuple[str, str, str], dict[str, str]]:
    """Labels of the programs that own template or replicas of each workload, by (namespace, kind, name)."""
    owners: dict[tuple[str, str, str], dict[str, str]] = {}
    for resource in (DEPLOYMENTS, STATEFUL_SETS):
        for workload in objects.all(resource):
            owner = template_owner(workload)
            if owner:
                namespace, name = key_of(workload)
                owners[namespace, resource.kind, name] = {TEMPLATE_OWNER: owner}
    for key, owner in replicas_owners(objects.all(AUTOSCALERS)).items():
        owners.setdefault(key, {})[REPLICAS_OWNER] = owner
    return owners


def _below(pod: PodFacts, cluster: str) -> Iterator[Edge]:
    """Edges below a pod: to its node, and to its devices if they are recorded."""
    entity, node = pod.entity(cluster), _node(cluster, pod.node)
    if pod.node:
        yield node, entity
    for device in pod.devices:
        if device.startswith(("GPU-", "MIG-")):
            gpu = EntityRef(cluster, EntityKind.GPU, None, device)
            yield gpu, entity
            if pod.node:
                yield node, gpu


def _node(cluster: str, name: str) -> EntityRef:
    return EntityRef(cluster, EntityKind.NODE, None, name)
