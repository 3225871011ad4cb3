"""A part of the knowledge graph, from its JSON form to Graphviz DOT or a Mermaid flowchart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
_SHAPES = {"entity": "box", "fault": "octagon", "signal": "ellipse", "action": "cds", "runbook": "note"}
_BRACKETS = {
    "entity": ("[", "]"),
    "fault": ("{{", "}}"),
    "signal": ("([", "])"),
    "action": (">", "]"),
    "runbook": ("[/", "/]"),
}
_FAINT = ("rejected", "alternative")


def dot(graph: Json, colors: Mapping[str, str] | None = None) -> str:
    """DOT text. ``colors`` has ``text``, ``line``, ``fill`` and one per role; without them it is black on white."""
    palette = colors or {}
    text, line = palette.get("text", "black"), palette.get("line", "gray50")
    font = 'fontname="sans-serif"'
    fill = f'style="filled", fillcolor="{palette.get("fill", "white")}"'
    lines = [
        "digraph knowledge {",
        f'  graph [rankdir=LR, bgcolor="transparent", {font}, nodesep=0.2, ranksep=0.4];',
        f'  node [{font}, fontsize=11, color="{line}", fontcolor="{text}", {fill}, margin="0.1,0.04", height=0.3];',
        f'  edge [{font}, fontsize=9, color="{line}", fontcolor="{palette.get("muted", text)}", arrowsize=0.6];',
    ]
    names = _numbered(graph)
    for node in graph["nodes"]:
        role = palette.get(node["role"])
        attributes = [f'label="{_quoted(node["label"])}"', f"shape={_SHAPES[node['sort']]}"]
        if role:
            attributes += [f'color="{role}"', "penwidth=2"]
        if node["role"] in _FAINT:
            attributes.append('style="filled,dashed"')
        lines.append(f"  {names[node['id']]} [{', '.join(attributes)}];")
    for edge in graph["edges"]:
        attributes = [f'label="{_quoted(edge["label"])}"'] + (["style=dashed"] if edge["link"] == "looks_like" else [])
        lines.append(f"  {names[edge['source']]} -> {names[edge['target']]} [{', '.join(attributes)}];")
    return "\n".join([*lines, "}"])


def mermaid(graph: Json) -> str:
    """A Mermaid flowchart for Markdown viewers."""
    names, lines = _numbered(graph), ["flowchart LR"]
    for node in graph["nodes"]:
        left, right = _BRACKETS[node["sort"]]
        role = f":::{node['role']}" if node["role"] else ""
        lines.append(f'  {names[node["id"]]}{left}"{_escaped(node["label"])}"{right}{role}')
    for edge in graph["edges"]:
        arrow = "-.->" if edge["link"] == "looks_like" else "-->"
        lines.append(f'  {names[edge["source"]]} {arrow}|"{_escaped(edge["label"])}"| {names[edge["target"]]}')
    roles = dict.fromkeys(node["role"] for node in graph["nodes"] if node["role"])
    lines += [f"  classDef {role} {_CLASSES.get(role, 'stroke-width:2px')}" for role in roles]
    return "\n".join(lines)


_CLASSES = {
    "cause": "stroke:#b3372b,stroke-width:3px",
    "alternative": "stroke-dasharray:4",
    "rejected": "stroke-dasharray:2,opacity:0.6",
    "symptom": "stroke:#96650a,stroke-width:2px",
    "service": "stroke:#2f6690,stroke-width:2px",
}


def _numbered(graph: Json) -> dict[str, str]:
    return {node["id"]: f"n{number}" for number, node in enumerate(graph["nodes"])}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _escaped(text: str) -> str:
    return (
        text.replace("&", "#amp;").replace('"', "#quot;").replace("\n", " ").replace("<", "#lt;").replace(">", "#gt;")
    )
