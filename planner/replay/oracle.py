"""Least GPU-hours without waiting if all traffic is known in advance."""

from __future__ import annotations

import numpy as np

from planner.replay.workload import Workload


def least_replica_minutes(workload: Workload, startup_minutes: float) -> float:
    """Replica-minutes from ``workload.first`` on, billed from launch.

    Exact by construction: the k-th replica is needed while the load needs k or more. Each stretch costs its length and
    one start-up time. A gap no longer than a start-up time is cheaper to bridge. Replicas of the first minute already
    run.
    """
    need = workload.need[workload.first :]
    total = 0.0
    for level in range(1, int(need.max()) + 1):
        edges = np.diff(np.concatenate([[0], (need >= level).astype(np.int8), [0]]))
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        gaps = begins[1:] - ends[:-1]
        total += float((ends - begins).sum() + np.minimum(gaps, startup_minutes).sum())
        total += startup_minutes if begins[0] > 0 else 0.0
    return total
