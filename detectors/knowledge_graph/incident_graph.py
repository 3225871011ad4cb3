"""Subgraph of an incident: cause, symptoms, affected components, remedies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from detectors.knowledge_graph.graph import (
    Edge,
    EdgeKind,
    KnowledgeGraph,
    Node,
    NodeKind,
    Subgraph,
    entity_node,
    fault_node,
)
from detectors.rca.fault_catalogue import FaultKnowledge
from outrider.model import EntityKind, EntityRef, Hypothesis, Incident

MOST_COMPONENTS = 16  # components with alerts of their own; an alert storm has hundreds of equal ones
MOST_REJECTED = 4
MOST_SIGNS = 4
CAUSE, ALTERNATIVE, REJECTED, SYMPTOM, SERVICE = "cause", "alternative", "rejected", "symptom", "service"

Wrong = tuple[EntityRef, str | None]  # a component and the fault of an alert, None for a symptom


@dataclass
class _Drawing:
    nodes: dict[Node, str] = field(default_factory=dict)
    edges: dict[Edge, None] = field(default_factory=dict)
    left_out: int = 0

    def put(self, node: Node, role: str = "") -> Node:
        """Adds a node; it keeps the first role it got."""
        self.nodes[node] = self.nodes.get(node) or role
        return node

    def join(self, source: Node, target: Node, link: EdgeKind, note: str = "") -> None:
        """Adds an edge between two existing nodes."""
        if source in self.nodes and target in self.nodes:
            self.edges[Edge(source, target, link, note)] = None


def of_incident(graph: KnowledgeGraph, incident: Incident, wrong: Sequence[Wrong]) -> Subgraph:
    """The subgraph of an incident. ``wrong`` are the components and faults of its alerts, most important first."""
    drawing = _Drawing()
    cause = incident.suspected_cause
    if cause is not None:
        _cause(drawing, graph, cause)
    _symptoms(drawing, graph, cause, wrong)
    for other in incident.hypotheses[1:]:
        _has(drawing, other.entity, other.fault, ALTERNATIVE)
    _services(drawing, graph, cause, incident.services)
    _join(drawing, graph, cause)
    if cause is not None:
        _alternatives(drawing, graph, incident, cause)
        _help(drawing, graph.knowledge.get(cause.fault), fault_node(cause.fault))
    roles = {node: role for node, role in drawing.nodes.items() if role}
    return Subgraph(tuple(drawing.nodes), tuple(drawing.edges), drawing.left_out, roles)


def _has(drawing: _Drawing, entity: EntityRef, fault: str | None, role: str) -> None:
    place = drawing.put(entity_node(entity), role)
    if fault is not None:
        drawing.put(fault_node(fault), role)
        drawing.join(place, fault_node(fault), EdgeKind.HAS)


def _cause(drawing: _Drawing, graph: KnowledgeGraph, cause: Hypothesis) -> None:
    """The cause with its supporting signals, else with its usual signals."""
    _has(drawing, cause.entity, cause.fault, CAUSE)
    known = graph.knowledge.get(cause.fault)
    if known is None:
        return
    moves = {sign.signal: sign.moves for sign in known.signs}
    seen = dict.fromkeys(item.signal for item in cause.evidence if item.signal)
    for name in list(seen or moves)[:MOST_SIGNS]:
        drawing.put(Node(NodeKind.SIGNAL, name))
        drawing.join(fault_node(cause.fault), Node(NodeKind.SIGNAL, name), EdgeKind.SHOWS_AS, moves.get(name, ""))


def _symptoms(drawing: _Drawing, graph: KnowledgeGraph, cause: Hypothesis | None, wrong: Sequence[Wrong]) -> None:
    """Other affected components, one by one; the first ones of an alert storm."""
    places = list(dict.fromkeys(entity for entity, _ in wrong))
    kept = set(places[:MOST_COMPONENTS])
    drawing.left_out += len(places) - len(kept)
    for entity, fault in wrong:
        if entity not in kept:
            continue
        _has(drawing, entity, fault, SYMPTOM)
        known = graph.knowledge.get(cause.fault) if cause is not None else None
        if cause is None or known is None or fault is None or fault == cause.fault:
            continue
        scope = next((scope for scope, members in known.explains.items() if fault in members), None)
        if scope is not None:
            drawing.join(fault_node(cause.fault), fault_node(fault), EdgeKind.EXPLAINS, scope)


def _services(drawing: _Drawing, graph: KnowledgeGraph, cause: Hypothesis | None, names: Iterable[str]) -> None:
    wanted = set(names)
    known = graph.knowledge.get(cause.fault) if cause is not None else None
    for service in graph.topology.of_kind(EntityKind.SERVICE):
        if service.name not in wanted or (cause is not None and service.cluster != cause.entity.cluster):
            continue
        drawing.put(entity_node(service), SERVICE)
        if cause is not None and known is not None and EntityKind.SERVICE in known.hurts:
            drawing.join(fault_node(cause.fault), entity_node(service), EdgeKind.HURTS)


def _join(drawing: _Drawing, graph: KnowledgeGraph, cause: Hypothesis | None) -> None:
    """Topology paths from the cause to every component of the drawing."""
    places = [node for node in drawing.nodes if node.entity is not None]
    if not places:
        return
    start = entity_node(cause.entity) if cause is not None else places[0]
    for chain in graph.paths(start, places).values():
        for edge in chain:
            drawing.put(edge.source)
            drawing.put(edge.target)
            drawing.edges[edge] = None


def _alternatives(drawing: _Drawing, graph: KnowledgeGraph, incident: Incident, cause: Hypothesis) -> None:
    """Alternatives that were ruled out, and those still possible."""
    known = graph.knowledge.get(cause.fault)
    alike = [other for other in incident.hypotheses[1:] if known is not None and known.resembles(other.fault)]
    for other in alike:
        drawing.join(fault_node(cause.fault), fault_node(other.fault), EdgeKind.LOOKS_LIKE)
    for item in incident.rejected[:MOST_REJECTED]:
        drawing.put(fault_node(item.fault), REJECTED)
        drawing.join(fault_node(cause.fault), fault_node(item.fault), EdgeKind.LOOKS_LIKE)


def _help(drawing: _Drawing, known: FaultKnowledge | None, fault: Node) -> None:
    if known is None:
        return
    for action in known.remedy:
        drawing.join(fault, drawing.put(Node(NodeKind.ACTION, action.value)), EdgeKind.REMEDIED_BY)
    if known.runbook:
        drawing.join(fault, drawing.put(Node(NodeKind.RUNBOOK, known.runbook)), EdgeKind.DESCRIBED_IN)
