"""The incidents that concern a planned service or a pool of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.model import EntityRef, Incident
from outrider.topology import Topology
from service.planning.replan import LOAD_FAULTS
from service.planning.role_pools import POOL_OF


def concerns(incident: Incident, service: EntityRef, topology: Topology) -> bool:
    """True for a service of the incident, and for a pool of one. ``topology`` has role pools as services."""
    return incident.concerns(service) or topology.label(service, POOL_OF) in incident.services


def load_incidents(incidents: Iterable[Incident], service: EntityRef, topology: Topology) -> list[Incident]:
    """Returns the incidents of a service whose cause more replicas end. ``incidents`` are open."""
    return [
        incident
        for incident in incidents
        if (cause := incident.suspected_cause) is not None
        and cause.fault in LOAD_FAULTS
        and concerns(incident, service, topology)
    ]
