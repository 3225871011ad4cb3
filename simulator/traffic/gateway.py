"""Counters of the gateway in front of the services: totals by service, as arrays.

Responses of engines are read from the engines' own counters on demand. Requests that never reached an engine are
counted at once.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.engine.counters import EngineCounters

_FROM_ENGINES = ("http_ok", "http_4xx", "http_5xx", "finished_stop", "finished_length", "finished_abort")


class GatewayCounters:
    """Totals since the start of the fleet, each of shape (services,); monotonic.

    A request counts at its end: ``answered_2xx`` complete responses, ``answered_4xx`` bad requests (429 is separate:
    degrade levels reject with it), ``answered_5xx`` errors of engines and gateway, and requests that no
    engine took or finished; ``disconnects`` clients that left before the end. ``retries`` counts requests after a
    failed or late one.
    """

    def __init__(self, services: int) -> None:
        self.answered_2xx = np.zeros(services)
        self.answered_4xx = np.zeros(services)
        self.answered_429 = np.zeros(services)
        self.answered_5xx = np.zeros(services)
        self.disconnects = np.zeros(services)
        self.retries = np.zeros(services)
        self._services = services
        self._last: dict[str, Floats] = {}

    @property
    def requests(self) -> Floats:
        """Ended requests, with any result."""
        return np.asarray(
            self.answered_2xx + self.answered_4xx + self.answered_429 + self.answered_5xx + self.disconnects,
            dtype=np.float64,
        )

    def count(self, name: str, service: np.ndarray) -> None:
        """Raises a total by one for each of the given services (they may repeat)."""
        total: Floats = getattr(self, name)
        total += np.bincount(service, minlength=self._services)

    def take(self, counters: EngineCounters, service_of_slot: np.ndarray) -> None:
        """Adds the engines' responses since the last call. A counter that fell has restarted at 0."""
        grown = {}
        for name in _FROM_ENGINES:
            now = counters.plain[name]
            before = self._last.get(name, np.zeros(now.shape))
            grown[name] = np.where(now >= before, now - before, now)
            self._last[name] = now.copy()
        whole = grown["finished_stop"] + grown["finished_length"]
        # An engine counts an aborted request as 2xx over HTTP, but not as finished.
        left = np.maximum(grown["http_ok"] - whole - grown["finished_abort"], 0.0)
        self.answered_2xx += self._by_service(service_of_slot, whole + grown["finished_abort"])
        self.answered_4xx += self._by_service(service_of_slot, grown["http_4xx"])
        self.answered_5xx += self._by_service(service_of_slot, grown["http_5xx"])
        self.disconnects += self._by_service(service_of_slot, left)

    def _by_service(self, service_of_slot: np.ndarray, values: Floats) -> Floats:
        return np.bincount(service_of_slot, values, self._services).astype(np.float64)
