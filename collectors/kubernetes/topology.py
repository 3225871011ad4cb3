"""Topology from the Kubernetes API: node - GPU - pod - replica - service with what is known of each. Pure.

Discovery and the source of events tell this same graph. It holds where no exporter's page tells it. What pages tell
of a replica and its service goes before (``beside``): a replica that has a page is not told a second time under
another name.
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
    """Edges and facts as pages give them (``outrider.ports.Collected``)."""

    edges: tuple[Edge, ...] = ()
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod that went; ``until`` by the API's own clock where it told."""

    pod: PodFacts
    until: str = ""


def graph(objects: Objects, known: Replicas, cluster: str, gone: Iterable[Gone] = ()) -> Graph:
    """The graph of one cluster. Of pods that are ``gone`` only what they rested on; label ``until`` says so."""
    edges: dict[Edge, None] = {}
    labels: dict[EntityRef, dict[str, str]] = {}
    zones = node_zones(objects.all(NODE_TOPOLOGIES))
    for one in objects.all(NODES):
        name = key_of(one)[1]
        labels[_node(cluster, name)] = {**node_facts(one), **zones.get(name, {})}
    for gpu, facts in devices(objects.all(RESOURCE_SLICES), cluster):
        labels[gpu] = facts
        edges[_node(cluster, facts["node"]), gpu] = None
    for was in gone:
        facts = {"uid": was.pod.uid, "node": was.pod.node, "since": was.pod.since, "until": was.until}
        labels[was.pod.entity(cluster)] = {name: value for name, value in facts.items() if value}
        edges.update(dict.fromkeys(_below(was.pod, cluster)))
    for pod in known.pods.values():
        labels[pod.entity(cluster)] = pod.facts()
        if not pod.is_over:
            edges.update(dict.fromkeys(_below(pod, cluster)))
    for replica in known.replicas.values():
        own = replica.pods[0].replica(cluster)
        labels[own] = replica.facts
        edges.update(((pod.entity(cluster), own), None) for pod in replica.pods)
        edges[own, EntityRef(cluster, EntityKind.SERVICE, replica.namespace, replica.service)] = None
    return Graph(tuple(edges), labels)


def _below(pod: PodFacts, cluster: str) -> Iterator[Edge]:
    """What a pod rests on: its node, and its devices where it is written down which."""
    entity, node = pod.entity(cluster), _node(cluster, pod.node)
    if pod.node:
        yield node, entity
    for device in pod.devices:
        if device.startswith(("GPU-", "MIG-")):
            gpu = EntityRef(cluster, EntityKind.GPU, None, device)
            yield gpu, entity
            if pod.node:
                yield node, gpu


def beside(pages: Topology, told: Graph) -> Graph:
    """What of ``told`` holds beside ``pages``, what is known from pages.

    A replica whose pods hold up one that pages name is that one, and keeps its service and its facts. One of a
    service whose replicas pages name without their pods is left out: which of them it is nobody can say.
    """
    pods: dict[EntityRef, list[EntityRef]] = {}
    services: dict[EntityRef, EntityRef] = {}
    for lower, upper in told.edges:
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
    edges = [edge for lower, upper in told.edges for edge in _renamed(lower, upper, names, pages)]
    labels: dict[EntityRef, Mapping[str, str]] = {}
    for entity, facts in told.labels.items():
        for name in names.get(entity, (entity,)):
            labels[name] = {**labels.get(name, {}), **facts}
    return Graph(tuple(edges), labels)


def _renamed(
    lower: EntityRef, upper: EntityRef, names: Mapping[EntityRef, tuple[EntityRef, ...]], pages: Topology
) -> Iterator[Edge]:
    if upper in names:
        yield from ((lower, one) for one in names[upper])
    elif lower in names:
        for one in names[lower]:
            if not any(above.kind is EntityKind.SERVICE for above in pages.holds_up(one)):
                yield one, upper
    else:
        yield lower, upper


def _has_unplaced(service: EntityRef, pages: Topology) -> bool:
    members = [one for one in pages.rests_on(service) if one.kind is EntityKind.REPLICA]
    return any(all(below.kind is not EntityKind.POD for below in pages.rests_on(one)) for one in members)


def joined(
    page_edges: Iterable[Edge], page_labels: Labels, told: Iterable[Graph]
) -> tuple[list[Edge], dict[EntityRef, Mapping[str, str]]]:
    """Pages and what is told ``beside`` them as one.

    Facts of pages go before. A pod of which a page knows no more than the uid gets its name.
    """
    edges: list[Edge] = []
    labels: dict[EntityRef, Mapping[str, str]] = {}
    for one in told:
        edges += one.edges
        labels.update(one.labels)
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
