from __future__ import annotations

from dataclasses import replace

import pytest

from detectors.platform.scrape_targets import ScrapeTargetDetector
from outrider.model import EntityKind, EntityRef, TrustVerdict
from outrider.topology import Topology

UP, REFUSED, TIMEOUT, DNS = (1.0, 0.0), (0.0, 1.0), (0.0, 2.0), (0.0, 3.0)
W = EntityKind.WORKLOAD


def target(name):
    return EntityRef("lab", W, "targets", name)


def labels(node, *, engine=False):
    kind = EntityKind.REPLICA if engine else EntityKind.NODE
    return {"adapter": "x", "node": node, "stands_for": EntityRef("lab", kind, "default", node).key}


def fleet(nodes, engines=1):
    """Per node a node exporter, a dcgm exporter and some engines."""
    targets = {}
    for node in nodes:
        targets[target(f"{node}-node")] = labels(node)
        targets[target(f"{node}-dcgm")] = labels(node)
        for number in range(engines):
            targets[target(f"{node}-engine-{number}")] = labels(node, engine=True)
    return Topology.build((), targets, targets)


@pytest.fixture
def find(window_of, findings_of):
    def run(topology, bad, scrapes=2):
        rows = {}
        for entity in topology.of_kind(W):
            last = bad.get(entity.name, UP)
            rows[entity.name] = {
                "target_up": [1.0] * 3 + [last[0]] * scrapes,
                "target_failure_code": [0.0] * 3 + [last[1]] * scrapes,
                "target_trust_code": [0.0] * 3 + [last[2] if len(last) > 2 else float(last[0] == 0)] * scrapes,
            }
        findings = findings_of(ScrapeTargetDetector(), window_of(W, rows, namespace="targets"), topology)
        return [(item.fault, str(item.entity)) for item in findings]

    return run


def test_reachable_targets_have_no_finding(find):
    assert find(fleet(["n0", "n1"]), {}) == []


def test_an_unreachable_exporter_is_reported_on_its_node(find):
    assert find(fleet(["n0", "n1"]), {"n0-dcgm": REFUSED}) == [("exporter-down", "node/n0")]
    assert find(fleet(["n0", "n1"]), {"n0-dcgm": REFUSED}, scrapes=1) == []


def test_frozen_exposition_pages_are_reported_on_their_node(find):
    frozen = (1.0, 0.0, TrustVerdict.FROZEN.code)
    engines = {"n0-engine-0": frozen, "n0-engine-1": frozen}
    assert find(fleet(["n0", "n1"]), engines) == [("stale-metrics", "node/n0")]
    assert find(fleet(["n0", "n1"]), {"n0-engine-0": (1.0, 0.0, TrustVerdict.PARTIAL.code)}) == []
    both = find(fleet(["n0", "n1"]), {"n0-dcgm": REFUSED, "n1-node": frozen})
    assert sorted(both) == [("exporter-down", "node/n0"), ("stale-metrics", "node/n1")]


def test_stale_samples_are_reported_only_if_they_last(find):
    stale = {"n0-engine-0": (1.0, 0.0, TrustVerdict.STALE.code)}
    assert find(fleet(["n0", "n1"]), stale) == []
    assert find(fleet(["n0", "n1"]), stale, scrapes=30) == [("stale-metrics", "node/n0")]


def test_an_unreachable_engine_is_not_an_exporter_fault(find):
    assert find(fleet(["n0", "n1"]), {"n0-engine-0": REFUSED}) == []


def test_a_node_with_all_targets_unreachable_is_lost(find):
    bad = dict.fromkeys(("n0-node", "n0-dcgm", "n0-engine-0"), TIMEOUT)
    assert find(fleet(["n0", "n1"]), bad) == [("node-lost", "node/n0")]


def test_a_node_with_a_single_target_is_not_reported_as_lost(find):
    alone = Topology.build((), (), {target("n0-node"): labels("n0"), target("n1-node"): labels("n1")})
    topology = Topology.build((), alone.labels, alone.labels)
    assert find(topology, {"n0-node": TIMEOUT}) == [("exporter-down", "node/n0")]


def test_an_exporter_without_a_node_is_reported_on_the_entity_that_it_describes(find):
    entities = {
        target("kube-state"): {"stands_for": EntityRef("lab", EntityKind.CLUSTER, None, "lab").key},
        target("n0-node"): labels("n0"),
    }
    assert find(Topology.build((), entities, entities), {"kube-state": DNS}) == [("exporter-down", "cluster/lab")]


def test_many_unreachable_targets_on_several_nodes_are_monitor_blind(find):
    bad = {f"n{node}-{what}": TIMEOUT for node in (0, 1) for what in ("node", "dcgm", "engine-0")}
    assert find(fleet(["n0", "n1", "n2"]), bad) == [("monitor-blind", "cluster/lab")]


def test_refused_connections_are_not_monitor_blind(find):
    bad = {f"n{node}-engine-{number}": REFUSED for node in range(3) for number in range(4)}
    assert find(fleet(["n0", "n1", "n2"], engines=4), bad) == []


def test_engines_that_all_refuse_connections_are_not_monitor_blind(find):
    entities = {target(f"n{i}-engine"): labels(f"n{i}", engine=True) for i in range(2)}
    bad = {entity.name: REFUSED for entity in entities}
    assert find(Topology.build((), entities, entities), bad) == []


def test_all_targets_unreachable_is_monitor_blind_in_a_small_fleet(find):
    bad = dict.fromkeys(("n0-node", "n0-dcgm", "n1-node", "n1-dcgm"), TIMEOUT)
    assert find(fleet(["n0", "n1"], engines=0), bad) == [("monitor-blind", "cluster/lab")]


def test_a_target_that_was_never_up_does_not_make_its_node_lost(window_of, findings_of):
    topology = fleet(["n0", "n1"], engines=0)
    rows = {
        entity.name: {
            "target_up": [0.0 if entity.name.startswith("n0") else 1.0] * 4,
            "target_failure_code": [2.0 if entity.name.startswith("n0") else 0.0] * 4,
        }
        for entity in topology.of_kind(W)
    }
    findings = findings_of(ScrapeTargetDetector(), window_of(W, rows, namespace="targets"), topology)
    assert [item.fault for item in findings] == ["exporter-down"]
    assert findings[0].evidence[0].arguments["targets"] == "n0-dcgm, n0-node"


def test_nodes_that_fail_one_after_the_other_are_lost_nodes(window_of, findings_of):
    topology = fleet(["n0", "n1", "n2"], engines=2)

    def faults(first, then):
        scrapes = {"n0": first, "n1": then}
        rows = {}
        for entity in topology.of_kind(W):
            down = scrapes.get(entity.name[:2], 0)
            rows[entity.name] = {
                "target_up": [1.0] * (20 - down) + [0.0] * down,
                "target_failure_code": [0.0] * (20 - down) + [TIMEOUT[1]] * down,
            }
        findings = findings_of(ScrapeTargetDetector(), window_of(W, rows, namespace="targets"), topology)
        return sorted((item.fault, str(item.entity)) for item in findings)

    assert faults(16, 2) == [("node-lost", "node/n0"), ("node-lost", "node/n1")]
    assert faults(3, 2) == [("monitor-blind", "cluster/lab")]


def test_a_blind_cluster_does_not_hide_a_lost_node_of_another_cluster(window_of, findings_of):
    def post(cluster, node, what):
        return EntityRef(cluster, W, "targets", f"{cluster}-{node}-{what}")

    labeled = {
        post(cluster, node, what): {
            "node": f"{cluster}-{node}",
            "stands_for": EntityRef(cluster, EntityKind.NODE, None, f"{cluster}-{node}").key,
        }
        for cluster in ("lab", "spare")
        for node in ("n0", "n1", "n2")
        for what in ("a", "b")
    }
    rows = {}
    for entity in labeled:
        bad = entity.cluster == "lab" or entity.name.startswith("spare-n1")
        rows[entity.name] = {
            "target_up": [1.0] * 3 + [0.0 if bad else 1.0] * 3,
            "target_failure_code": [0.0] * 3 + [TIMEOUT[1] if bad else 0.0] * 3,
        }
    window = replace(window_of(W, rows, namespace="targets"), entities=tuple(labeled))
    no_verdicts = []
    findings = findings_of(ScrapeTargetDetector(), window, Topology.build((), labeled, labeled), verdicts=no_verdicts)
    assert sorted((one.fault, one.entity.name) for one in findings) == [
        ("monitor-blind", "lab"),
        ("node-lost", "spare-n1"),
    ]
    assert {one.entity.name for one in no_verdicts if one.entity} == {"lab-n0", "lab-n1", "lab-n2"}
