"""traffic-surge: far more requests than usual, everywhere at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection
from simulator.traffic import Surge

if TYPE_CHECKING:
    from simulator.fleet import Fleet

LEAST_FACTOR = 1.7
OVER_CAPACITY = 1.1  # the surge asks for this much of what the service's replicas can do
ONSET_SECONDS = 60.0


class TrafficSurge(Injection):
    """Arrivals rise within a minute above the service's capacity, so that queues and TTFT grow evenly."""

    fault = "traffic-surge"
    kind = EntityKind.SERVICE
    lasts = timedelta(minutes=12)
    symptoms = (
        "svc_requests_per_second",
        "engine_requests_waiting",
        "engine_kv_cache_usage_ratio",
        "svc_ttft_seconds",
    )

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Every service."""
        return [fleet.entity(EntityKind.SERVICE, service.name, service.namespace) for service in fleet.spec.services]

    def begin(self, fleet: Fleet) -> None:
        """Size it by the load of this hour."""
        service = fleet.spec.service(self.truth.entity.name)
        usual = float(fleet.traffic.rates(fleet.at)[fleet.spec.services.index(service)])
        factor = max(LEAST_FACTOR, OVER_CAPACITY * service.capacity_per_second() / max(usual, 1e-9))
        self._surge = Surge(service.name, self._start, self._end, factor, ONSET_SECONDS)
        fleet.traffic.surges.append(self._surge)

    def finish(self, fleet: Fleet) -> None:
        """Back to usual."""
        fleet.traffic.surges.remove(self._surge)
