"""Other programs and people whose objects are left to them. Pure.

The collectors label nodes, pods and replicas with their owners. An owner that would revert a change, or that acts on
the object itself, refuses the action. An annotation that forbids disruption asks for an approval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outrider.model import ActionKind, DecisionReason, EntityKind, EntityRef, Verdict
from outrider.topology import Topology

OPERATOR = "an operator, who un-cordoned it"
_OF_NODES = frozenset(
    {ActionKind.CORDON, ActionKind.DRAIN, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC}
)
_OF_PODS = frozenset({ActionKind.RESTART_POD, ActionKind.DELETE_STUCK_POD})
_OF_TEMPLATES = frozenset({ActionKind.ROLLBACK, ActionKind.PAUSE_ROLLOUT, ActionKind.RESUME_ROLLOUT})
_DISRUPTIVE = frozenset({ActionKind.DRAIN, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, *_OF_PODS})
_ISOLATING = frozenset({ActionKind.CORDON, ActionKind.DRAIN})


@dataclass(frozen=True, slots=True)
class Owners:
    """Owners of one entity, each by name or empty.

    ``removed_by`` deletes the node, ``quarantined_by`` keeps it out of service, ``released_by`` put it back into
    service. ``protected_by`` is an annotation against disruption. ``template`` and ``replicas`` are those of a
    service's workloads.
    """

    removed_by: str = ""
    quarantined_by: str = ""
    released_by: str = ""
    protected_by: str = ""
    template: str = ""
    replicas: str = ""


@dataclass(frozen=True, slots=True)
class OwnerObjection:
    """The verdict of an owner, with its name."""

    verdict: Verdict
    reason: DecisionReason
    owner: str


def owners_of(topology: Topology, released: Iterable[EntityRef] = ()) -> dict[EntityRef, Owners]:
    """Returns the owners of nodes, pods and services that have any.

    ``released`` are nodes that we cordoned and that are in service again. A node is protected if one of its pods is; a
    pod is removed with its node.
    """
    by_hand = frozenset(released)
    owned: dict[EntityRef, Owners] = {}
    for node in {entity for entity in topology.entities if entity.kind is EntityKind.NODE} | by_hand:
        owned[node] = _of_node(topology, node, by_hand)
    for entity, facts in topology.labels.items():
        if entity.kind is EntityKind.POD:
            owned[entity] = _of_pod(topology, entity, facts, owned)
        elif entity.kind is EntityKind.REPLICA and (facts.get("template_owner") or facts.get("replicas_owner")):
            found = Owners(template=facts.get("template_owner", ""), replicas=facts.get("replicas_owner", ""))
            owned[entity] = found
            owned |= dict.fromkeys(topology.above(entity, EntityKind.SERVICE), found)
    return {entity: owners for entity, owners in owned.items() if owners != _NOBODY}


_NOBODY = Owners()


def _of_node(topology: Topology, node: EntityRef, released: frozenset[EntityRef]) -> Owners:
    facts = topology.labels.get(node, {})
    return Owners(
        removed_by=facts.get("removed_by", ""),
        quarantined_by=facts.get("quarantined_by", ""),
        released_by=OPERATOR if node in released else "",
        protected_by=facts.get("protected_by", "") or _protected_pod(topology, node),
    )


def _protected_pod(topology: Topology, node: EntityRef) -> str:
    for pod in topology.above(node, EntityKind.POD):
        protection = topology.label(pod, "protected_by")
        if protection:
            return f"{protection} of {pod}"
    return ""


def _of_pod(topology: Topology, pod: EntityRef, facts: Mapping[str, str], owned: Mapping[EntityRef, Owners]) -> Owners:
    nodes = topology.below(pod, EntityKind.NODE)
    removers = [owned[node].removed_by for node in nodes if node in owned]
    return Owners(removed_by=next(filter(None, removers), ""), protected_by=facts.get("protected_by", ""))


def objection(
    kind: ActionKind, target: EntityRef, owned: Mapping[EntityRef, Owners], *, writes_replicas: bool
) -> OwnerObjection | None:
    """Returns the first objection of an owner to an action, None if nobody objects.

    ``writes_replicas``: SCALE patches the workload itself, not its autoscaler.
    """
    owners = owned.get(target)
    if owners is None:
        return None
    refusing = [
        owners.removed_by if kind in _OF_NODES | _OF_PODS else "",
        owners.quarantined_by if kind in _OF_NODES else "",
        owners.released_by if kind in _ISOLATING else "",
        owners.template if kind in _OF_TEMPLATES else "",
        owners.replicas if kind is ActionKind.SCALE and writes_replicas else "",
    ]
    refuser = next(filter(None, refusing), "")
    if refuser:
        return OwnerObjection(Verdict.REFUSED, DecisionReason.OWNED, refuser)
    if kind in _DISRUPTIVE and owners.protected_by:
        return OwnerObjection(Verdict.ASK, DecisionReason.PROTECTED, owners.protected_by)
    return None
