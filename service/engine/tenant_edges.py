"""Edges from services to their tenants with an alert, for correlation. Pure.

Tenants come and go with their traffic, so the stored topology does not have them.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider.model import Alert, AlertState, EntityKind
from outrider.topology import Topology
from outrider.vocabulary.tenants import service_of


def with_tenants(topology: Topology, alerts: Iterable[Alert]) -> Topology:
    """Returns the topology with the tenants that have an alert above their services; unchanged without any."""
    tenants = {
        alert.entity
        for alert in alerts
        if alert.entity.kind is EntityKind.TENANT and alert.state is not AlertState.RESOLVED
    }
    if not tenants:
        return topology
    edges = [(service_of(tenant), tenant) for tenant in sorted(tenants, key=lambda tenant: tenant.key)]
    return Topology.build((*topology.edges, *edges), topology.entities, topology.labels, topology.at)
