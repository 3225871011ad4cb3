"""``outrider knowledge``: the fault catalog joined with the live topology: show, query, draw."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from detectors.knowledge_graph import graph_text, incident_graph
from detectors.knowledge_graph.graph import MOST_NODES, KnowledgeGraph, Subgraph
from outrider.documents import graph_diagram
from outrider.errors import UsageError
from outrider.ports import StateReader
from outrider.text.i18n import Language, translate
from outrider.topology import Topology
from service.cli.core import tables
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.incidents import topology_at
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Query the graph of known faults and this fleet.", no_args_is_help=ON_A_TERMINAL)
ask = typer.Typer(help="Query the graph.", no_args_is_help=ON_A_TERMINAL)
app.add_typer(ask, name="ask")

Thing = Annotated[str, typer.Argument(metavar="NAME", help="Fault, signal, action, runbook or component.")]
Component = Annotated[str, typer.Argument(help="Component: cluster/kind/namespace/name, kind/name, or a name.")]
MOST_ALERTS = 200


class Format(StrEnum):
    """Formats of a drawing."""

    DOT = "dot"
    MERMAID = "mermaid"


@app.callback()
def _group() -> None:
    """Query the graph of known faults and this fleet."""


@leaf(app, "show", example="outrider knowledge show gpu-lost -o json")
def show(context: Context, name: Thing) -> None:
    """Show everything connected to a fault, signal, action, runbook or component."""
    with wiring_stores.state_reader(context.settings()) as store:
        graph = _graph(context, store)
    part = graph.around(graph.find(name), most=4 * MOST_NODES)
    context.show(graph_text.part_json(part, context.language), lambda _: _lines(part, context))


@leaf(ask, "causes", example="outrider knowledge ask causes engine_tpot_seconds replica/chat-70b-0 -o json")
def causes(
    context: Context,
    symptom: Annotated[str, typer.Argument(help="Observed signal or fault.")],
    component: Component,
) -> int:
    """List faults and components that can cause a symptom. Exits 1 if there are none."""
    with wiring_stores.state_reader(context.settings()) as store:
        graph = _graph(context, store)
    answer = graph_text.causes_json(graph.causes_of(symptom, graph.component(component)), context.language)
    context.show(
        answer, lambda shown: _table(shown["causes"], shown["more"], ("name", "scope", "steps"), context.language)
    )
    return YES if answer["causes"] else NO


@leaf(ask, "explains", example="outrider knowledge ask explains gpu-lost GPU-fe8f7b6b -o json")
def explains(context: Context, fault: Annotated[str, typer.Argument(help="Fault id.")], component: Component) -> int:
    """List what else a fault of a component would explain. Exits 1 if nothing."""
    with wiring_stores.state_reader(context.settings()) as store:
        graph = _graph(context, store)
    answer = graph_text.consequences_json(graph.explains(graph.component(component), fault), context.language)
    context.show(answer, lambda shown: _table(shown["explains"], shown["more"], ("name", "scope"), context.language))
    return YES if answer["explains"] else NO


@leaf(ask, "path", example="outrider knowledge ask path node-3 service/chat-70b")
def path(context: Context, one: Thing, other: Annotated[str, typer.Argument(help="Name of the other node.")]) -> int:
    """Show how two nodes are connected. Exits 1 if they are not."""
    with wiring_stores.state_reader(context.settings()) as store:
        graph = _graph(context, store)
    chain = graph.path(graph.find(one), graph.find(other))
    rows = [graph_text.edge_json(edge, context.language) for edge in chain]
    lines = [graph_text.edge_line(edge, context.language) for edge in chain]
    context.show({"path": rows}, lambda _: "\n".join(lines) or translate("cli.not_joined", context.language))
    return YES if chain else NO


@leaf(app, "draw", example="outrider knowledge draw inc-20261121T0805-3f2a --format mermaid")
def draw(
    context: Context,
    name: Annotated[str, typer.Argument(help="Incident id, or a name as `show` accepts it.")],
    form: Annotated[Format, typer.Option("--format", help="Output format: dot or mermaid.")] = Format.DOT,
    depth: Annotated[int, typer.Option("--depth", min=1, max=4, help="Steps from the name to include.")] = 1,
) -> None:
    """Write the graph of an incident, or around a name, as Graphviz DOT or Mermaid."""
    with wiring_stores.state_reader(context.settings()) as store:
        part = _incident(context, store, name) or _around(_graph(context, store), name, depth)
    shown = graph_text.part_json(part, context.language)
    typer.echo(graph_diagram.dot(shown) if form is Format.DOT else graph_diagram.mermaid(shown))


def _graph(context: Context, store: StateReader) -> KnowledgeGraph:
    return _joined(context, store.topology())


def _joined(context: Context, topology: Topology) -> KnowledgeGraph:
    return KnowledgeGraph(topology, context.settings().knowledge.catalog())


def _incident(context: Context, store: StateReader, name: str) -> Subgraph | None:
    stored = store.incident(name)
    if stored is None:
        if name.startswith("inc-"):
            raise UsageError(f"no incident has the id {name!r}", hint="list them with outrider incidents list")
        return None
    alerts = [store.alert(fingerprint) for fingerprint in stored.alerts[:MOST_ALERTS]]
    wrong = [(alert.entity, alert.fault) for alert in alerts if alert is not None]
    return incident_graph.of_incident(_joined(context, topology_at.of_incident(store, stored)), stored, wrong)


def _around(graph: KnowledgeGraph, name: str, depth: int) -> Subgraph:
    return graph.around(graph.find(name), depth)


def _lines(part: Subgraph, context: Context) -> str:
    language = context.language
    centre = graph_text.label(part.nodes[0], language)
    rows = graph_text.grouped(part, language)
    text = tables.table([centre, ""], rows, empty=translate("cli.knowledge_alone", language, name=centre))
    return _with_more(text, part.left_out, language)


def _table(rows: list[dict[str, Any]], more: int, columns: tuple[str, ...], language: Language) -> str:
    cells = [
        [tables.entity(row["entity"]), *(_cell(column, row[column], language) for column in columns)] for row in rows
    ]
    text = tables.table(tables.heads(language, "component", *columns), cells, empty=translate("cli.none", language))
    return _with_more(text, more, language)


def _cell(column: str, value: Any, language: Language) -> str:
    return translate(f"knowledge.note.{value}", language) if column == "scope" else str(value)


def _with_more(text: str, more: int, language: Language) -> str:
    return f"{text}\n{translate('cli.and_more', language, n=more)}" if more else text
