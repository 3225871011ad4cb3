from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from service.engine.recent_topology import RecentTopology

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
OLD, NEW = (EntityRef("lab", EntityKind.NODE, None, name) for name in ("old", "new"))
POD, SERVICE = EntityRef("lab", EntityKind.POD, "d", "p"), EntityRef("lab", EntityKind.SERVICE, "d", "s")


def on(node: EntityRef) -> Topology:
    return Topology.build([(node, POD), (POD, SERVICE)], (OLD, NEW), {OLD: {"pool": "a"}})


def test_what_never_moved_is_handed_back_as_it_is():
    lately, topology = RecentTopology(), on(OLD)
    assert lately.widened(topology, NOW) is topology
    assert lately.widened(topology, NOW + timedelta(minutes=1)) is topology


def test_a_pod_that_moved_rests_on_both_nodes_for_a_while():
    lately = RecentTopology(timedelta(minutes=15))
    lately.widened(on(OLD), NOW)
    moved = on(NEW)
    for minutes in (1, 2, 15):
        seen = lately.widened(moved, NOW + timedelta(minutes=minutes))
        assert set(seen.rests_on(POD)) == {OLD, NEW}
        assert SERVICE in seen.affected_by(OLD)
        assert seen.label(OLD, "pool") == "a"
    assert lately.widened(moved, NOW + timedelta(minutes=16)) is moved


def test_a_pod_that_comes_back_left_the_other_node():
    lately = RecentTopology(timedelta(minutes=15))
    for minutes, node in enumerate((OLD, NEW, OLD)):
        seen = lately.widened(on(node), NOW + timedelta(minutes=minutes))
    assert set(seen.rests_on(POD)) == {OLD, NEW}
    assert lately.widened(on(OLD), NOW + timedelta(minutes=17)).rests_on(POD) == (OLD,)


def test_the_same_graph_at_another_instant_is_widened_once():
    lately = RecentTopology()
    lately.widened(on(OLD), NOW)
    moved = on(NEW)
    first = lately.widened(moved, NOW)
    assert lately.widened(moved, NOW + timedelta(seconds=15)) is first
