from __future__ import annotations

import pytest

from detectors.knowledge_graph import entity_lookup, graph_text
from detectors.knowledge_graph.graph import KnowledgeGraph, entity_node, fault_node
from detectors.rca import fault_catalogue
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.testing.names import GPU, LOST_GPU, NODE, NOW, topology
from outrider.topology import Topology

TWIN = EntityRef("lab", EntityKind.WORKLOAD, "targets", NODE[3].name)


@pytest.fixture(scope="module")
def fleet():
    whole = topology(NOW)
    return Topology.build(whole.edges, {*whole.entities, TWIN}, whole.labels, NOW)


@pytest.mark.parametrize(
    "text",
    [LOST_GPU.name, LOST_GPU.key, f"gpu/{LOST_GPU.name}", "GPU-03027", "GPU-0302...000026", "gpu/GPU-03027e1c…26"],
)
def test_a_gpu_is_found_by_its_full_or_shortened_name(fleet, text):
    assert entity_lookup.component(fleet, text) == LOST_GPU


def test_a_gpu_is_found_by_its_name_in_tables_and_drawings(fleet):
    for gpu in GPU:
        assert entity_lookup.component(fleet, graph_text.label(entity_node(gpu), "en")) == gpu


def test_a_node_takes_precedence_over_its_scrape_target(fleet):
    assert entity_lookup.component(fleet, NODE[3].name) == NODE[3]
    assert entity_lookup.component(fleet, f"workload/{NODE[3].name}") == TWIN


def test_an_ambiguous_prefix_is_rejected_with_examples(fleet):
    with pytest.raises(UsageError, match=r"8 components are shortened to 'GPU-03': lab/gpu//GPU-0300.* and 5 more"):
        entity_lookup.component(fleet, "GPU-03")


@pytest.mark.parametrize("text", ["GPU-0", "chat-", "node", "…", "GPU…6"])
def test_too_short_a_prefix_is_not_found(fleet, text):
    with pytest.raises(UsageError, match="not found"):
        entity_lookup.component(fleet, text)


def test_a_misspelt_prefix_is_reported_with_the_full_name(fleet):
    with pytest.raises(UsageError, match=f'did you mean .*"{LOST_GPU.name}"'):
        entity_lookup.component(fleet, "GPU-03028")


def test_the_hint_names_other_accepted_kinds(fleet):
    graph = KnowledgeGraph(fleet, fault_catalogue.load())
    with pytest.raises(UsageError) as anything:
        graph.find("nosuch")
    assert "faults, signals, actions and runbooks" in (anything.value.hint or "")
    with pytest.raises(UsageError) as place:
        graph.component("nosuch")
    assert "faults" not in (place.value.hint or "")


def rows(graph, node, language="en", most=5000):
    return dict(graph_text.grouped(graph.around(node, most=most), language))


def test_a_fault_is_shown_with_one_row_per_edge_kind(fleet):
    shown = rows(KnowledgeGraph(fleet, fault_catalogue.load()), fault_node("gpu-lost"))
    assert shown["remedied by -->"] == "cordon, shift traffic, drain"
    assert "Switch down" in shown["<-- explains: on its path"]
    assert shown["<-- may have"].endswith(f", and {len(GPU) - graph_text.MOST_NAMED} more")
    assert shown["<-- may have"].count("GPU-") == graph_text.MOST_NAMED


def test_names_are_listed_with_the_punctuation_of_the_language(fleet):
    shown = rows(KnowledgeGraph(fleet, fault_catalogue.load()), fault_node("gpu-lost"), "zh")
    assert shown["<-- 可能发生"].endswith(f"，以及另外 {len(GPU) - graph_text.MOST_NAMED} 个")
    assert not any(", " in names for names in shown.values())


def test_a_node_is_shown_with_its_dependencies_and_dependents(fleet):
    shown = rows(KnowledgeGraph(fleet, fault_catalogue.load()), entity_node(NODE[3]), "zh")
    assert shown["<-- 依赖"].count("GPU-") == 8
    assert "节点失联" in shown["可能发生 -->"]


def test_explanations_of_a_fault_are_listed_before_its_components(fleet):
    shown = rows(KnowledgeGraph(fleet, fault_catalogue.load()), fault_node("gpu-lost"), most=50)
    assert "Cluster lost" in shown["<-- explains: in the whole cluster"]
