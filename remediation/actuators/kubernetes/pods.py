"""Restart of a pod, and deletion of one that does not end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from outrider.clock import parse_rfc3339
from outrider.model import Action
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.evictions import deletion, eviction, is_ready, is_terminating, protection_of
from remediation.actuators.kubernetes.ownership import Json, controller_of, metadata

STUCK_AFTER = timedelta(seconds=60)  # beyond the grace period: the kubelet has not confirmed the end


def restart(attempt: Attempt) -> Change:
    """Replaces a pod. A ready one is evicted, within its PodDisruptionBudgets; another one is deleted.

    A pod that is younger than the decision, or has another uid, has been replaced already.
    """
    pod, name = _pod(attempt), f"pod {attempt.action.target.name}"
    if not pod or _is_replaced(pod, attempt.action):
        return Change(f"{name} has been replaced already")
    if is_terminating(pod):
        return Change(f"{name} is ending already")
    if controller_of(pod) is None:
        raise refused(f"{name} has no controller that would recreate it", "recreate it from its manifest")
    if protection_of(pod) and attempt.action.approved_by is None:
        raise refused(f"{name} has {protection_of(pod)}", "approve the action, or remove the annotation")
    request = eviction(pod) if is_ready(pod) else deletion(pod)
    return Change(f"{name} is replaced", (request,))


def delete_stuck(attempt: Attempt) -> Change:
    """Deletes a pod whose end its kubelet has not confirmed.

    Raises ActuationError for a pod that is not being deleted, and for one of a StatefulSet on an existing node: two
    pods of the same identity could run.
    """
    pod, name = _pod(attempt), f"pod {attempt.action.target.name}"
    if not pod or _is_replaced(pod, attempt.action):
        return Change(f"{name} no longer exists")
    if not is_terminating(pod):
        raise refused(f"{name} is not being deleted", "restart it instead")
    ended = parse_rfc3339(str(metadata(pod)["deletionTimestamp"]))  # includes the grace period
    if attempt.now < ended + STUCK_AFTER:
        return Change(f"{name} may still end by itself", pending=True)
    controller = controller_of(pod) or {}
    node = pod.get("spec", {}).get("nodeName")
    if controller.get("kind") == "StatefulSet" and attempt.server.get(f"/api/v1/nodes/{node}", missing_is_empty=True):
        raise refused(
            f"{name} belongs to a StatefulSet and its node {node} exists",
            "shut the node down, then add the taint node.kubernetes.io/out-of-service to it",
        )
    return Change(f"{name} is deleted without confirmation of its kubelet", (deletion(pod, grace_seconds=0),))


def _pod(attempt: Attempt) -> dict[str, Any]:
    target = attempt.action.target
    path = f"/api/v1/namespaces/{target.namespace or 'default'}/pods/{target.name}"
    return attempt.server.get(path, missing_is_empty=True)


def _is_replaced(pod: Json, action: Action) -> bool:
    uid = action.params.get("uid")
    if uid:
        return bool(metadata(pod).get("uid") != uid)
    created: datetime = parse_rfc3339(str(metadata(pod).get("creationTimestamp")))
    return created > action.decided_at
