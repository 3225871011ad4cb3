"""The load balancer in front of the replicas: weights an operator sets, and health checks that lag."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.pods import Phase, Pods
from simulator.traffic import Arrivals


class Router:
    """Spreads each service's requests over its replicas by weight.

    A dead replica gets requests until the health check has seen it, a new one none until then. A
    hung engine that answers its health check keeps its share.
    """

    def __init__(self, pods: Pods, health_check_seconds: float, seed: int) -> None:
        self.weights = np.ones(len(pods.pods))
        self._pods = pods
        self._lag = health_check_seconds
        self._service = np.array([pods.spec.services.index(pod.service) for pod in pods.pods], dtype=np.int64)
        self._random = np.random.default_rng([seed, 6])

    def shares(self, at: float) -> Floats:
        """The part of its service's requests that each slot is sent at an instant."""
        raw = self.weights * np.array([self._believed_up(slot, at) for slot in range(self.weights.size)])
        totals = np.bincount(self._service, raw, len(self._pods.spec.services))[self._service]
        return np.asarray(np.divide(raw, totals, out=np.zeros_like(raw), where=totals > 0), dtype=np.float64)

    def route(self, arrivals: Arrivals, shares: Floats) -> np.ndarray:
        """The slot of each request; -1 where no replica takes it."""
        cumulated = np.cumsum(shares) + 0.0
        by_service = np.bincount(self._service, shares, len(self._pods.spec.services))
        # Slots stand in order of service, so each service owns one stretch of the cumulated shares.
        offset = np.concatenate([[0.0], np.cumsum(by_service)[:-1]])
        drawn = offset[arrivals.service] + self._random.random(len(arrivals)) * by_service[arrivals.service]
        slot = np.minimum(np.searchsorted(cumulated, drawn, side="right"), shares.size - 1)
        taken = (by_service[arrivals.service] > 0) & (shares[slot] > 0)
        return np.where(taken, slot, -1)

    def _believed_up(self, slot: int, at: float) -> bool:
        pod = self._pods.pods[slot]
        if pod.phase is Phase.READY:
            return pod.ready_at is not None and at >= pod.ready_at + self._lag
        return pod.phase is Phase.CRASHED and pod.crashed_at is not None and at < pod.crashed_at + self._lag
