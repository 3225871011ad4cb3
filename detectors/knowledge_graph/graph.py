"""Knowledge graph: the live topology joined with the fault catalog. It is queried and walked, never drawn as a whole.

Pure. Nodes are components, faults, signals, actions and runbooks. Edges are directed: a pod *rests on* its node, a GPU
*may have* a fault, a fault *shows as* a signal, *hurts* what rests on its component, *explains* and *looks like* other
faults, is *remedied by* an action. Edges are built on demand, so that a fleet of ten thousand components costs no more
than the queried part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Generic, Literal, TypeVar

from detectors.knowledge_graph import entity_lookup
from detectors.rca.fault_catalogue import Knowledge, Moves, Scope
from detectors.rca.hypotheses import Reach, depth_of
from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EntityRef
from outrider.text.yaml_file import near
from outrider.topology import Topology
from outrider.vocabulary import catalog

MOST_NODES = 60  # maximum nodes of a drawing
MOST_ANSWERS = 50
MOST_WALKED = 20_000  # maximum nodes visited by a path search


class NodeKind(StrEnum):
    """Kind of a node."""

    ENTITY = "entity"
    FAULT = "fault"
    SIGNAL = "signal"
    ACTION = "action"
    RUNBOOK = "runbook"


class EdgeKind(StrEnum):
    """Kind of an edge, read from its source."""

    RESTS_ON = "rests_on"
    MAY_HAVE = "may_have"
    HAS = "has"
    SHOWS_AS = "shows_as"
    HURTS = "hurts"
    EXPLAINS = "explains"
    LOOKS_LIKE = "looks_like"
    REMEDIED_BY = "remedied_by"
    DESCRIBED_IN = "described_in"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``name`` is a fault id, signal, action or page; for a component its key."""

    sort: NodeKind
    name: str
    entity: EntityRef | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """Unique in a graph: ``fault:gpu-lost``."""
        return f"{self.sort}:{self.name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """``note`` gives the direction of a signal, or the scope in which one fault explains another."""

    source: Node
    target: Node
    link: EdgeKind
    note: str = ""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A subgraph. ``roles`` are those of an incident's drawing; ``left_out`` counts omitted nodes."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    left_out: int = 0
    roles: Mapping[Node, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault of a component that can show as the queried symptom, ``steps`` away in the topology."""

    entity: EntityRef
    fault: str
    scope: Scope
    moves: Moves | None  # of the queried signal; None for a fault
    steps: int


@dataclass(frozen=True, slots=True)
class Consequence:
    """Effect of a fault on a component: a fault, or any symptom if None."""

    entity: EntityRef
    fault: str | None
    scope: Scope


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[_T]):
    """The nearest results, and the number of further ones."""

    matches: tuple[_T, ...]
    more: int


def entity_node(entity: EntityRef) -> Node:
    """The node of a component."""
    return Node(NodeKind.ENTITY, entity.key, entity)


def fault_node(fault: str) -> Node:
    """The node of a fault."""
    return Node(NodeKind.FAULT, fault)


class KnowledgeGraph:
    """Topology and knowledge at one time, joined."""

    def __init__(self, topology: Topology, knowledge: Knowledge) -> None:
        """Builds nothing before the first query."""
        self.topology, self.knowledge = topology, knowledge
        self._reach = Reach(topology)
        self._of_kind: dict[EntityKind, list[str]] = {}
        self._into: dict[Node, list[Edge]] = {}
        for fault, known in knowledge.items():
            self._of_kind.setdefault(known.fault.entity, []).append(fault)
            for edge in self._of_fault(fault):
                self._into.setdefault(edge.target, []).append(edge)

    # --- questions ------------------------------------------------------------------------------------

    def causes_of(self, symptom: str, entity: EntityRef, most: int = MOST_ANSWERS) -> QueryResult[Cause]:
        """Faults of components that can show as a signal or fault at a component; nearest first.

        Raises UsageError for an unknown symptom or component.
        """
        self._check(entity)
        if symptom not in self.knowledge and symptom not in catalog.signals():
            known = [*self.knowledge, *catalog.signals()]
            raise UsageError(f"{symptom!r} is neither a signal nor a fault{near(symptom, known)}", hint=_SYMPTOMS)
        result = {}
        for scope, place, steps in self._places_before(entity):
            for fault in self._of_kind.get(place.kind, ()):
                moves = self._shows(fault, symptom, scope, entity.kind)
                if moves is not None and (place, fault) not in result and (place, fault) != (entity, symptom):
                    result[place, fault] = Cause(place, fault, scope, moves or None, steps)
        ranked = sorted(result.values(), key=lambda item: (item.steps, item.scope, depth_of(item.entity), item.fault))
        return QueryResult(tuple(ranked[:most]), max(0, len(ranked) - most))

    def explains(self, entity: EntityRef, fault: str, most: int = MOST_ANSWERS) -> QueryResult[Consequence]:
        """Effects of a fault of a component elsewhere. Raises UsageError for unknown names."""
        self._check(entity)
        if fault not in self.knowledge:
            raise UsageError(f"{fault!r} is not a fault{near(fault, self.knowledge)}", hint=_FAULTS)
        known = self.knowledge[fault]
        result: dict[Consequence, None] = {}
        for scope, place, _ in self._places_after(entity):
            for other in sorted(known.consequences(scope)):
                if self.knowledge[other].fault.entity is place.kind and (place, other) != (entity, fault):
                    result[Consequence(place, other, scope)] = None
            if scope == "path" and place != entity and place.kind in known.hurts:
                result[Consequence(place, None, scope)] = None
        return QueryResult(tuple(islice(result, most)), max(0, len(result) - most))

    def path(self, one: Node, other: Node) -> tuple[Edge, ...]:
        """The shortest chain of edges between two nodes, in either direction; empty if none is near enough.

        Paths between two components use components only, so that not every pair of GPUs is joined by a common fault.
        """
        plain = one.sort is other.sort is NodeKind.ENTITY
        return self.paths(one, (other,), plain=plain).get(other, ())

    def paths(self, start: Node, ends: Iterable[Node], *, plain: bool = True) -> dict[Node, tuple[Edge, ...]]:
        """The shortest chain to each of several nodes, in one search. ``plain``: components only."""
        wanted = set(ends)
        came_by: dict[Node, Edge | None] = {start: None}
        waiting = deque([start])
        while waiting and not wanted <= came_by.keys() and len(came_by) < MOST_WALKED:
            here = waiting.popleft()
            for edge in self._supports(here) if plain else self.edges(here):
                there = edge.target if edge.source == here else edge.source
                if there not in came_by:
                    came_by[there] = edge
                    waiting.append(there)
        return {end: tuple(_back(came_by, end)) for end in wanted if end in came_by}

    # --- walking --------------------------------------------------------------------------------------

    def edges(self, node: Node) -> Iterator[Edge]:
        """Every edge of a node, in both directions."""
        if node.entity is not None:
            yield from self._of_entity(node)
            return
        if node.sort is NodeKind.FAULT and node.name in self.knowledge:
            yield from self._of_fault(node.name)
        yield from self._into.get(node, ())
        if node.sort is NodeKind.FAULT and node.name in self.knowledge:  # last: thousands may have it
            for entity in self.topology.of_kind(self.knowledge[node.name].fault.entity):
                yield Edge(entity_node(entity), node, EdgeKind.MAY_HAVE)

    def around(self, centre: Node, depth: int = 1, most: int = MOST_NODES) -> Subgraph:
        """The neighborhood of a node, nearest first."""
        nodes = {centre: 0}
        edges: dict[Edge, None] = {}
        waiting, beyond = deque([centre]), set()
        while waiting:
            here = waiting.popleft()
            if nodes[here] >= depth:
                continue
            for edge in self.edges(here):
                there = edge.target if edge.source == here else edge.source
                if there not in nodes and len(nodes) < most:
                    nodes[there] = nodes[here] + 1
                    waiting.append(there)
                if there in nodes:
                    edges[edge] = None
                else:
                    beyond.add(there)
        return Subgraph(tuple(nodes), tuple(edges), len(beyond))

    def find(self, text: str) -> Node:
        """Resolves a node: a fault, signal, action, page, or a component by key, kind/name or name.

        Raises UsageError if nothing or more than one thing has that name.
        """
        if text in self.knowledge:
            return fault_node(text)
        for sort, names in ((NodeKind.SIGNAL, catalog.signals()), (NodeKind.ACTION, tuple(ActionKind))):
            if text in names:
                return Node(sort, text)
        pages = {known.runbook for known in self.knowledge.values()}
        if text in pages:
            return Node(NodeKind.RUNBOOK, text)
        return entity_node(self.component(text, known=(*self.knowledge, *catalog.signals(), *ActionKind)))

    def component(self, text: str, known: Iterable[str] = ()) -> EntityRef:
        """Resolves a component; ``known`` are other names. Raises UsageError as ``entity_lookup.component`` does."""
        return entity_lookup.component(self.topology, text, known)

    def _of_entity(self, node: Node) -> Iterator[Edge]:
        assert node.entity is not None
        yield from self._supports(node)
        for fault in self._of_kind.get(node.entity.kind, ()):
            yield Edge(node, fault_node(fault), EdgeKind.MAY_HAVE)

    def _supports(self, node: Node) -> Iterator[Edge]:
        """Components below and above a component."""
        if node.entity is None:
            return
        for lower in self.topology.rests_on(node.entity):
            yield Edge(node, entity_node(lower), EdgeKind.RESTS_ON)
        for upper in self.topology.holds_up(node.entity):
            yield Edge(entity_node(upper), node, EdgeKind.RESTS_ON)

    def _of_fault(self, fault: str) -> Iterator[Edge]:
        known, node = self.knowledge[fault], fault_node(fault)
        for sign in known.signs:
            yield Edge(node, Node(NodeKind.SIGNAL, sign.signal), EdgeKind.SHOWS_AS, sign.moves)
        for scope, members in known.explains.items():
            for other in sorted(members):
                yield Edge(node, fault_node(other), EdgeKind.EXPLAINS, scope)
        for alike in known.look_alikes:
            if alike.name in self.knowledge:
                yield Edge(node, fault_node(alike.name), EdgeKind.LOOKS_LIKE)
        for action in known.remedy:
            yield Edge(node, Node(NodeKind.ACTION, action.value), EdgeKind.REMEDIED_BY)
        if known.runbook:
            yield Edge(node, Node(NodeKind.RUNBOOK, known.runbook), EdgeKind.DESCRIBED_IN)

    # --- reach ----------------------------------------------------------------------------------------

    def _shows(self, fault: str, symptom: str, scope: Scope, kind: EntityKind) -> Moves | Literal[""] | None:
        """Direction in which a fault shows as the symptom in a scope; empty for a fault, None if it does not."""
        known = self.knowledge[fault]
        if symptom in self.knowledge:
            return "" if symptom in known.consequences(scope) else None
        # A fault of a whole service shows on each of its replicas, in their own signals.
        if scope != "path" and not (scope == "below" and catalog.signals()[symptom].entity is kind):
            return None
        return next((sign.moves for sign in known.signs if sign.signal == symptom), None)

    def _places_before(self, entity: EntityRef) -> Iterator[tuple[Scope, EntityRef, int]]:
        """Components whose faults can reach the component: (scope, component, steps)."""
        yield from (("path", place, steps) for place, steps in _walk(entity, self.topology.rests_on))
        yield from (("below", place, steps) for place, steps in _walk(entity, self.topology.holds_up) if steps)
        for service in self._reach.services(entity):  # whatever its services rest on has peers there
            yield from (("peers", place, steps + 1) for place, steps in _walk(service, self.topology.rests_on))
        yield from (("cluster", place, 9) for place in self._views(entity))

    def _places_after(self, entity: EntityRef) -> Iterator[tuple[Scope, EntityRef, int]]:
        """Components that a fault of the component can reach."""
        yield from (("path", place, steps) for place, steps in _walk(entity, self.topology.holds_up))
        yield from (("below", place, steps) for place, steps in _walk(entity, self.topology.rests_on) if steps)
        yield from (("peers", place, steps) for place, steps in self._peers(entity))
        if entity.kind is EntityKind.CLUSTER:
            inside = sorted((item for item in self.topology.entities if item.cluster == entity.cluster), key=_key)
            yield from (("cluster", place, 9) for place in inside)

    def _peers(self, entity: EntityRef) -> Iterator[tuple[EntityRef, int]]:
        """The services that the component can affect, and the other replicas of each."""
        for service in self._reach.services(entity):
            yield service, 1
            for other in self.topology.rests_on(service):
                if other != entity and other.kind is EntityKind.REPLICA:
                    yield other, 2

    def _views(self, entity: EntityRef) -> Iterator[EntityRef]:
        result = (item for item in self.topology.of_kind(EntityKind.CLUSTER) if item.cluster == entity.cluster)
        yield next(result, EntityRef(entity.cluster, EntityKind.CLUSTER, None, entity.cluster))

    def _check(self, entity: EntityRef) -> None:
        if entity not in self.topology.entities:
            raise UsageError(f"the topology does not contain {entity.key}", hint=entity_lookup.HINT)


def _walk(start: EntityRef, step: Callable[[EntityRef], Iterable[EntityRef]]) -> Iterator[tuple[EntityRef, int]]:
    """Everything in reach with its distance, nearest first; ``step`` gives the neighbors."""
    seen, waiting = {start}, deque([(start, 0)])
    while waiting:
        here, steps = waiting.popleft()
        yield here, steps
        for result in step(here):
            if result not in seen:
                seen.add(result)
                waiting.append((result, steps + 1))


def _back(came_by: Mapping[Node, Edge | None], end: Node) -> list[Edge]:
    chain: list[Edge] = []
    here = end
    while (edge := came_by[here]) is not None:
        chain.append(edge)
        here = edge.source if edge.target == here else edge.target
    return chain[::-1]


def _key(entity: EntityRef) -> str:
    return entity.key


_SYMPTOMS = "the signal catalog lists signals; outrider drill list lists faults"
_FAULTS = "list faults with: outrider drill list"
