from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch
from outrider.topology import Topology
from service.planning.closed_nodes import NODE_KEYS, closed_nodes
from store.memory.metrics import MemoryMetricStore

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
NODES = [EntityRef("c1", EntityKind.NODE, None, f"node-{n}") for n in range(3)]


def test_cordoned_and_unready_nodes_are_closed_by_their_newest_value():
    topology = Topology.build((), NODES)
    metrics = MemoryMetricStore()
    nan = np.nan
    cycles = [  # (unschedulable, ready) of each node, oldest first
        [(0.0, 1.0), (1.0, 1.0), (0.0, 1.0)],
        [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)],
        [(1.0, 1.0), (0.0, 1.0), (nan, nan)],
    ]
    for number, cycle in enumerate(cycles):
        at, values = NOW - timedelta(seconds=15 * (2 - number)), np.array(cycle)
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        batch = SampleBatch("t", at, EntityKind.NODE, NODE_KEYS, tuple(NODES), values, status)
        metrics.write(at, [batch])
    assert closed_nodes(metrics, topology, NOW) == {NODES[0], NODES[2]}
    assert closed_nodes(metrics, topology, NOW + timedelta(minutes=5)) == frozenset()
