"""Prefill and decode pools of disaggregated services: each pool is planned as its own service.

A pool is named ``SERVICE-ROLE``, like its Deployment usually is. It has the requests of its service, and its own
replicas and calibration. Requests in flight of the whole service do not apply to one pool.
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
_MIXED_FIGURES = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")


def with_pools(topology: Topology) -> Topology:
    """Returns the topology with pools as services above their replicas; unchanged if no replica has a role."""
    if not any(ROLE in labels for labels in topology.labels.values()):
        return topology
    edges, labels = list(topology.edges), dict(topology.labels)
    for service in topology.of_kind(EntityKind.SERVICE):
        for role, replicas in _by_role(service, topology).items():
            pool = replace(service, name=f"{service.name}-{role}")
            if pool in topology.entities:
                continue  # a service of that name exists and has its own plan
            edges += [(replica, pool) for replica in replicas]
            labels[pool] = {**topology.labels.get(service, {}), POOL_OF: service.name, ROLE: role}
    return Topology.build(edges, topology.entities, labels, topology.at)


def planned(topology: Topology) -> tuple[EntityRef, ...]:
    """Returns the services to plan; pools replace their service."""
    services = topology.of_kind(EntityKind.SERVICE)
    split = {parent for service in services if (parent := parent_of(service, topology)) is not None}
    return tuple(service for service in services if service not in split)


def parent_of(service: EntityRef, topology: Topology) -> EntityRef | None:
    """Returns the service that a pool belongs to; None if ``service`` is not a pool."""
    name = topology.label(service, POOL_OF)
    return replace(service, name=name) if name else None


def with_rows(history: Window, services: Sequence[EntityRef], topology: Topology) -> Window:
    """Returns a history with a row per service; pools get the load of their service, but no other signal."""
    parents = [parent_of(service, topology) for service in services]
    if not any(parents):
        return history
    row_of = {entity: row for row, entity in enumerate(history.entities)}
    known = [
        (service, parent) for service, parent in zip(services, parents, strict=True) if (parent or service) in row_of
    ]
    rows = [row_of[parent or service] for service, parent in known]
    values, status = history.values[rows].copy(), history.status[rows].copy()
    pools = np.array([parent is not None for _, parent in known])
    for column, key in enumerate(history.keys):
        if key != LOAD:
            values[pools, :, column], status[pools, :, column] = np.nan, CellStatus.ABSENT
    return replace(history, entities=tuple(service for service, _ in known), values=values, status=status)


def setting_of(
    pool: EntityRef, parent: ServiceSettings, own: ServiceSettings | None, topology: Topology
) -> ServiceSettings:
    """Returns a pool's settings: its own entry of ``services``, else its service's without the mixed-replica figures.

    TP and PP default to those of its engines' command lines.
    """
    inherited = {name: getattr(parent, name) for name in parent.model_fields_set if name not in _MIXED_FIGURES}
    configured = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
    fields = {**split_of(pool, topology), **inherited, **configured}
    return ServiceSettings(**{**fields, "name": pool.name, "namespace": pool.namespace})


def split_of(service: EntityRef, topology: Topology) -> dict[str, int]:
    """Returns TP and PP of the replicas, if all of their engines' command lines agree."""
    split = {}
    for name in ("tensor_parallel", "pipeline_parallel"):
        degrees = {topology.label(replica, name) for replica in topology.below(service, EntityKind.REPLICA)}
        if len(degrees) == 1 and (only := degrees.pop()).isdecimal() and int(only):
            split[name] = int(only)
    return split


def share_of_quota(quota: int | None, used: int, used_by_all: int, pools: int) -> int | None:
    """Returns the GPUs that one pool may use: its own, and its share of the free quota of the service."""
    return None if quota is None else used + max(0, quota - used_by_all) // max(1, pools)


def _by_role(service: EntityRef, topology: Topology) -> dict[str, list[EntityRef]]:
    """Groups replicas by role; empty unless both roles exist and every replica has one of them."""
    by_role: dict[str, list[EntityRef]] = {}
    for replica in topology.below(service, EntityKind.REPLICA):
        by_role.setdefault(topology.label(replica, ROLE), []).append(replica)
    return by_role if set(by_role) == set(ROLES) else {}
