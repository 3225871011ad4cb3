from __future__ import annotations

import pytest

from outrider import placement
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

SERVICE = EntityRef("c1", EntityKind.SERVICE, "llm", "chat")
NODES = [EntityRef("c1", EntityKind.NODE, None, f"node-{n}") for n in range(3)]
GPUS = {node: [EntityRef("c1", EntityKind.GPU, None, f"{node.name}-GPU-{n}") for n in range(4)] for node in NODES}
REPLICA = EntityRef("c1", EntityKind.REPLICA, "llm", "chat-0")


@pytest.fixture
def topology():
    """Three nodes of four H100; the replica chat-0 uses three GPUs of the first."""
    edges = [(node, gpu) for node in NODES for gpu in GPUS[node]]
    edges += [(gpu, REPLICA) for gpu in GPUS[NODES[0]][:3]] + [(REPLICA, SERVICE)]
    return Topology.build(edges, labels={gpu: {"gpu_type": "H100"} for gpus in GPUS.values() for gpu in gpus})


def test_gpus_of_closed_nodes_are_not_free(topology):
    assert placement.free_gpus(topology).of("H100") == 9
    assert placement.free_gpus(topology, frozenset({NODES[1]})).of("H100") == 5


def test_a_replica_fits_only_within_one_node(topology):
    free = placement.free_gpus(topology)
    assert [free.replicas("H100", gpus) for gpus in (1, 2, 3, 4, 8)] == [9, 4, 2, 2, 0]
    assert free.replicas("a name that no GPU has", 4) == 2, "all GPUs count"


def test_a_fleet_that_shows_no_gpu_limits_nothing():
    free = placement.free_gpus(Topology.build([(REPLICA, SERVICE)]))
    assert (free.of("H100"), free.replicas("H100", 1)) == (None, None)


def test_placed_replicas_and_free_gpus_count(topology):
    free = placement.free_gpus(topology)
    assert placement.most_replicas(SERVICE, topology, free, "H100", 4) == 1 + 2
    waiting = EntityRef("c1", EntityKind.REPLICA, "llm", "chat-1")
    longer = Topology.build([*topology.edges, (waiting, SERVICE)], labels=topology.labels)
    assert placement.most_replicas(SERVICE, longer, free, "H100", 4) == 3, "a replica without a GPU has no place yet"


def test_replicas_that_show_no_gpus_leave_the_placement_unknown(topology):
    edges = [edge for edge in topology.edges if REPLICA not in edge]
    unknown = Topology.build([*edges, (REPLICA, SERVICE)], labels=topology.labels)
    assert placement.most_replicas(SERVICE, unknown, placement.free_gpus(unknown), "H100", 4) is None


def test_free_gpus_of_another_cluster_place_no_replica(topology):
    other = EntityRef("c2", EntityKind.NODE, None, "far")
    far = [EntityRef("c2", EntityKind.GPU, None, f"far-{n}") for n in range(4)]
    both = Topology.build([*topology.edges, *((other, gpu) for gpu in far)])
    free = placement.free_gpus(both)
    assert (free.of("H100"), free.of("H100", "c2")) == (13, 4)
    assert placement.most_replicas(SERVICE, both, free, "H100", 4) == 1 + 2
