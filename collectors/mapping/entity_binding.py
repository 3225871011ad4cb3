"""Entity of each page row, before and after the target is known.

A page layout is shared by many targets, so a row first maps to an ``UnboundEntity``, the part that its labels
determine. ``bind`` adds the target's part and gives entities, edges and labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from collectors.exposition.parser import Layout
from collectors.mapping.model import Adapter, EntitySpec, Match, matching_names
from collectors.mapping.target import Target
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge
from outrider.vocabulary.tenants import NO_TENANT

_WITHOUT_TENANT = {"", "None", NO_TENANT}  # labels of requests that name none: LiteLLM, the SDK
_IN_NAMESPACE_OF_TARGET = {EntityKind.REPLICA, EntityKind.SERVICE, EntityKind.TENANT}


@dataclass(frozen=True, slots=True)
class UnboundEntity:
    """Entity of a row before the target is known. ``name`` None: the target's entity."""

    kind: EntityKind
    name: str | None = None
    namespace: str | None = None
    of_target: bool = False
    within_target: bool = False
    split: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class FaultCodeRow:
    """A row whose change is an event: its entity, code (None: the value is the code) and attributes."""

    row: int
    place: UnboundEntity
    code: str | None
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Binding:
    """Entities of one target's pages by kind, in the order of the compiled rows.

    The target's entity is always among those of its kind, if need be as the last one; ``own_row`` is its row.
    ``part_rows`` are those it is split into.
    """

    entities: Mapping[EntityKind, tuple[EntityRef, ...]]
    own_row: int
    part_rows: tuple[int, ...]
    edges: tuple[Edge, ...]
    labels: Mapping[EntityRef, Mapping[str, str]]


class LayoutEntities:
    """Maps the rows of one layout to entities."""

    def __init__(self, adapter: Adapter, layout: Layout) -> None:
        """A label such as vLLM's ``engine`` divides the target if the page has several values of it."""
        self._adapter = adapter
        self._layout = layout
        self._split = {
            kind: tuple(label for label in spec.split if _several(label, layout))
            for kind, spec in adapter.entities.items()
            if spec.split
        }
        # A target is one entity, so its name is taken once for the whole page.
        self._target_names = {
            kind: next((name for series in layout.series if (name := _joined(spec.parts, series.labels))), None)
            for kind, spec in adapter.entities.items()
            if spec.target
        }

    def of(self, kind: EntityKind, row: int) -> UnboundEntity | None:
        """Entity of a row; None if its labels do not determine one."""
        spec, labels = self._adapter.entities[kind], self._layout.series[row].labels
        if spec.target:
            divided = "/".join(labels[label] for label in self._split.get(kind, ()) if labels.get(label)) or None
            return UnboundEntity(kind, self._target_names[kind], of_target=True, split=divided)
        namespace = first_label(labels, spec.namespace) if spec.namespace else None
        if kind is EntityKind.TENANT:
            labels = _with_tenant(labels, spec.parts[-1])
        for parts in (spec.parts, spec.otherwise):
            name = _joined(parts, labels) if parts else None
            if name is not None:
                return UnboundEntity(kind, name, namespace, within_target=("@target",) in parts)
        return UnboundEntity(kind, of_target=True) if _falls_back(spec) else None

    def part(self, kind: EntityKind, row: int) -> UnboundEntity | None:
        """Part of its entity that a row belongs to, such as a MIG instance; None for the whole."""
        _, part = (*self.every(kind, row), None, None)[:2]
        return part

    def every(self, kind: EntityKind, row: int) -> tuple[UnboundEntity, ...]:
        """Entity of a row, then its part if there is one."""
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

    def edges(self) -> Iterator[tuple[UnboundEntity, UnboundEntity]]:
        """(supporter, supported) pairs on the page."""
        for edge in self._adapter.edges:
            for row in self.matching(self._present(edge.metrics), edge.where):
                lower, upper = self.of(edge.lower, row), self.of(edge.upper, row)
                if lower is not None and upper is not None:
                    yield self.part(edge.lower, row) or lower, upper
                part = self.part(edge.upper, row)
                if upper is not None and part is not None:
                    yield upper, part

    def labels(self) -> Iterator[tuple[UnboundEntity, Mapping[str, str]]]:
        """Facts about entities on the page."""
        for spec in self._adapter.labels:
            for row in self.matching(self._present(spec.metrics)):
                for entity in self.every(spec.kind, row):
                    facts = self._facts(row, spec.facts)
                    yield entity, facts if entity.instance is None else {**facts, "part_of": entity.name or ""}

    def watches(self) -> Iterator[FaultCodeRow]:
        """Rows whose change is an event."""
        for spec in self._adapter.events:
            for row in self.matching(self._present(spec.metrics)):
                entity, labels = self.of(spec.entity, row), self._layout.series[row].labels
                if entity is not None:
                    code = labels.get(spec.code_label, "") if spec.code_label else None
                    yield FaultCodeRow(row, entity, code, self._facts(row, spec.attributes))

    def _present(self, metrics: tuple[str, ...]) -> tuple[str, ...]:
        """Series of the first metric that is on the page."""
        return next((names for name in metrics if (names := matching_names(name, self._layout.names))), ())

    def _facts(self, row: int, spellings_by_fact: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        labels = self._layout.series[row].labels
        values = {fact: first_label(labels, spellings) for fact, spellings in spellings_by_fact.items()}
        return {fact: value for fact, value in values.items() if value}


def resolve(unbound: UnboundEntity, target: Target) -> EntityRef:
    """Resolves an entity once the target is known.

    For the target's entity: the target's own entity if it is of that kind. A node is otherwise named by the target's
    ``node`` label, then by the name on the page.
    """
    base = target.entity
    if not unbound.of_target and unbound.instance is not None:
        return resolve(replace(unbound, name=f"{unbound.name}/{unbound.instance}", instance=None), target)
    if not unbound.of_target:
        names = (base.name, unbound.name) if unbound.within_target else (unbound.name,)
        name = "/".join(part for part in names if part)
        # A replica or service without a namespace on the page is in the target's namespace.
        inherits = unbound.namespace is None and unbound.kind in _IN_NAMESPACE_OF_TARGET
        return EntityRef(base.cluster, unbound.kind, base.namespace if inherits else unbound.namespace, name)
    if base.kind is not unbound.kind:
        if unbound.kind is EntityKind.NODE and target.node is not None:
            base = target.node
        else:
            namespace = None if unbound.kind in {EntityKind.NODE, EntityKind.CLUSTER} else base.namespace
            base = EntityRef(base.cluster, unbound.kind, namespace, unbound.name or base.name)
    if unbound.split is None:
        return base
    return EntityRef(base.cluster, base.kind, base.namespace, f"{base.name}:{unbound.split}")


def bind(
    adapter: Adapter,
    places: Mapping[EntityKind, tuple[UnboundEntity, ...]],
    edges: tuple[tuple[UnboundEntity, UnboundEntity], ...],
    labels: tuple[tuple[UnboundEntity, Mapping[str, str]], ...],
    target: Target,
) -> Binding:
    """Entities, edges and labels of one target's pages. The parts of a split entity rest on the whole."""
    entities = {
        kind: tuple(resolve(unbound, target) for unbound in ranked_entities) for kind, ranked_entities in places.items()
    }
    own, ranked = own_entity(adapter, target), entities.get(adapter.target, ())
    if own not in ranked:
        entities[adapter.target] = ranked = (*ranked, own)
    known: dict[EntityRef, dict[str, str]] = {entity: dict(facts) for entity, facts in target.facts.items()}
    for unbound, facts in labels:
        known.setdefault(resolve(unbound, target), {}).update(facts)
    edge_list = list(target.edges)
    parts = tuple(row for row, unbound in enumerate(places.get(adapter.target, ())) if unbound.split is not None)
    for row in parts:
        part, whole = ranked[row], own
        edge_list.append((whole, part))
        if target.service is not None:
            edge_list.append((part, target.service))
        known[part] = {**known.get(whole, {}), "part_of": whole.name}
    edge_list.extend((resolve(lower, target), resolve(upper, target)) for lower, upper in edges)
    return Binding(entities, ranked.index(own), parts, tuple(dict.fromkeys(edge_list)), known)


def own_entity(adapter: Adapter, target: Target) -> EntityRef:
    """The target's entity, of the kind that its adapter describes."""
    return resolve(UnboundEntity(adapter.target, of_target=True), target)


def first_label(labels: Mapping[str, str], spellings: tuple[str, ...]) -> str | None:
    """Value of the first spelling that is set and not empty."""
    return next((labels[name] for name in spellings if labels.get(name)), None)


def _with_tenant(labels: Mapping[str, str], spellings: tuple[str, ...]) -> Mapping[str, str]:
    """Labels whose first spelling is the tenant; ``none`` for requests without one. A slash would end the service."""
    name = next((labels[label] for label in spellings if labels.get(label, "") not in _WITHOUT_TENANT), NO_TENANT)
    return {**labels, spellings[0]: name.replace("/", "-")}


def _joined(parts: tuple[tuple[str, ...], ...], labels: Mapping[str, str]) -> str | None:
    if parts == (("@target",),):
        return ""  # the target's own name, for an entity of another kind with the same name
    values = [first_label(labels, part) for part in parts if part != ("@target",)]
    return "/".join(part for part in values if part) if values and all(values) else None


def _several(label: str, layout: Layout) -> bool:
    return len({series.labels[label] for series in layout.series if label in series.labels}) > 1


def _falls_back(spec: EntitySpec) -> bool:
    return any("@target" in part and len(part) > 1 for part in spec.parts)
