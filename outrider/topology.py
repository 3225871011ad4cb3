"""Dependency graph of components: node -> gpu, pod -> replica -> service.

An edge (a, b) means that b depends on a: a fault of a can affect b. A cluster is not a vertex; it is a field of every
entity. The graph may be incomplete or contain cycles; every walk visits an entity once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from outrider.model import EntityKind, EntityRef

Edge = tuple[EntityRef, EntityRef]


@dataclass(frozen=True, slots=True)
class Topology:
    """The graph at a time. ``labels`` are facts about an entity, such as its GPU type."""

    at: datetime | None = None
    entities: frozenset[EntityRef] = frozenset()
    labels: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)
    _above: Mapping[EntityRef, tuple[EntityRef, ...]] = field(default_factory=dict)
    _below: Mapping[EntityRef, tuple[EntityRef, ...]] = field(default_factory=dict)

    @staticmethod
    def build(
        edges: Iterable[Edge],
        entities: Iterable[EntityRef] = (),
        labels: Mapping[EntityRef, Mapping[str, str]] | None = None,
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


def _sorted(entities: Iterable[EntityRef]) -> tuple[EntityRef, ...]:
    return tuple(sorted(entities, key=lambda entity: entity.key))
