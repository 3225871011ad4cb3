"""Topology from the Kubernetes API: node - GPU - pod - replica - service with their facts. Pure.

Discovery and the event source use this graph. It applies if no exporter's page covers it. Facts from pages take
precedence (``unlisted_by_pages``): a replica with a page is not added again under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes.accelerators import node_facts
from collectors.kubernetes.numa import devices, node_zones
from collectors.kubernetes.objects import NODE_TOPOLOGIES, NODES, RESOURCE_SLICES, Objects, key_of
from collectors.kubernetes.pods import PodFacts
from collectors.kubernetes.replicas import Replicas
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge, Topology

Labels = Mapping[EntityRef, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges and facts in the form of pages (``outrider.ports.Collected``)."""

    edges: tuple[Edge, ...] = ()
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeletedPod:
    """A deleted pod; ``until`` is its end by the API's clock, if known."""

    pod: PodFacts
    until: str = ""


def graph(objects: Objects, replicas: Replicas, cluster: str, gone: Iterable[DeletedPod] = ()) -> Graph:
    """Graph of one cluster. Of ``gone`` pods only the edges below them, with the label ``until``."""
    edges: dict[Edge, None] = {}
    labels: dict[EntityRef, dict[str, str]] = {}
    zones = node_zones(objects.all(NODE_TOPOLOGIES))
    for node in objects.all(NODES):
        name = key_of(node)[1]
        labels[_node(cluster, name)] = {**node_facts(node), **zones.get(name, {})}
    for gpu, facts in devices(objects.all(RESOURCE_SLICES), cluster):
        labels[gpu] = facts
        edges[_node(cluster, facts["node"]), gpu] = None
    for deleted in gone:
        facts = {"uid": deleted.pod.uid, "node": deleted.pod.node, "since": deleted.pod.since, "until": deleted.until}
        labels[deleted.pod.entity(cluster)] = {name: value for name, value in facts.items() if value}
        edges.update(dict.fromkeys(_below(deleted.pod, cluster)))
    for pod in replicas.pods.values():
        labels[pod.entity(cluster)] = pod.facts()
        if not pod.is_over:
            edges.update(dict.fromkeys(_below(pod, cluster)))
    for replica in replicas.replicas.values():
        own = replica.pods[0].replica(cluster)
        labels[own] = replica.facts
        edges.update(((pod.entity(cluster), own), None) for pod in replica.pods)
        edges[own, EntityRef(cluster, EntityKind.SERVICE, replica.namespace, replica.service)] = None
    return Graph(tuple(edges), labels)


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


def unlisted_by_pages(pages: Topology, other: Graph) -> Graph:
    """The part of ``other`` that ``pages``, the topology from pages, does not cover.

    A replica whose pods are below one from pages is that one, and keeps its service and facts. A replica is omitted
    if pages list replicas of its service without pods: the correspondence is unknown.
    """
    pods: dict[EntityRef, list[EntityRef]] = {}
    services: dict[EntityRef, EntityRef] = {}
    for lower, upper in other.edges:
        if lower.kind is EntityKind.POD and upper.kind is EntityKind.REPLICA:
            pods.setdefault(upper, []).append(lower)
        elif lower.kind is EntityKind.REPLICA and upper.kind is EntityKind.SERVICE:
            services[lower] = upper
    unplaced = {service for service in set(services.values()) if _has_unplaced(service, pages)}
    names: dict[EntityRef, tuple[EntityRef, ...]] = {}
    for own, below in pods.items():
        paged = dict.fromkeys(up for pod in below for up in pages.holds_up(pod) if up.kind is EntityKind.REPLICA)
        if paged or own in pages.entities or services.get(own) not in unplaced:
            names[own] = tuple(paged) or (own,)
        else:
            names[own] = ()
    edges = [edge for lower, upper in other.edges for edge in _renamed(lower, upper, names, pages)]
    labels: dict[EntityRef, Mapping[str, str]] = {}
    for entity, facts in other.labels.items():
        for name in names.get(entity, (entity,)):
            labels[name] = {**labels.get(name, {}), **facts}
    return Graph(tuple(edges), labels)


def _renamed(
    lower: EntityRef, upper: EntityRef, names: Mapping[EntityRef, tuple[EntityRef, ...]], pages: Topology
) -> Iterator[Edge]:
    if upper in names:
        yield from ((lower, name) for name in names[upper])
    elif lower in names:
        for name in names[lower]:
            if not any(upper_entity.kind is EntityKind.SERVICE for upper_entity in pages.holds_up(name)):
                yield name, upper
    else:
        yield lower, upper


def _has_unplaced(service: EntityRef, pages: Topology) -> bool:
    members = [replica for replica in pages.rests_on(service) if replica.kind is EntityKind.REPLICA]
    return any(all(below.kind is not EntityKind.POD for below in pages.rests_on(replica)) for replica in members)


def merge_graphs(
    page_edges: Iterable[Edge], page_labels: Labels, graphs: Iterable[Graph]
) -> tuple[list[Edge], dict[EntityRef, Mapping[str, str]]]:
    """Merges the graph of pages with other graphs.

    Facts from pages take precedence. A pod of which a page knows only the uid gets its name.
    """
    edges: list[Edge] = []
    labels: dict[EntityRef, Mapping[str, str]] = {}
    for item in graphs:
        edges += item.edges
        labels.update(item.labels)
    edges += page_edges
    for entity, facts in page_labels.items():
        labels[entity] = {**labels[entity], **facts} if entity in labels else facts
    unnamed = {
        entity for edge in edges for entity in edge if entity.kind is EntityKind.POD and entity.namespace is None
    }
    if not unnamed:
        return edges, labels
    pods = {
        facts["uid"]: entity
        for entity, facts in labels.items()
        if entity.kind is EntityKind.POD and entity.namespace and facts.get("uid")
    }
    names = {entity: pods[entity.name] for entity in unnamed if entity.name in pods}
    for entity in names:
        labels.pop(entity, None)
    return [(names.get(lower, lower), names.get(upper, upper)) for lower, upper in edges], labels


def _node(cluster: str, name: str) -> EntityRef:
    return EntityRef(cluster, EntityKind.NODE, None, name)
