"""Service state that affects alert priority: SLO burn and lost redundancy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from outrider.model import Alert, AlertState, EntityKind, EntityRef, Priority
from outrider.vocabulary.tenants import service_of

SERVICE_LEVEL = "service_level"  # label of alerts whose rule is about the SLO of the service itself
_SPARE = 2  # one replica to serve and one spare


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Services with a burning SLO and services without redundancy.

    ``service_of`` returns the services that a fault of an entity can reach.
    """

    burning: frozenset[EntityRef]
    unredundant: frozenset[EntityRef]
    service_of: Callable[[EntityRef], tuple[EntityRef, ...]]

    def services(self, entity: EntityRef) -> tuple[EntityRef, ...]:
        """The services concerned; a service concerns itself, and a tenant its service."""
        if entity.kind is EntityKind.TENANT:
            return (service_of(entity),)
        return (entity,) if entity.kind is EntityKind.SERVICE else self.service_of(entity)

    def urgent(self, entity: EntityRef) -> bool:
        """True if a service within reach burns or has lost its redundancy."""
        return any(service in self.burning or service in self.unredundant for service in self.services(entity))


def service_context(
    alerts: Iterable[Alert],
    ready_replicas: Mapping[EntityRef, int],
    needed_replicas: Mapping[EntityRef, int],
    service_of: Callable[[EntityRef], tuple[EntityRef, ...]],
) -> ServiceContext:
    """The context of one cycle.

    A service burns while its own P0 or P1 rule fires (availability, TTFT P99). It has lost its redundancy if fewer
    replicas are ready than max(2, needed). A service with an unknown number of ready replicas is neither.
    """
    burning = frozenset(
        alert.entity
        for alert in alerts
        if alert.state is AlertState.FIRING
        and alert.labels.get(SERVICE_LEVEL) == "true"
        and alert.priority.rank <= Priority.P1.rank
    )
    unredundant = frozenset(
        service for service, ready in ready_replicas.items() if ready < max(_SPARE, needed_replicas.get(service, 0))
    )
    return ServiceContext(burning, unredundant, service_of)
