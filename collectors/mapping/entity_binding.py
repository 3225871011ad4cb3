"""Which component a row of a page is about, before and after the target is known.

A page layout is shared by many targets, so a row first gets a ``Place``: the labels' part of the
answer. ``bind`` adds the target's part and gives entities, edges and labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from collectors.exposition.parser import Layout
from collectors.mapping.model import Adapter, EntitySpec, Match, named
from collectors.mapping.target import Target
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge


@dataclass(frozen=True, slots=True)
class Place:
    """Which entity a row is about, before the target is known. ``name`` None: the target's entity."""

    kind: EntityKind
    name: str | None = None
    namespace: str | None = None
    of_target: bool = False
    within_target: bool = False
    split: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """A row whose change is an event: its place, its code (None: the value is the code), attributes."""

    row: int
    place: Place
    code: str | None
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Binding:
    """The entities of one target's pages by kind, in the order of the compiled places.

    The entity the target stands for is always among those of its kind, if need be as the last one;
    ``own_row`` is its place. ``part_rows`` are those it is split into.
    """

    entities: Mapping[EntityKind, tuple[EntityRef, ...]]
    own_row: int
    part_rows: tuple[int, ...]
    edges: tuple[Edge, ...]
    labels: Mapping[EntityRef, Mapping[str, str]]


class Places:
    """Finds the place of each row of one layout."""

    def __init__(self, adapter: Adapter, layout: Layout) -> None:
        """A label such as vLLM's ``engine`` divides the target when the page has several values of it."""
        self._adapter = adapter
        self._layout = layout
        self._split = {
            kind: tuple(label for label in spec.split if _several(label, layout))
            for kind, spec in adapter.entities.items()
            if spec.split
        }
        # A target is one component, so its name is taken once for the whole page.
        self._target_names = {
            kind: next((name for one in layout.series if (name := _joined(spec.parts, one.labels))), None)
            for kind, spec in adapter.entities.items()
            if spec.target
        }

    def of(self, kind: EntityKind, row: int) -> Place | None:
        """The entity a row is about; None when its labels do not say."""
        spec, labels = self._adapter.entities[kind], self._layout.series[row].labels
        if spec.target:
            divided = "/".join(labels[label] for label in self._split.get(kind, ()) if labels.get(label)) or None
            return Place(kind, self._target_names[kind], of_target=True, split=divided)
        namespace = first_label(labels, spec.namespace) if spec.namespace else None
        for parts in (spec.parts, spec.otherwise):
            name = _joined(parts, labels) if parts else None
            if name is not None:
                return Place(kind, name, namespace, within_target=("@target",) in parts)
        return Place(kind, of_target=True) if _falls_back(spec) else None

    def part(self, kind: EntityKind, row: int) -> Place | None:
        """The part of its entity that a row is about, such as a MIG instance; None when it is about the whole."""
        _, part = (*self.every(kind, row), None, None)[:2]
        return part

    def every(self, kind: EntityKind, row: int) -> tuple[Place, ...]:
        """The entity a row is about, then the part of it, where there is one."""
        whole, label = self.of(kind, row), self._adapter.entities[kind].instance
        part = self._layout.series[row].labels.get(label) if label else None
        if whole is None:
            return ()
        return (whole, replace(whole, instance=part)) if part else (whole,)

    def matching(self, names: tuple[str, ...], where: tuple[Match, ...] = ()) -> Iterator[int]:
        """Rows of these metrics that meet the conditions."""
        for name in names:
            for row in self._layout.names.get(name, ()):
                if all(match.holds(self._layout.series[row].labels) for match in where):
                    yield int(row)

    def edges(self) -> Iterator[tuple[Place, Place]]:
        """(supporter, supported) pairs seen on the page."""
        for edge in self._adapter.edges:
            for row in self.matching(self._present(edge.metrics), edge.where):
                lower, upper = self.of(edge.lower, row), self.of(edge.upper, row)
                if lower is not None and upper is not None:
                    yield self.part(edge.lower, row) or lower, upper
                part = self.part(edge.upper, row)
                if upper is not None and part is not None:
                    yield upper, part

    def labels(self) -> Iterator[tuple[Place, Mapping[str, str]]]:
        """Facts about entities seen on the page."""
        for spec in self._adapter.labels:
            for row in self.matching(self._present(spec.metrics)):
                for place in self.every(spec.kind, row):
                    facts = self._facts(row, spec.facts)
                    yield place, facts if place.instance is None else {**facts, "part_of": place.name or ""}

    def watches(self) -> Iterator[Watch]:
        """Rows whose change is an event."""
        for spec in self._adapter.events:
            for row in self.matching(self._present(spec.metrics)):
                place, labels = self.of(spec.entity, row), self._layout.series[row].labels
                if place is not None:
                    code = labels.get(spec.code_label, "") if spec.code_label else None
                    yield Watch(row, place, code, self._facts(row, spec.attributes))

    def _present(self, metrics: tuple[str, ...]) -> tuple[str, ...]:
        """The series of the first metric that is on the page."""
        return next((found for name in metrics if (found := named(name, self._layout.names))), ())

    def _facts(self, row: int, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        labels = self._layout.series[row].labels
        found = {fact: first_label(labels, spellings) for fact, spellings in wanted.items()}
        return {fact: value for fact, value in found.items() if value}


def resolve(place: Place, target: Target) -> EntityRef:
    """The entity of a place, now that the target is known.

    For a place of the target: the target's own entity when it is of that kind; a node else by the
    target's ``node`` label, then by the name on the page.
    """
    base = target.entity
    if not place.of_target and place.instance is not None:
        return resolve(replace(place, name=f"{place.name}/{place.instance}", instance=None), target)
    if not place.of_target:
        names = (base.name, place.name) if place.within_target else (place.name,)
        name = "/".join(part for part in names if part)
        # A replica or service that a page names without its namespace is one beside the target.
        inherits = place.namespace is None and place.kind in {EntityKind.REPLICA, EntityKind.SERVICE}
        return EntityRef(base.cluster, place.kind, base.namespace if inherits else place.namespace, name)
    if base.kind is not place.kind:
        if place.kind is EntityKind.NODE and target.node is not None:
            base = target.node
        else:
            namespace = None if place.kind in {EntityKind.NODE, EntityKind.CLUSTER} else base.namespace
            base = EntityRef(base.cluster, place.kind, namespace, place.name or base.name)
    if place.split is None:
        return base
    return EntityRef(base.cluster, base.kind, base.namespace, f"{base.name}:{place.split}")


def bind(
    adapter: Adapter,
    places: Mapping[EntityKind, tuple[Place, ...]],
    edges: tuple[tuple[Place, Place], ...],
    labels: tuple[tuple[Place, Mapping[str, str]], ...],
    target: Target,
) -> Binding:
    """Entities, edges and labels of one target's pages. The parts of a split entity rest on the whole."""
    entities = {kind: tuple(resolve(place, target) for place in found) for kind, found in places.items()}
    own, ranked = own_entity(adapter, target), entities.get(adapter.target, ())
    if own not in ranked:
        entities[adapter.target] = ranked = (*ranked, own)
    known: dict[EntityRef, dict[str, str]] = {entity: dict(facts) for entity, facts in target.facts.items()}
    for place, facts in labels:
        known.setdefault(resolve(place, target), {}).update(facts)
    found = list(target.edges)
    parts = tuple(row for row, place in enumerate(places.get(adapter.target, ())) if place.split is not None)
    for row in parts:
        part, whole = ranked[row], own
        found.append((whole, part))
        if target.service is not None:
            found.append((part, target.service))
        known[part] = {**known.get(whole, {}), "part_of": whole.name}
    found.extend((resolve(lower, target), resolve(upper, target)) for lower, upper in edges)
    return Binding(entities, ranked.index(own), parts, tuple(dict.fromkeys(found)), known)


def own_entity(adapter: Adapter, target: Target) -> EntityRef:
    """The entity a target stands for, of the kind its adapter speaks about."""
    return resolve(Place(adapter.target, of_target=True), target)


def first_label(labels: Mapping[str, str], spellings: tuple[str, ...]) -> str | None:
    """The value of the first spelling that is set and not empty."""
    return next((labels[name] for name in spellings if labels.get(name)), None)


def _joined(parts: tuple[tuple[str, ...], ...], labels: Mapping[str, str]) -> str | None:
    if parts == (("@target",),):
        return ""  # the target's own name, for an entity that is another kind of the same thing
    found = [first_label(labels, part) for part in parts if part != ("@target",)]
    return "/".join(part for part in found if part) if found and all(found) else None


def _several(label: str, layout: Layout) -> bool:
    return len({one.labels[label] for one in layout.series if label in one.labels}) > 1


def _falls_back(spec: EntitySpec) -> bool:
    return any("@target" in part and len(part) > 1 for part in spec.parts)
