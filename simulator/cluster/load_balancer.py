"""The load balancer in front of the replicas: weights set by operators, and delayed health checks."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.cluster.pods import Pods
from simulator.effects import FleetEffects
from simulator.traffic.arrivals import Arrivals


class Router:
    """Spreads each service's requests over its replicas by weight.

    ``weights`` are set by operators, shape (slots,). ``balanced`` weights replace those of the route, wrong ones too: 1
    is an even share, NaN where nobody set one. A dead replica gets requests until the health check fails, a new
    one none until it passes. A hung or sleeping engine that passes its health check keeps its share. An engine without
    a core, or on an unreachable node, loses it. ``believed_up`` is the last health check, bool of shape (slots,).
    """

    def __init__(self, pods: Pods, health_check_seconds: float, seed: int) -> None:
        slots = len(pods.pods)
        self.weights = np.ones(slots)
        self.balanced = np.full(slots, np.nan)
        self.believed_up = np.zeros(slots, dtype=bool)
        self._pods = pods
        self._lag = health_check_seconds
        self._healthy = np.zeros(slots, dtype=bool)
        self._since = np.full(slots, -np.inf)
        self._process = np.zeros(slots, dtype=np.int64)
        self._service = pods.service_of_slot
        self._services = len(pods.spec.services)
        self._random = np.random.default_rng([seed, 6])

    def check_health(self, at: float, answering: np.ndarray) -> None:
        """Runs one round of health checks; ``answering`` slots (bool) return 200.

        A deleted pod leaves at once: its endpoint is removed with it.
        """
        pods = self._pods
        healthy = pods.ready & answering
        fresh = pods.process != self._process
        self._process = pods.process.copy()
        changed = (healthy != self._healthy) | fresh
        self._since[changed] = at
        self._healthy = healthy
        due = at >= self._since + self._lag
        self.believed_up = np.where(due, healthy, self.believed_up & ~fresh)
        self.believed_up &= pods.ready | (pods.crashed_at > -np.inf)

    def assume_ready(self) -> None:
        """Marks all ready slots as up at once, as after a long time."""
        self._healthy = self.believed_up = self._pods.ready.copy()
        self._process = self._pods.process.copy()

    def shares(self, effects: FleetEffects) -> Floats:
        """Returns each slot's share of its service's requests, shape (slots,)."""
        route = np.where(np.isnan(self.balanced), effects.slots.weight_factor, self.balanced)
        return self._shares(route)

    def intended_shares(self) -> Floats:
        """Returns the shares if nothing but the operators' weights decided, shape (slots,)."""
        return self._shares(np.ones(self.weights.size))

    def _shares(self, route: Floats) -> Floats:
        raw = self.weights * route * self.believed_up
        totals = np.bincount(self._service, raw, self._services)[self._service]
        return np.asarray(np.divide(raw, totals, out=np.zeros_like(raw), where=totals > 0), dtype=np.float64)

    def route(self, arrivals: Arrivals, shares: Floats) -> np.ndarray:
        """Returns the slot of each request; -1 if no replica takes it."""
        slots = np.full(len(arrivals), -1, dtype=np.int64)
        totals = np.bincount(self._service, shares, self._services)
        for service in np.flatnonzero(totals > 0).tolist():
            mine, takers = np.flatnonzero(arrivals.service == service), np.flatnonzero(self._service == service)
            # Draw the counts first, then the order: drawing every request needs a search for each.
            counts = self._random.multinomial(mine.size, shares[takers] / totals[service])
            slots[mine] = self._random.permutation(np.repeat(takers, counts))
        return slots
