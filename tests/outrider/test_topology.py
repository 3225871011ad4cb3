from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology


def entity(kind, name):
    return EntityRef("c", EntityKind(kind), None, name)


NODE, GPU, POD, REPLICA, SERVICE = (entity(k, f"{k}-0") for k in ("node", "gpu", "pod", "replica", "service"))
OTHER = entity("replica", "replica-1")
CHAIN = Topology.build([(NODE, GPU), (NODE, POD), (GPU, POD), (POD, REPLICA), (REPLICA, SERVICE), (OTHER, SERVICE)])


def test_a_fault_reaches_what_rests_on_it():
    assert CHAIN.affected_by(GPU) == {GPU, POD, REPLICA, SERVICE}
    assert CHAIN.causes_of(REPLICA) == {REPLICA, POD, GPU, NODE}
    assert CHAIN.above(NODE, EntityKind.SERVICE) == (SERVICE,)
    assert CHAIN.below(SERVICE, EntityKind.REPLICA) == (REPLICA, OTHER)


def test_siblings_are_not_on_one_path():
    assert CHAIN.on_path(NODE, SERVICE)
    assert CHAIN.on_path(SERVICE, NODE)
    assert not CHAIN.on_path(REPLICA, OTHER)


def test_cycles_and_self_edges_end():
    looped = Topology.build([(NODE, GPU), (GPU, NODE), (NODE, NODE)])
    assert looped.affected_by(NODE) == {NODE, GPU}


def test_unknown_entities_stand_alone():
    stranger = entity("node", "nobody")
    assert CHAIN.affected_by(stranger) == {stranger}
    assert CHAIN.rests_on(stranger) == ()
    assert CHAIN.label(stranger, "gpu_type", "?") == "?"


def test_edges_round_trip():
    again = Topology.build(CHAIN.edges)
    assert again.entities == CHAIN.entities
    assert set(again.edges) == set(CHAIN.edges)
