"""Traffic weights that return the load of a skewed service to its usual distribution, from the replicas' own values.

The usual speed of a replica is its rate of tokens before the skew began. So an intended difference, of a canary or a
faster GPU type, stays. The least demonstrated capacity follows from the replica that exceeds its usual rate the most.
The weights stay after the incident, so a full KV cache, which the skew itself causes, does not drain a replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from outrider.errors import UsageError
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Floats, Window, signal_keys
from outrider.topology import Topology
from planner.traffic import weight_changes
from planner.traffic.weight_changes import SteeringRules
from planner.traffic.weights import ReplicaLoad
from service.engine.detect import RecentValues

FAULT = "traffic-skew"
VALUES = signal_keys(
    "engine_generation_tokens_total",
    "engine_requests_finished_total",
    "engine_requests_running",
    "engine_requests_waiting",
)
SPAN = timedelta(minutes=10)
PRESENT = timedelta(seconds=90)  # the span over which the skew is detected
MARGIN = timedelta(seconds=60)  # before the first alert the load may already be uneven
FEWEST_CYCLES = 4  # fewer of them say little about the usual load


def weights(
    alerts: Iterable[Alert], topology: Topology, values: RecentValues, usable: frozenset[EntityRef]
) -> dict[EntityRef, dict[str, int]]:
    """Returns weights by replica name for each service with an active skew; services with unknown weights lack.

    Only replicas in ``usable``, and the skewed ones, get a weight. Others keep their share.
    """
    skewed: dict[EntityRef, list[Alert]] = {}
    for alert in alerts:
        if alert.fault == FAULT and alert.state is not AlertState.RESOLVED:
            for service in topology.above(alert.entity, EntityKind.SERVICE):
                skewed.setdefault(service, []).append(alert)
    if not skewed:
        return {}
    window = values.window(EntityKind.REPLICA, VALUES, SPAN)
    result = {}
    for service, own in skewed.items():
        members = usable | {alert.entity for alert in own}
        replicas = [replica for replica in topology.below(service, EntityKind.REPLICA) if replica in members]
        found = _of_service(window, replicas, min(alert.starts_at for alert in own))
        if found:
            result[service] = found
    return result


def _of_service(window: Window, replicas: Sequence[EntityRef], began: datetime) -> dict[str, int]:
    """Returns the proposed weights; empty if they are unknown, or if a replay of the arrivals shows no gain."""
    row_of = {entity: row for row, entity in enumerate(window.entities)}
    rows = [row_of[replica] for replica in replicas if replica in row_of]
    times = window.times
    if not rows or not times.size:
        return {}
    now = times > times[-1] - PRESENT.total_seconds()
    before = times < (began - MARGIN).timestamp()
    tokens, finished, running, waiting = (window.column(key)[rows] for key in VALUES)
    seconds = window.step.total_seconds()
    usual, rate = _mean(tokens[:, before]) / seconds, _mean(tokens[:, now]) / seconds
    answered = _mean(finished[:, now])
    load = _mean(waiting[:, now]) + _mean(running[:, now]) / 2.0  # a running request has half of its tokens to go
    known = (usual > 0) & (rate > 0) & (answered > 0) & np.isfinite(load)
    if known.sum() < 2:
        return {}
    per_request = max(float(rate[known].sum() * seconds / answered[known].sum()), 1.0)
    speed = usual * max(float((rate[known] / usual[known]).max()), 1.0)
    names = [window.entities[row].name for row in rows]
    loads = [
        ReplicaLoad(names[index], per_request * float(load[index]), float(speed[index]))
        for index in np.flatnonzero(known).tolist()
    ]
    shares = dict(zip(names, np.where(known, answered, 0.0).tolist(), strict=True))
    return _proposed(loads, float(rate[known].sum()), shares, SteeringRules(tokens_per_request=per_request))


def _proposed(
    loads: Sequence[ReplicaLoad], arriving: float, shares: Mapping[str, float], rules: SteeringRules
) -> dict[str, int]:
    try:
        proposal = weight_changes.propose([load.name for load in loads], loads, arriving, shares, rules)
    except UsageError:  # more replicas than whole weights can distinguish
        return {}
    return dict(proposal.weights) if proposal.proposed else {}


def _mean(values: Floats) -> Floats:
    """Mean by replica over the known cycles; NaN with fewer than ``FEWEST_CYCLES`` of them."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count >= FEWEST_CYCLES, total / np.maximum(count, 1), np.nan)
