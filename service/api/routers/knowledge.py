"""``/knowledge``: the knowledge graph around a name, its queries, and the part about an incident."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from detectors.knowledge_graph import graph_text, incident_graph
from detectors.knowledge_graph.graph import MOST_NODES, KnowledgeGraph
from service.api.context import Context, Ctx, Lang
from service.api.routers.incidents import known

router = APIRouter(tags=["knowledge"])
_MOST_ALERTS = 200
_Name = Annotated[str, Query(description="fault, signal, action, runbook, or a component by key, kind/name or name")]
_Component = Annotated[str, Query(description="component by key, kind/name or name")]


@router.get("/knowledge")
def around(
    ctx: Ctx,
    lang: Lang,
    name: _Name,
    depth: Annotated[int, Query(ge=1, le=4)] = 1,
    limit: Annotated[int, Query(ge=1, le=500, description="most nodes")] = MOST_NODES,
) -> dict[str, Any]:
    """Neighbors of a name in the graph, nearest first; ``left_out`` counts omitted nodes."""
    graph = _graph(ctx)
    return graph_text.part_json(graph.around(graph.find(name), depth, limit), lang)


@router.get("/knowledge/causes")
def causes(
    ctx: Ctx, lang: Lang, symptom: Annotated[str, Query(description="signal or fault")], component: _Component
) -> dict[str, Any]:
    """Faults of components that can cause a symptom of a component, nearest first."""
    graph = _graph(ctx)
    return graph_text.causes_json(graph.causes_of(symptom, graph.component(component)), lang)


@router.get("/knowledge/explains")
def explains(ctx: Ctx, lang: Lang, fault: Annotated[str, Query()], component: _Component) -> dict[str, Any]:
    """Other symptoms that a fault of a component would explain."""
    graph = _graph(ctx)
    return graph_text.consequences_json(graph.explains(graph.component(component), fault), lang)


@router.get("/knowledge/path")
def path(ctx: Ctx, lang: Lang, one: _Name, other: _Name) -> dict[str, Any]:
    """Shortest path between two nodes; empty if they are not connected."""
    graph = _graph(ctx)
    chain = graph.path(graph.find(one), graph.find(other))
    return {"path": [graph_text.edge_json(edge, lang) for edge in chain]}


@router.get("/incidents/{incident_id}/graph")
def of_incident(incident_id: str, ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Cause of an incident, its symptoms, its impact, ruled-out alternatives, and remedies."""
    incident = known(ctx, incident_id)
    alerts = [ctx.state.alert(fingerprint) for fingerprint in incident.alerts[:_MOST_ALERTS]]
    wrong = [(alert.entity, alert.fault) for alert in alerts if alert is not None]
    graph = KnowledgeGraph(ctx.topology_of(incident), ctx.extras.knowledge)
    return graph_text.part_json(incident_graph.of_incident(graph, incident, wrong), lang)


def _graph(ctx: Context) -> KnowledgeGraph:
    topology = ctx.topology()
    graph: KnowledgeGraph = ctx.result_cache.get(
        ("knowledge", topology.at), lambda: KnowledgeGraph(topology, ctx.extras.knowledge)
    )
    return graph
