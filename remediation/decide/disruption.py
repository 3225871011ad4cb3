"""PodDisruptionBudgets that would refuse the evictions of an action. Pure."""

from __future__ import annotations

from outrider.model import ActionKind, EntityKind, EntityRef
from outrider.topology import EVICTION_BLOCKED_BY, NOT_READY, Topology


def blocking_budgets(kind: ActionKind, target: EntityRef, topology: Topology) -> tuple[str, ...]:
    """Names of the budgets that refuse an eviction of the action, as ``namespace/name``, sorted."""
    pods = blocked_pods(kind, target, topology)
    return tuple(sorted({name for pod in pods for name in topology.label(pod, EVICTION_BLOCKED_BY).split(",") if name}))


def blocked_pods(kind: ActionKind, target: EntityRef, topology: Topology) -> tuple[EntityRef, ...]:
    """The pods of an action whose eviction a budget refuses."""
    if kind is ActionKind.DRAIN:
        pods = [entity for entity in topology.holds_up(target) if entity.kind is EntityKind.POD]
    elif kind is ActionKind.RESTART_POD:
        own = (target,) if target.kind is EntityKind.POD else topology.below(target, EntityKind.POD)
        pods = [pod for pod in own if not topology.label(pod, NOT_READY)]
    else:
        return ()
    return tuple(pod for pod in pods if topology.label(pod, EVICTION_BLOCKED_BY))
