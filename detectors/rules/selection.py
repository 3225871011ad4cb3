"""Entities that a rule covers: by name, namespace and cluster, and by facts of the topology such as a request class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from outrider.model import EntityKind, EntityRef, Window
from outrider.topology import Topology
from outrider.vocabulary.request_class import RequestClass
from outrider.vocabulary.tenants import name_of, service_of

REQUEST_CLASS = "request_class"


def selects(where: Mapping[str, tuple[str, ...]], entity: EntityRef, topology: Topology) -> bool:
    """True if the entity has one of the values of every key, and none of those that begin with ``!``.

    A request class matches its parts: vip is vip-online. A tenant has the facts ``tenant`` and ``service``.
    """
    return all(_matches(key, values, _fact(key, entity, topology)) for key, values in where.items())


def selected(window: Window, where: Mapping[str, tuple[str, ...]], topology: Topology) -> Window:
    """The part of a window with the entities that a rule covers."""
    if not where:
        return window
    rows = np.array([selects(where, entity, topology) for entity in window.entities], dtype=np.bool_)
    if rows.all():
        return window
    entities = tuple(entity for entity, kept in zip(window.entities, rows, strict=True) if kept)
    return replace(window, entities=entities, values=window.values[rows], status=window.status[rows])


def _fact(key: str, entity: EntityRef, topology: Topology) -> str:
    own = {"name": entity.name, "namespace": entity.namespace or "", "cluster": entity.cluster}
    if entity.kind is EntityKind.TENANT:
        own |= {"tenant": name_of(entity), "service": service_of(entity).name}
    return own[key] if key in own else topology.label(entity, key)


def _matches(key: str, values: tuple[str, ...], fact: str) -> bool:
    excluded = [value[1:] for value in values if value.startswith("!")]
    wanted = tuple(value for value in values if not value.startswith("!"))
    return not (excluded and _has(key, excluded, fact)) and (not wanted or _has(key, wanted, fact))


def _has(key: str, values: Sequence[str], fact: str) -> bool:
    if key != REQUEST_CLASS:
        return fact in values
    has = RequestClass.parse(fact)
    return any(_covers(RequestClass.parse(value), has) for value in values)


def _covers(wanted: RequestClass, has: RequestClass) -> bool:
    """True if every part that is wanted is there; a class without any known part is never wanted."""
    pairs = ((wanted.tier, has.tier), (wanted.mode, has.mode), (wanted.length, has.length))
    return any(part is not None for part, _ in pairs) and all(part in (None, other) for part, other in pairs)
