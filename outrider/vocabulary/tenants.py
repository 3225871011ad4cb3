"""Names of tenants: a tenant is an entity within one service, named ``<service>/<tenant>``."""

from __future__ import annotations

from outrider.model import EntityKind, EntityRef

NO_TENANT = "none"  # requests that name no tenant
UNNAMED = frozenset({NO_TENANT, "other"})  # the second sums the tenants beyond the limit of names


def tenant_of(service: EntityRef, name: str) -> EntityRef:
    """Returns the entity of a tenant of a service."""
    return EntityRef(service.cluster, EntityKind.TENANT, service.namespace, f"{service.name}/{name}")


def service_of(tenant: EntityRef) -> EntityRef:
    """Returns the service of a tenant."""
    return EntityRef(tenant.cluster, EntityKind.SERVICE, tenant.namespace, tenant.name.rpartition("/")[0])


def name_of(tenant: EntityRef) -> str:
    """Returns the tenant's own name."""
    return tenant.name.rpartition("/")[2]
