"""Services whose replicas do prefill or decode only: each pool is planned as a service of its own.

A pool is called ``SERVICE-ROLE``, as the Deployment that runs it usually is. It has the requests of its service, its
own replicas and what those are measured to carry; requests in flight of the whole service say nothing of one pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Window
from outrider.topology import Topology
from planner.forecast.batch_forecast import LOAD
from service.config.service_settings import ServiceSettings

ROLES = ("prefill", "decode")
ROLE, POOL_OF = "role", "pool_of"
_FOR_THE_WHOLE = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")


def with_pools(topology: Topology) -> Topology:
    """The topology with the pools as services above their replicas; the same one where nobody has a role."""
    if not any(ROLE in labels for labels in topology.labels.values()):
        return topology
    edges, labels = list(topology.edges), dict(topology.labels)
    for service in topology.of_kind(EntityKind.SERVICE):
        for role, replicas in _by_role(service, topology).items():
            pool = replace(service, name=f"{service.name}-{role}")
            if pool in topology.entities:
                continue  # a service of that name exists, and is planned by itself
            edges += [(replica, pool) for replica in replicas]
            labels[pool] = {**topology.labels.get(service, {}), POOL_OF: service.name, ROLE: role}
    return Topology.build(edges, topology.entities, labels, topology.at)


def planned(topology: Topology) -> tuple[EntityRef, ...]:
    """The services to plan: pools in place of the service that they are of."""
    services = topology.of_kind(EntityKind.SERVICE)
    split = {parent for service in services if (parent := parent_of(service, topology)) is not None}
    return tuple(service for service in services if service not in split)


def parent_of(service: EntityRef, topology: Topology) -> EntityRef | None:
    """The service that a pool is of; None for what is no pool."""
    name = topology.label(service, POOL_OF)
    return replace(service, name=name) if name else None


def with_rows(history: Window, services: Sequence[EntityRef], topology: Topology) -> Window:
    """A history with a row for each of ``services``: pools get the load of their service, and nothing else of it."""
    parents = [parent_of(service, topology) for service in services]
    if not any(parents):
        return history
    place = {entity: row for row, entity in enumerate(history.entities)}
    known = [
        (service, parent) for service, parent in zip(services, parents, strict=True) if (parent or service) in place
    ]
    rows = [place[parent or service] for service, parent in known]
    values, status = history.values[rows].copy(), history.status[rows].copy()
    pools = np.array([parent is not None for _, parent in known])
    for column, key in enumerate(history.keys):
        if key != LOAD:
            values[pools, :, column], status[pools, :, column] = np.nan, CellStatus.ABSENT
    return replace(history, entities=tuple(service for service, _ in known), values=values, status=status)


def setting_of(
    pool: EntityRef, parent: ServiceSettings, own: ServiceSettings | None, topology: Topology
) -> ServiceSettings:
    """What counts for a pool: its own entry of ``services``, else its service's without the figures of mixed replicas.

    Where neither says how a replica is split over GPUs, its engines' command lines do.
    """
    kept = {name: getattr(parent, name) for name in parent.model_fields_set if name not in _FOR_THE_WHOLE}
    said = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
    told = {**split_of(pool, topology), **kept, **said}
    return ServiceSettings(**{**told, "name": pool.name, "namespace": pool.namespace})


def split_of(service: EntityRef, topology: Topology) -> dict[str, int]:
    """How each replica is split over GPUs, as far as all of its engines' command lines say the same."""
    told = {}
    for name in ("tensor_parallel", "pipeline_parallel"):
        degrees = {topology.label(replica, name) for replica in topology.below(service, EntityKind.REPLICA)}
        if len(degrees) == 1 and (only := degrees.pop()).isdecimal() and int(only):
            told[name] = int(only)
    return told


def share_of_quota(quota: int | None, held: int, held_by_all: int, pools: int) -> int | None:
    """GPUs that one pool may hold: its own, and its share of what the quota of the service leaves free."""
    return None if quota is None else held + max(0, quota - held_by_all) // max(1, pools)


def _by_role(service: EntityRef, topology: Topology) -> dict[str, list[EntityRef]]:
    """Replicas by role; empty unless both roles are there and nobody does both: that is one pool."""
    found: dict[str, list[EntityRef]] = {}
    for replica in topology.below(service, EntityKind.REPLICA):
        found.setdefault(topology.label(replica, ROLE), []).append(replica)
    return found if set(found) == set(ROLES) else {}
