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


def test_an_unchanged_topology_is_returned_as_is():
    recent, topology = RecentTopology(), on(OLD)
    assert recent.extend(topology, NOW) is topology
    assert recent.extend(topology, NOW + timedelta(minutes=1)) is topology


def test_a_pod_that_moved_rests_on_both_nodes_for_a_while():
    recent = RecentTopology(timedelta(minutes=15))
    recent.extend(on(OLD), NOW)
    moved = on(NEW)
    for minutes in (1, 2, 15):
        seen = recent.extend(moved, NOW + timedelta(minutes=minutes))
        assert set(seen.rests_on(POD)) == {OLD, NEW}
        assert SERVICE in seen.affected_by(OLD)
        assert seen.label(OLD, "pool") == "a"
    assert recent.extend(moved, NOW + timedelta(minutes=16)) is moved


def test_a_pod_that_returns_leaves_the_other_node():
    recent = RecentTopology(timedelta(minutes=15))
    for minutes, node in enumerate((OLD, NEW, OLD)):
        seen = recent.extend(on(node), NOW + timedelta(minutes=minutes))
    assert set(seen.rests_on(POD)) == {OLD, NEW}
    assert recent.extend(on(OLD), NOW + timedelta(minutes=17)).rests_on(POD) == (OLD,)


def test_the_same_graph_at_another_time_is_extended_once():
    recent = RecentTopology()
    recent.extend(on(OLD), NOW)
    moved = on(NEW)
    first = recent.extend(moved, NOW)
    assert recent.extend(moved, NOW + timedelta(seconds=15)) is first
