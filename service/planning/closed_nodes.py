"""Nodes that take no new pod, from the stored values."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityKind, EntityRef, signal_keys
from outrider.ports import MetricStore
from outrider.topology import Topology
from outrider.windows import believed

_FRESH = timedelta(minutes=2)
_STEP = timedelta(seconds=15)
UNSCHEDULABLE, READY = NODE_KEYS = signal_keys("node_unschedulable", "node_ready")


def closed_nodes(metrics: MetricStore, topology: Topology, now: datetime) -> frozenset[EntityRef]:
    """Returns the nodes that are cordoned or not ready by their newest value. Raises StoreUnavailableError."""
    nodes = topology.of_kind(EntityKind.NODE)
    if not nodes:
        return frozenset()
    window = metrics.read_windows(EntityKind.NODE, NODE_KEYS, now - _FRESH, now + _STEP, _STEP, nodes)
    closed: set[EntityRef] = set()
    for key, bad in ((UNSCHEDULABLE, 1.0), (READY, 0.0)):
        for entity, values in zip(window.entities, believed(window, key), strict=True):
            known = values[~np.isnan(values)]
            if known.size and known[-1] == bad:
                closed.add(entity)
    return frozenset(closed)
