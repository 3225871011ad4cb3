"""Replacement of a replica: its pod was deleted, and its service is complete without it. Pure.

The pods of a Deployment change their names. What we changed for the old one must not wait for its return.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from outrider.model import Action, ActionStatus, EntityKind, EntityRef
from outrider.topology import DELETED
from remediation.decide.context import DecisionContext

# A pod of a StatefulSet is absent for a moment before it returns under its name. A restarted engine is not judged by a
# scrape from before the restart.
SETTLING = timedelta(seconds=60)


def is_replaced(context: DecisionContext, target: EntityRef, own: list[Action]) -> bool:
    """True if the replica no longer exists and every other one of its service serves, as many as are ordered.

    ``own`` are the actions of the session that changed it. Replicas that were broken before are not waited for.
    """
    if not is_gone(context, target):
        return False
    done = [action for action in own if action.status is ActionStatus.DONE]
    since = max((action.ended_at or action.decided_at for action in done), default=context.now)
    if context.now - since < SETTLING:
        return False
    changed = [action for action in done if action.target == target]
    first = min((action.ended_at or action.decided_at for action in changed), default=since)
    service = _service_of(target, changed)
    if service in context.topology.entities:
        return _is_complete(context, service, first)
    return _is_deleted(context, target) or _has_ended(context, service)


def is_gone(context: DecisionContext, target: EntityRef) -> bool:
    """True for a deleted pod, and a replica of that name: discovery no longer lists it, or labels it so."""
    if target.kind not in (EntityKind.REPLICA, EntityKind.POD):
        return False
    return target not in context.topology.entities or _is_deleted(context, target)


def _is_deleted(context: DecisionContext, target: EntityRef) -> bool:
    """True if the control plane has reported the deletion of the pod."""
    return bool(context.topology.label(replace(target, kind=EntityKind.POD), DELETED))


def _has_ended(context: DecisionContext, service: EntityRef) -> bool:
    """True for a service without replicas and values, while others of its cluster are listed.

    A gap in the topology deletes no service: after a restart the API server may be away while nodes are visible.
    """
    return service.cluster in context.facts.listed_clusters and service not in context.facts.recent_services


def _service_of(target: EntityRef, changed: list[Action]) -> EntityRef:
    """The service that the change named. Without a name, a listed cluster alone shows the end of the replica."""
    names = [str(action.params["service"]) for action in changed if "service" in action.params]
    return replace(target, kind=EntityKind.SERVICE, name=names[-1] if names else "")


def _is_complete(context: DecisionContext, service: EntityRef, changed_at: datetime) -> bool:
    members = context.topology.below(service, EntityKind.REPLICA)
    started = context.facts.started_at
    starting = [
        replica
        for replica in members
        if (replica not in context.facts.healthy or context.has_alert(replica))
        and not (replica in started and started[replica] < changed_at)
    ]
    return not starting and len(members) >= context.current_replicas(service)
