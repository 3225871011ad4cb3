"""Measured headroom: replicas that carry the present load, from the engines' own figures. Needs no plan.

The load of a replica that is taken away moves to the others. They must have room in the KV cache and no queue. The load
of each may grow by a third at most over what it usually was: beyond that, step times are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from math import ceil

import numpy as np

from outrider import windows
from outrider.model import EntityKind, EntityRef, Floats, Plan, Recommendation, SignalKey, Window
from outrider.topology import Topology

KV_USED = SignalKey("engine_kv_cache_usage_ratio")
WAITING = SignalKey("engine_requests_waiting")
RUNNING = SignalKey("engine_requests_running")
LOAD = (KV_USED, WAITING, RUNNING)
SPAN = timedelta(minutes=10)
PRESENT = timedelta(minutes=2)  # one sample of a batch is a coin toss
KV_LIMIT = 0.85  # above it engines begin to preempt
GROWTH_LIMIT = 4.0 / 3.0
QUEUE_LIMIT = 0.1  # waiting requests per running one; more of them mean that there is nothing to spare


def measured(
    topology: Topology, load: Window, serving: Iterable[EntityRef], healthy: Iterable[EntityRef]
) -> dict[EntityRef, int]:
    """Returns the replicas that carry the load of each service; services without figures lack.

    ``load`` holds ``LOAD`` of ``SPAN``. The queue counts on ``healthy`` replicas only: that of a faulty one is no
    measure of the load.
    """
    up, well = set(serving), set(healthy)
    rows = {entity: row for row, entity in enumerate(load.entities)}
    present = _present(load)
    running = load.values[:, :, load.keys.index(RUNNING)]
    result = {}
    for service in topology.of_kind(EntityKind.SERVICE):
        replicas = [replica for replica in topology.below(service, EntityKind.REPLICA) if replica in up]
        mine = [rows[replica] for replica in replicas if replica in rows]
        if mine and len(mine) == len(replicas):
            kept = [rows[replica] for replica in replicas if replica in well] or mine
            result[service] = _carrying(present[mine], present[kept], _usual(running[mine]))
    return result


def _carrying(load: Floats, kept: Floats, usual: float) -> int:
    """Replicas that carry the ``load`` (replicas, LOAD), with the queue of ``kept``.

    ``usual`` is the number of requests that one replica usually runs.
    """
    count, running = len(load), float(np.nansum(load[:, 2]))
    if not np.isfinite(load[:, 0]).any() or np.nansum(kept[:, 1]) > QUEUE_LIMIT * np.nansum(kept[:, 2]):
        return count
    by_batch = ceil(running / (usual * GROWTH_LIMIT)) if usual > 0 else 1
    return min(count, max(1, ceil(float(np.nansum(load[:, 0])) / KV_LIMIT), by_batch))


def _present(load: Window) -> Floats:
    """The mean of the last two minutes (replicas, LOAD); NaN without values."""
    values = load.values[:, windows.recent(load, PRESENT)]
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    return np.where(counts > 0, np.where(known, values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)


def _usual(running: Floats) -> float:
    """The third quartile of the mean of the replicas (replicas, times), 0 without values."""
    known = running[:, np.isfinite(running).any(axis=0)]
    return float(np.quantile(np.nanmean(known, axis=0), 0.75)) if known.size else 0.0


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
