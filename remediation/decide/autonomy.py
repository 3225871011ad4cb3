"""Autonomy: how far remediation goes by itself, per playbook, service and environment. Pure.

Every affected service has its own level: the strictest of those that name the playbook, the service or one of its
environments, else the general one. An action takes the strictest level of the services that it affects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

PLAN = "plan"  # stands for a playbook: scaling by the capacity plan


class Autonomy(StrEnum):
    """Levels, strictest first.

    OBSERVE only undoes earlier actions. RECOMMEND records actions that nobody can approve with one step. APPROVE waits
    for an approval. ACT performs what the guards allow.
    """

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    APPROVE = "approve"
    ACT = "act"


_ORDER = tuple(Autonomy)


def strictest(levels: Iterable[Autonomy], default: Autonomy) -> Autonomy:
    """The strictest of the levels; ``default`` if there are none."""
    return min(levels, key=_ORDER.index, default=default)


@dataclass(frozen=True, slots=True)
class Environment:
    """Clusters and namespaces with a common name such as ``prod``. Patterns with ``*`` are allowed."""

    clusters: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def contains(self, entity: EntityRef) -> bool:
        """True if the cluster or the namespace of the entity is listed."""
        by_cluster = any(fnmatchcase(entity.cluster, pattern) for pattern in self.clusters)
        return by_cluster or any(fnmatchcase(entity.namespace or "", pattern) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True)
class ServiceScope:
    """One affected service: its possible names (of a pool, also those of its service), and its environments."""

    names: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scope:
    """The playbook and the services of an action. Without a known service there is one without names."""

    playbook: str | None
    services: tuple[ServiceScope, ...]


@dataclass(frozen=True, slots=True)
class AutonomyLevels:
    """The general level, and levels by fault of the playbook, by service name and by environment."""

    general: Autonomy = Autonomy.APPROVE
    playbooks: Mapping[str, Autonomy] = field(default_factory=dict)
    services: Mapping[str, Autonomy] = field(default_factory=dict)
    environments: Mapping[str, Autonomy] = field(default_factory=dict)

    def of(self, scope: Scope) -> Autonomy:
        """The level of an action."""
        return strictest((self._of_service(scope.playbook, service) for service in scope.services), self.general)

    def _of_service(self, playbook: str | None, service: ServiceScope) -> Autonomy:
        named = [self.playbooks[playbook]] if playbook in self.playbooks and playbook is not None else []
        named += [self.services[name] for name in service.names if name in self.services]
        named += [self.environments[name] for name in service.environments if name in self.environments]
        return strictest(named, self.general)


def scope_of(
    playbook: str | None,
    target: EntityRef,
    affected: Iterable[EntityRef],
    topology: Topology,
    environments: Mapping[str, Environment],
) -> Scope:
    """The scope of an action on ``target``. ``affected`` are services in addition to those above the target."""
    services = dict.fromkeys((*affected, *topology.above(target, EntityKind.SERVICE)))
    if not services:
        return Scope(playbook, (ServiceScope(environments=_environments(environments, target)),))
    return Scope(
        playbook,
        tuple(
            ServiceScope(_names(service, topology), _environments(environments, target, service))
            for service in services
        ),
    )


def _names(service: EntityRef, topology: Topology) -> frozenset[str]:
    parent = topology.label(service, "pool_of")
    own = {service.name, f"{service.namespace}/{service.name}", service.key, parent, parent.rsplit("/", 1)[-1]}
    return frozenset(own - {""})


def _environments(environments: Mapping[str, Environment], *entities: EntityRef) -> frozenset[str]:
    return frozenset(name for name, known in environments.items() if any(known.contains(entity) for entity in entities))
