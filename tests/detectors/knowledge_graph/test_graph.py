from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    CODE,
    Desk,
    alert,
    edges_of,
    fleet,
    gpu,
    node,
    pod,
    ref,
    replica,
)

from detectors.knowledge_graph import graph_text, incident_graph
from detectors.knowledge_graph.graph import EdgeKind, KnowledgeGraph, Node, NodeKind, entity_node, fault_node
from detectors.rca import fault_catalogue
from outrider.documents import graph_diagram
from outrider.errors import UsageError
from outrider.model import EntityKind, Hypothesis
from outrider.text.i18n import LANGUAGES
from outrider.topology import Topology


@pytest.fixture
def graph():
    return KnowledgeGraph(fleet(), fault_catalogue.load())


def test_slow_tokens_of_a_replica_may_come_from_its_gpu_its_node_or_its_service(graph):
    causes = {(one.entity, one.fault): one for one in graph.causes_of("engine_tpot_seconds", replica(0)).matches}
    assert causes[gpu(0), "gpu-thermal-throttle"].moves == "up"
    assert causes[gpu(0), "gpu-thermal-throttle"].steps == 2
    assert (node(0), "noisy-neighbour") in causes
    assert causes[CHAT, "kernel-regression"].scope == "below"
    assert all(entity not in (gpu(1), node(1), CODE) for entity, _ in causes)


def test_causes_of_a_dead_engine_are_on_its_path_only(graph):
    causes = graph.causes_of("engine-dead", replica(0)).matches
    assert {(gpu(0), "gpu-lost"), (pod(0), "pod-oom"), (node(0), "node-lost")} <= {
        (one.entity, one.fault) for one in causes if one.scope == "path"
    }
    assert (node(1), "node-lost") not in {(one.entity, one.fault) for one in causes}
    assert [one.steps for one in causes] == sorted(one.steps for one in causes)


def test_monitor_blind_is_checked_for_a_dead_engine(graph):
    causes = graph.causes_of("engine-dead", replica(0)).matches
    assert "monitor-blind" in {one.fault for one in causes if one.scope == "cluster"}


def test_a_lost_gpu_explains_faults_on_its_path_and_peers(graph):
    explained = {(one.entity, one.fault): one.scope for one in graph.explains(gpu(0), "gpu-lost").matches}
    assert explained[replica(0), "engine-dead"] == "path"
    assert explained[CHAT, None] == "path"
    assert explained[replica(1), "kv-pressure"] == "peers"
    assert (replica(4), "kv-pressure") not in explained
    assert (gpu(0), "gpu-lost") not in explained


def test_explains_and_causes_of_are_inverse(graph):
    for one in graph.explains(node(0), "node-lost", 1000).matches:
        if one.fault is not None:
            causes = graph.causes_of(one.fault, one.entity, 1000).matches
            assert (node(0), "node-lost") in {(cause.entity, cause.fault) for cause in causes}, one


def test_limited_results_report_the_number_left_out(graph):
    few = graph.causes_of("engine-dead", replica(0), 3)
    assert len(few.matches) == 3
    assert few.more == len(graph.causes_of("engine-dead", replica(0), 1000).matches) - 3


def test_a_path_between_components_stays_in_the_topology(graph):
    chain = graph.path(entity_node(gpu(0)), entity_node(CHAT))
    assert [edge.link for edge in chain] == [EdgeKind.RESTS_ON] * 3
    assert graph.path(entity_node(gpu(0)), entity_node(CODE)) == ()


def test_a_path_from_a_component_to_an_action_goes_through_its_faults(graph):
    chain = graph.path(entity_node(gpu(0)), Node(NodeKind.ACTION, "cordon"))
    assert [edge.link for edge in chain] == [EdgeKind.MAY_HAVE, EdgeKind.REMEDIED_BY]


def test_a_neighborhood_is_limited_and_reports_the_rest(graph):
    part = graph.around(fault_node("gpu-lost"), depth=2, most=10)
    assert len(part.nodes) == 10
    assert part.left_out > 0
    assert all(edge.source in part.nodes and edge.target in part.nodes for edge in part.edges)


@pytest.mark.parametrize(
    ("text", "node_id"),
    [
        ("gpu-lost", "fault:gpu-lost"),
        ("engine_up", "signal:engine_up"),
        ("cordon", "action:cordon"),
        ("docs/runbooks/gpu-lost.md", "runbook:docs/runbooks/gpu-lost.md"),
        ("replica-0", "entity:c1/replica/llm/replica-0"),
        ("replica/replica-0", "entity:c1/replica/llm/replica-0"),
        ("c1/gpu//gpu-0", "entity:c1/gpu//gpu-0"),
    ],
)
def test_an_entity_is_found_by_its_short_name(graph, text, node_id):
    assert graph.find(text).id == node_id


def test_an_unknown_name_is_reported_with_close_ones(graph):
    with pytest.raises(UsageError, match='did you mean "gpu-lost"'):
        graph.find("gpu-lots")
    with pytest.raises(UsageError, match='did you mean "engine_up"'):
        graph.causes_of("engine_op", replica(0))
    with pytest.raises(UsageError, match="topology does not contain"):
        graph.causes_of("engine_up", replica(77))
    with pytest.raises(UsageError, match="is not a fault"):
        graph.explains(replica(0), "engine_up")


def test_an_ambiguous_name_is_rejected_with_both_keys():
    twice = Topology.build([], [ref(EntityKind.SERVICE, "x"), ref(EntityKind.REPLICA, "x")])
    with pytest.raises(UsageError, match="c1/replica/llm/x, c1/service/llm/x"):
        KnowledgeGraph(twice, fault_catalogue.load()).find("x")


def drawn(wrong, topology=None):
    desk = Desk(topology)
    desk.step(30, [alert(entity, fault) for entity, fault in wrong])
    incident = max(desk.incidents.values(), key=lambda one: len(one.alerts))
    return incident_graph.of_incident(KnowledgeGraph(desk.topology, desk.knowledge), incident, wrong)


def test_the_incident_graph_joins_cause_symptoms_service_and_actions():
    part = drawn([(gpu(0), "gpu-lost"), (replica(0), "engine-dead"), (CHAT, None)])
    assert part.roles[fault_node("gpu-lost")] == part.roles[entity_node(gpu(0))] == "cause"
    assert part.roles[fault_node("engine-dead")] == "symptom"
    assert part.roles[fault_node("exporter-down")] == "rejected"
    links = {(edge.source.name, edge.target.name, edge.link, edge.note) for edge in part.edges}
    assert ("gpu-lost", "engine-dead", EdgeKind.EXPLAINS, "path") in links
    assert ("gpu-lost", CHAT.key, EdgeKind.HURTS, "") in links
    assert (CHAT.key, replica(0).key, EdgeKind.RESTS_ON, "") in links
    assert ("gpu-lost", "cordon", EdgeKind.REMEDIED_BY, "") in links
    assert ("gpu-lost", "docs/runbooks/gpu-lost.md", EdgeKind.DESCRIBED_IN, "") in links
    assert ("gpu-lost", "engine-dead", EdgeKind.LOOKS_LIKE, "") not in links


def test_an_incident_without_a_known_cause_still_has_its_components():
    part = drawn([(CHAT, None)])
    assert part.roles == {entity_node(CHAT): "symptom"}


def test_the_graph_of_an_unknown_fault_is_its_component():
    desk = Desk()
    desk.step(30, [alert(CHAT, None)])
    gone = replace(desk.only, hypotheses=(Hypothesis(CHAT, "gone", 0.5),))
    part = incident_graph.of_incident(KnowledgeGraph(desk.topology, desk.knowledge), gone, [(CHAT, None)])
    assert {edge.link for edge in part.edges} == {EdgeKind.HAS}


def large():
    """Ten thousand components: 2,499 replicas of one service on 625 nodes."""
    edges = []
    for number in range(2499):
        edges += edges_of(number, node(number // 4), CHAT)
    return Topology.build(edges)


@pytest.mark.slow
def test_a_graph_of_ten_thousand_components_is_truncated():
    topology = large()
    assert len(topology.entities) > 8000
    wrong = [(CHAT, "traffic-surge"), *((replica(number), "kv-pressure") for number in range(300))]
    part = drawn(wrong, topology)
    assert len(part.nodes) <= 60
    assert part.left_out == 301 - incident_graph.MOST_COMPONENTS
    graph = KnowledgeGraph(topology, fault_catalogue.load())
    assert len(graph.around(fault_node("engine-dead"), 2).nodes) == 60
    answers = graph.causes_of("traffic-surge", CHAT)
    assert len(answers.matches) == 50
    assert answers.more > 10_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_drawing_has_all_nodes_edges_and_texts(language):
    part = drawn([(gpu(0), "gpu-lost"), (replica(0), "engine-dead"), (CHAT, None)])
    shown = graph_text.part_json(part, language)
    for text in (graph_diagram.dot(shown), graph_diagram.mermaid(shown)):
        assert "knowledge." not in text
        assert text.count("->") + text.count("-.->") >= len(part.edges)
        for one in shown["nodes"]:
            assert one["label"] in text
    assert ("依赖" in graph_diagram.dot(shown)) == (language == "zh")


def test_names_with_quotes_and_brackets_are_escaped():
    odd = {"id": "entity:a", "sort": "entity", "label": 'a"];b<x>&', "role": "cause"}
    shown = {"nodes": [odd], "edges": []}
    assert '[label="a\\"];b<x>&"' in graph_diagram.dot(shown)
    assert '["a#quot;];b#lt;x#gt;#amp;"]' in graph_diagram.mermaid(shown)
