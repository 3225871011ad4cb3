"""Measured headroom: replicas that carry the present load, from the engines' own figures. Needs no plan.

The load of a replica that is taken away moves to the others. They must have room in the KV cache and no queue, and the
load of each may grow by a third at most: beyond that, step times are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import numpy as np

from outrider import windows
from outrider.model import EntityKind, EntityRef, Floats, Plan, Recommendation, SignalKey, Window
from outrider.topology import Topology

KV_USED = SignalKey("engine_kv_cache_usage_ratio")
WAITING = SignalKey("engine_requests_waiting")
RUNNING = SignalKey("engine_requests_running")
LOAD = (KV_USED, WAITING, RUNNING)
KV_LIMIT = 0.85  # above it engines begin to preempt
GROWTH_LIMIT = 4.0 / 3.0
QUEUE_LIMIT = 0.1  # waiting requests per running one; more of them mean that there is nothing to spare


def measured(
    topology: Topology, newest: Mapping[EntityRef, Floats], serving: Iterable[EntityRef], healthy: Iterable[EntityRef]
) -> dict[EntityRef, int]:
    """Returns the replicas that carry the load of each service; services without figures lack.

    ``newest`` holds the values of ``LOAD`` by replica. The queue counts on ``healthy`` replicas only: that of a faulty
    one is no measure of the load.
    """
    up, well, result = set(serving), set(healthy), {}
    for service in topology.of_kind(EntityKind.SERVICE):
        replicas = [replica for replica in topology.below(service, EntityKind.REPLICA) if replica in up]
        known = [newest[replica] for replica in replicas if replica in newest]
        if not known or len(known) < len(replicas):
            continue
        kept = [newest[replica] for replica in replicas if replica in well]
        result[service] = _carrying(np.array(known), np.array(kept or known))
    return result


def _carrying(load: Floats, kept: Floats) -> int:
    """Replicas that carry the load of ``load`` (replicas, LOAD), with the queue of ``kept``."""
    count = len(load)
    if not np.isfinite(load[:, 0]).any() or np.nansum(kept[:, 1]) > QUEUE_LIMIT * np.nansum(kept[:, 2]):
        return count
    return min(count, max(ceil(float(np.nansum(load[:, 0])) / KV_LIMIT), ceil(count / GROWTH_LIMIT)))


def planned(plan: Plan) -> dict[EntityRef, int]:
    """Returns the replicas that carry the load of each service according to the plan, without its buffer."""
    result = {}
    for item in plan.recommendations:
        if not isinstance(item, Recommendation):
            continue
        load, capacity = item.derivation.get("load_now"), item.derivation.get("capacity_now")
        if load is not None and capacity and item.current_replicas:
            buffer = float(item.derivation.get("buffer", {}).get("value") or 0.0)
            one = float(capacity) * (1.0 + buffer) / item.current_replicas
            result[item.service] = max(1, ceil(float(load) / one))
    return result


def newest_load(window: Window) -> dict[EntityRef, Floats]:
    """Returns the newest values of ``LOAD`` by replica."""
    columns = np.stack([windows.last_value(window, key) for key in LOAD], axis=1)
    return dict(zip(window.entities, columns, strict=True))
