"""Differences between two topologies, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from outrider.model import EntityRef
from outrider.topology import Topology
from outrider.wire.sanitize import clean
from store.schema import metadata

Fact = tuple[str, ...]

COLUMNS: Mapping[sa.Table, tuple[str, ...]] = {
    metadata.topology_entity: ("entity", "kind"),
    metadata.topology_edge: ("supporter", "supported"),
    metadata.topology_label: ("entity", "name", "value"),
}


@dataclass(slots=True)
class Changes:
    """Facts by table."""

    new: dict[sa.Table, list[Fact]] = field(default_factory=dict)
    gone: dict[sa.Table, list[Fact]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """False if both graphs are equal."""
        return any(self.new.values()) or any(self.gone.values())


def between(before: Topology, after: Topology) -> Changes:
    """Facts that begin and facts that end between ``before`` and ``after``.

    Only entities with different links or labels are compared one by one.
    """
    result = Changes()
    for facts, item, other in ((result.new, after, before), (result.gone, before, after)):
        entities = item.entities - other.entities
        facts[metadata.topology_entity] = sorted((entity.key, entity.kind.value) for entity in entities)
        facts[metadata.topology_edge] = sorted(_edges(item, other))
        facts[metadata.topology_label] = sorted(_labels(item, other))
    return result


def _edges(graph: Topology, other: Topology) -> Iterator[Fact]:
    for lower in graph.entities:
        uppers, others = graph.holds_up(lower), other.holds_up(lower)
        if uppers is not others and uppers != others:
            for upper in set(uppers) - set(others):
                yield lower.key, upper.key


def _labels(graph: Topology, other: Topology) -> Iterator[Fact]:
    nothing: Mapping[str, str] = {}
    for entity, labels in graph.labels.items():
        others = other.labels.get(entity, nothing)
        if labels is not others and labels != others:
            yield from _facts(entity, labels) - _facts(entity, others)


def _facts(entity: EntityRef, labels: Mapping[str, str]) -> set[Fact]:
    return {(entity.key, clean(name), clean(value)) for name, value in labels.items()}
