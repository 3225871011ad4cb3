from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import CHAT, CODE, fleet, gpu, node, replica  # type: ignore[import-not-found]

from detectors.statistics import peer_groups
from outrider.model import EntityRef
from outrider.topology import Topology


def test_peers_share_services_model_and_gpu():
    topology = fleet()
    entities = [replica(number) for number in range(6)]
    group = peer_groups.groups(entities, topology)
    assert group[:4].tolist() == [group[0]] * 4
    assert group[4:].tolist() == [-1, -1], "two replicas of code are too few"
    labels = {replica(0): {"gpu_type": "H100"}, replica(1): {"gpu_type": "H100"}}
    labeled = Topology.build(topology.edges, labels=labels)
    assert peer_groups.groups(entities, labeled).tolist() == [-1] * 6


def test_gpus_of_a_service_are_peers_and_nodes_group_by_gpu():
    topology = fleet()
    assert len(set(peer_groups.groups([gpu(number) for number in range(4)], topology))) == 1
    assert len(set(peer_groups.groups([node(number) for number in range(3)], topology))) == 1
    assert topology.above(gpu(0), CHAT.kind) == (CHAT,)
    assert topology.above(gpu(5), CODE.kind) == (CODE,)


def test_no_entities_no_groups():
    assert peer_groups.groups([], Topology.build(())).size == 0


def test_distance_is_in_robust_scales_of_the_group():
    values = np.array([[1.0], [2.0], [3.0], [100.0], [7.0], [np.nan]])
    group = np.array([0, 0, 0, 0, -1, 0])
    apart = peer_groups.apart(values, group, np.array([0.1]))
    assert apart[3, 0] > 50
    assert abs(apart[1, 0]) < 1
    assert np.isnan(apart[4, 0])
    assert np.isnan(apart[5, 0])


def test_equal_peers_have_no_distance_with_a_floor():
    apart = peer_groups.apart(np.array([[5.0], [5.0], [5.0], [5.05]]), np.zeros(4, dtype=np.intp), np.array([0.1]))
    assert np.abs(apart).max() <= 0.5


def test_fewer_than_three_values_have_no_median():
    values = np.array([[1.0, 1.0], [2.0, np.nan], [3.0, np.nan]])
    apart = peer_groups.apart(values, np.zeros(3, dtype=np.intp), np.array([0.1, 0.1]))
    assert np.isfinite(apart[:, 0]).all()
    assert np.isnan(apart[:, 1]).all()


def test_prefill_and_decode_replicas_are_not_peers():
    topology = fleet()
    chat = [replica(number) for number in range(4)]
    roles = {one: {"role": "prefill" if place < 2 else "decode"} for place, one in enumerate(chat)}
    more = [EntityRef("c1", CHAT.kind.REPLICA, "llm", f"more-{number}") for number in range(2)]
    labels = {**roles, **{one: {"role": "decode"} for one in more}}
    split = Topology.build([*topology.edges, *((one, CHAT) for one in more)], labels=labels)
    assert peer_groups.groups([*chat, *more], split).tolist() == [
        -1,
        -1,
        *[peer_groups.groups([*chat, *more], split)[2]] * 4,
    ]
    assert (peer_groups.groups([*chat, *more], split)[2:] >= 0).all(), "four decode"
    assert len(set(peer_groups.groups([*chat, *more], topology)[:4].tolist())) == 1, "without roles all are alike"


def test_gpus_have_the_role_and_model_of_the_replicas_on_them():
    topology = fleet()
    cards = [gpu(number) for number in range(4)]
    of = {one: topology.above(one, replica(0).kind)[0] for one in cards}
    for name, values in (("role", ("prefill", "decode")), ("model", ("a", "b"))):
        labels = {one: {name: values[place % 2]} for place, one in enumerate(of.values())}
        split = Topology.build(topology.edges, labels=labels)
        assert peer_groups.groups(cards, split).tolist() == [-1] * 4, f"two of each {name} are too few"
