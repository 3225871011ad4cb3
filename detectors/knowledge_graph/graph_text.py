"""Knowledge graph as text and JSON: subgraphs and query results, with labels in one language. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detectors.knowledge_graph.graph import Cause, Consequence, Edge, EdgeKind, Node, NodeKind, QueryResult, Subgraph
from outrider.documents import serialization
from outrider.documents.summaries import entity_name, fault_name, signal_name, word
from outrider.text.i18n import Language, translate

Json = dict[str, Any]
MOST_NAMED = 12  # maximum components per row


def part_json(part: Subgraph, language: Language) -> Json:
    """A subgraph: nodes and edges with labels, and the number of omitted nodes."""
    return {
        "nodes": [_node(node, part.roles.get(node, ""), language) for node in part.nodes],
        "edges": [edge_json(edge, language) for edge in part.edges],
        "left_out": part.left_out,
    }


def label(node: Node, language: Language) -> str:
    """Label of a node."""
    if node.entity is not None:
        return entity_name(node.entity, language)
    if node.sort is NodeKind.FAULT:
        return fault_name(node.name, language)
    if node.sort is NodeKind.SIGNAL:
        return signal_name(node.name, language)
    if node.sort is NodeKind.ACTION:
        return word("action_kind", node.name, language)
    return node.name.rpartition("/")[2].removesuffix(".md")


def link(kind: EdgeKind, note: str, language: Language) -> str:
    """Label of an edge, with its note."""
    label_text = translate(f"knowledge.link.{kind}", language)
    return f"{label_text}: {translate(f'knowledge.note.{note}', language)}" if note else label_text


def edge_json(edge: Edge, language: Language) -> Json:
    """One edge by the ids of its ends."""
    return {
        "source": edge.source.id,
        "target": edge.target.id,
        "link": edge.link.value,
        "note": edge.note,
        "label": link(edge.link, edge.note, language),
    }


def edge_line(edge: Edge, language: Language) -> str:
    """One edge as a line of text."""
    ends = (label(edge.source, language), label(edge.target, language))
    return f"{ends[0]} -- {link(edge.link, edge.note, language)} --> {ends[1]}"


def grouped(part: Subgraph, language: Language, most: int = MOST_NAMED) -> list[tuple[str, str]]:
    """The edges of the first node of a subgraph, one row per edge kind and direction.

    Of the components in a row, the first ``most`` are named and the others counted.
    """
    centre = part.nodes[0]
    groups: dict[tuple[bool, str], list[Node]] = {}
    for edge in part.edges:
        if centre in (edge.source, edge.target):
            out = edge.source == centre
            label_text = (out, link(edge.link, edge.note, language))
            groups.setdefault(label_text, []).append(edge.target if out else edge.source)
    return [
        (f"{label_text} -->" if out else f"<-- {label_text}", _named(nodes, most, language))
        for (out, label_text), nodes in groups.items()
    ]


def _named(nodes: Sequence[Node], most: int, language: Language) -> str:
    places = [node for node in nodes if node.entity is not None]
    beyond = set(places[most:])
    names = translate("knowledge.between", language).join(label(node, language) for node in nodes if node not in beyond)
    return translate("knowledge.and_more", language, names=names, n=len(beyond)) if beyond else names


def causes_json(answers: QueryResult[Cause], language: Language) -> Json:
    """Possible causes of a symptom."""
    rows = [
        {
            "entity": serialization.entity(item.entity),
            "fault": item.fault,
            "name": fault_name(item.fault, language),
            "scope": item.scope,
            "moves": item.moves,
            "steps": item.steps,
        }
        for item in answers.matches
    ]
    return {"causes": rows, "more": answers.more}


def consequences_json(answers: QueryResult[Consequence], language: Language) -> Json:
    """Effects of a fault."""
    rows = [
        {
            "entity": serialization.entity(item.entity),
            "fault": item.fault,
            "name": fault_name(item.fault, language) if item.fault else translate("knowledge.any_symptom", language),
            "scope": item.scope,
        }
        for item in answers.matches
    ]
    return {"explains": rows, "more": answers.more}


def _node(node: Node, role: str, language: Language) -> Json:
    return {
        "id": node.id,
        "sort": node.sort.value,
        "name": node.name,
        "label": label(node, language),
        "role": role,
        "entity": serialization.entity(node.entity) if node.entity is not None else None,
    }
