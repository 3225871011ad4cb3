"""Dependency graph of components: node -> gpu, pod -> replica -> service.

An edge (a, b) means that b depends on a: a fault of a can affect b. A cluster is not a vertex; it is a field of every
entity. The graph may be incomplete or contain cycles; every walk visits an entity once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from outrider.model import EntityKind, EntityRef

EVICTION_BLOCKED_BY = "eviction_blocked_by"
"""Label of a pod whose eviction the API server would refuse now: its PodDisruptionBudgets, separated by commas."""
NOT_READY = "not_ready"
"""Label of such a pod that is not ready: a restart deletes it, and deletions need no budget."""
Edge = tuple[EntityRef, EntityRef]
Labels = Mapping[EntityRef, Mapping[str, str]]
DELETED = "deleted"  # label of a pod that the cluster deleted recently


@dataclass(frozen=True, slots=True)
class Topology:
    """The graph at a time. ``labels`` are facts about an entity, such as its GPU type."""

    at: datetime | None = None
    entities: frozenset[EntityRef] = frozenset()
    labels: Labels = field(default_factory=dict)
    _above: Mapping[EntityRef, tuple[EntityRef, ...]] = field(default_factory=dict)
    _below: Mapping[EntityRef, tuple[EntityRef, ...]] = field(default_factory=dict)

    @staticmethod
    def build(
        edges: Iterable[Edge],
        entities: Iterable[EntityRef] = (),
        labels: Labels | None = None,
        at: datetime | None = None,
    ) -> Topology:
        """Builds the graph from (supporter, supported) pairs. Entities without edges may be listed separately."""
        above: dict[EntityRef, dict[EntityRef, None]] = {}
        below: dict[EntityRef, dict[EntityRef, None]] = {}
        everyone = set(entities)
        for supporter, supported in edges:
            if supporter == supported:
                everyone.add(supporter)
                continue
            above.setdefault(supporter, {})[supported] = None
            below.setdefault(supported, {})[supporter] = None
        everyone.update(above, below)
        return Topology(
            at=at,
            entities=frozenset(everyone),
            labels=dict(labels or {}),
            _above={entity: tuple(result) for entity, result in above.items()},
            _below={entity: tuple(result) for entity, result in below.items()},
        )

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every (supporter, supported) pair."""
        return tuple((lower, upper) for lower, uppers in self._above.items() for upper in uppers)

    def shares_graph(self, other: Topology | None) -> bool:
        """True if the other differs only in its timestamp, because it was derived from this one; a copy gives False."""
        return other is not None and self.entities is other.entities and self.labels is other.labels

    def rests_on(self, entity: EntityRef) -> tuple[EntityRef, ...]:
        """Direct dependencies of the entity: a pod's node, a replica's pods."""
        return self._below.get(entity, ())

    def holds_up(self, entity: EntityRef) -> tuple[EntityRef, ...]:
        """Direct dependents of the entity."""
        return self._above.get(entity, ())

    def affected_by(self, entity: EntityRef) -> frozenset[EntityRef]:
        """Everything that a fault of the entity can affect, including itself."""
        return self._walk(entity, self._above)

    def causes_of(self, entity: EntityRef) -> frozenset[EntityRef]:
        """Everything whose fault can affect the entity, including itself."""
        return self._walk(entity, self._below)

    def on_path(self, first: EntityRef, other: EntityRef) -> bool:
        """True if a fault of one of the two can affect the other."""
        return other in self.affected_by(first) or first in self.affected_by(other)

    def above(self, entity: EntityRef, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Dependents of a kind, sorted: ``above(gpu, SERVICE)``."""
        return _sorted(result for result in self.affected_by(entity) if result.kind is kind)

    def below(self, entity: EntityRef, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Dependencies of a kind, sorted: ``below(replica, GPU)``."""
        return _sorted(result for result in self.causes_of(entity) if result.kind is kind)

    def of_kind(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Every entity of a kind, sorted."""
        return _sorted(entity for entity in self.entities if entity.kind is kind)

    def label(self, entity: EntityRef, name: str, default: str = "") -> str:
        """A fact about an entity."""
        return self.labels.get(entity, {}).get(name, default)

    def _walk(self, start: EntityRef, links: Mapping[EntityRef, tuple[EntityRef, ...]]) -> frozenset[EntityRef]:
        seen, waiting = {start}, [start]
        while waiting:
            for result in links.get(waiting.pop(), ()):
                if result not in seen:
                    seen.add(result)
                    waiting.append(result)
        return frozenset(seen)


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges and facts of one source, in the form of pages (``outrider.ports.Collected``)."""

    edges: tuple[Edge, ...] = ()
    labels: Labels = field(default_factory=dict)


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


def _sorted(entities: Iterable[EntityRef]) -> tuple[EntityRef, ...]:
    return tuple(sorted(entities, key=lambda entity: entity.key))
