from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.knowledge_graph import incident_graph
from detectors.knowledge_graph.graph import KnowledgeGraph, entity_node
from detectors.rca import fault_catalogue
from outrider.model import CycleRecord, EntityKind, Hypothesis, Incident, Layer, Priority
from outrider.ports import CycleCommit
from outrider.testing.names import LOST_GPU, NODE, NOW, POD, REPLICA, SERVICE, ref, topology
from outrider.topology import Topology
from service.incidents import topology_at
from store.memory import MemoryStateStore

SPOT = REPLICA.index(next(one for one in REPLICA if one in topology(NOW).affected_by(LOST_GPU)))
MOVED, NEW_HOME = POD[SPOT], NODE[0]
DEAD = REPLICA[SPOT]


@pytest.fixture
def state():
    return MemoryStateStore()


def incident(cause=LOST_GPU, fault="gpu-lost"):
    return Incident(
        id="inc-1",
        layer=Layer.HARDWARE,
        priority=Priority.P0,
        opened_at=NOW,
        hypotheses=(Hypothesis(cause, fault, 0.9),),
        rejected=(),
        alerts=(),
        timeline=(),
        updated_at=NOW,
        services=("chat",),
    )


def moved(at):
    """The pod runs on another node, on none of its GPUs."""
    whole = topology(at)
    stays = [edge for edge in whole.edges if edge[1] != MOVED]
    return Topology.build([*stays, (NEW_HOME, MOVED)], whole.entities, whole.labels, at)


def grown(at):
    """As ``moved``, with a replica of chat that joined meanwhile."""
    whole, late = moved(at), ref(EntityKind.REPLICA, "late", "llm")
    return Topology.build([*whole.edges, (NODE[1], late), (late, SERVICE["chat"])], whole.entities, whole.labels, at)


def committed(state, **graphs):
    """Commits one cycle per graph, at minutes after the incident opened."""
    for name, (minutes, graph) in graphs.items():
        at = NOW + timedelta(minutes=minutes)
        record = CycleRecord(name, at, 1.0, 1, 1, 1, 0, 0, 0)
        state.commit(CycleCommit(cycle=record, topology=graph(at)))


def joined(state):
    """The edges between the GPU and its dead replica in the dependency graph."""
    graph = KnowledgeGraph(topology_at.of_incident(state, incident()), fault_catalogue.load())
    part = incident_graph.of_incident(graph, incident(), [(LOST_GPU, "gpu-lost"), (DEAD, "engine-dead")])
    return {(edge.source.entity, edge.target.entity) for edge in part.edges if edge.source.entity}


def test_a_pod_that_moved_after_the_opening_is_related_to_its_lost_gpu(state):
    committed(state, before=(-1, topology), later=(3, moved))
    assert {(DEAD, MOVED), (MOVED, LOST_GPU)} <= joined(state)
    assert (MOVED, NEW_HOME) not in joined(state)


def test_a_pod_that_moved_just_before_the_opening_is_related_to_its_lost_gpu(state):
    committed(state, before=(-20, topology), moved=(-2, moved))
    assert (MOVED, LOST_GPU) in joined(state)


def test_a_pod_that_moved_long_before_is_related_to_its_new_node(state):
    committed(state, before=(-90, topology), moved=(-60, moved))
    assert (MOVED, LOST_GPU) not in joined(state)


def test_entities_added_since_have_the_edges_of_the_newest_topology(state):
    committed(state, before=(-1, topology), later=(3, grown))
    found = topology_at.of_incident(state, incident())
    late = ref(EntityKind.REPLICA, "late", "llm")
    assert found.rests_on(late) == (NODE[1],)
    assert late in found.rests_on(SERVICE["chat"])
    assert found.rests_on(MOVED) == topology(NOW).rests_on(MOVED)
    assert found.at == NOW
    assert found.labels == topology(NOW).labels


def test_without_a_topology_of_the_opening_the_newest_is_used(state):
    committed(state, later=(3, moved))
    assert topology_at.of_incident(state, incident()) is state.topology()
    assert entity_node(LOST_GPU).entity in state.topology().entities
