"""Status of a horizontal autoscaler per service: desired replicas, bounds, errors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outrider.model import Floats
from simulator.effects import ServiceEffects
from simulator.spec.parts import FleetSpec

AT_MAXIMUM, BLIND = 1, 2
SYNC_SECONDS = 15.0


class Autoscaler:
    """One autoscaler per service; arrays of shape (services,), in the order of the spec.

    ``desired`` replicas (at most ``maximum``), ``minimum``, ``maximum``, ``wanted`` (before that bound),
    ``at_maximum``
    (``wanted`` exceeds the maximum), ``blind`` (its metric is unavailable), ``errors`` (counter of failed syncs). The
    fleet does not scale by itself: ``desired`` is the ordered number, plus what faults add.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self.maximum = np.array([service.ceiling for service in spec.services], dtype=np.float64)
        self.minimum = np.array([min(2, service.replicas) for service in spec.services], dtype=np.float64)
        self.wanted = np.array([service.replicas for service in spec.services], dtype=np.float64)
        self.desired = self.wanted.copy()
        self.at_maximum = np.zeros(self.maximum.size, dtype=bool)
        self.blind = np.zeros(self.maximum.size, dtype=bool)
        self.errors: Floats = np.zeros(self.maximum.size)
        self._names = [service.name for service in spec.services]

    def advance(self, seconds: float, ordered: Mapping[str, int], effects: ServiceEffects) -> None:
        """Updates to the ordered replicas plus those that ``effects`` add."""
        stuck = np.round(effects.autoscaler_stuck)
        base = np.array([ordered[name] for name in self._names], dtype=np.float64)
        self.blind = stuck == BLIND
        self.wanted = base + np.where(self.blind, 0.0, effects.desired_extra)
        # Stuck at its maximum: the maximum was set to the current replicas.
        most = np.where(stuck == AT_MAXIMUM, base, self.maximum)
        self.desired = np.minimum(self.wanted, most)
        self.at_maximum = (self.wanted > most) | (stuck == AT_MAXIMUM)
        self.errors += np.where(self.blind, seconds / SYNC_SECONDS, 0.0)
