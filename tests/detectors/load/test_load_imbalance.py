from __future__ import annotations

import pytest

from detectors.load.load_imbalance import LoadImbalanceDetector
from outrider.model import EntityKind
from outrider.topology import Topology

R, S = EntityKind.REPLICA, EntityKind.SERVICE
CALM, LATER = 30, 24


def replica(later=10.0, flight=8.0, *, usually=10.0):
    return {
        "engine_http_requests_total": [usually] * CALM + [later] * LATER,
        "engine_inflight_requests": [8.0] * CALM + [flight] * LATER,
    }


@pytest.fixture
def skewed(ref, window_of, findings_of):
    def run(*rows):
        named = {f"r{i}": row for i, row in enumerate(rows)}
        topology = Topology.build([(ref(R, name), ref(S, "s")) for name in named])
        return [
            (item.fault, item.entity.name)
            for item in findings_of(LoadImbalanceDetector(), window_of(R, named), topology)
        ]

    return run


def test_a_replica_with_far_more_load_than_its_peers_is_skewed(skewed):
    assert skewed(replica(), replica(25.0, 40.0), replica(), replica()) == [("traffic-skew", "r1")]


@pytest.mark.parametrize(
    "rows",
    [
        [replica(25.0, 40.0)] * 4,  # a surge: all alike
        [replica(), replica(10.0, 60.0), replica(), replica()],  # slow: as much comes, more piles up
        [replica(), replica(25.0, 9.0), replica(), replica()],  # gets more and holds no more
        [replica(), replica(25.0, 40.0, usually=25.0), replica(), replica()],  # it always did
        [replica(0.0, 0.0), replica(13.0, 11.0), replica(13.0, 11.0), replica(13.0, 11.0)],  # one is out
        [replica(), replica(25.0, 40.0)],  # two have no median
    ],
)
def test_small_or_even_differences_are_not_skew(skewed, rows):
    assert skewed(*rows) == []


def test_few_requests_give_no_finding(skewed):
    low = [replica(0.5, 8.0, usually=0.5) for _ in range(3)]
    assert skewed(*low, replica(2.0, 40.0, usually=0.5)) == []


def test_replicas_without_values_have_no_verdict(skewed):
    nothing = {"engine_http_requests_total": [None] * 54, "engine_inflight_requests": [None] * 54}
    assert skewed(nothing, nothing, nothing) == []
    assert skewed() == []
