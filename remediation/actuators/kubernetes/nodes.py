"""Cordon, un-cordon and drain of a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outrider.model import Action, ActionRequest
from outrider.text.i18n import fill
from remediation.actuators.api_server import MERGE_PATCH, ApiServer
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.evictions import (
    eviction,
    is_evictable,
    is_finished,
    is_terminating,
    name_of,
    protection_of,
)
from remediation.actuators.kubernetes.ownership import (
    Json,
    cleared,
    is_of_session,
    is_ours,
    keeper_of,
    marks,
    metadata,
)

TAINT = "outrider.io/quarantine"
_NODES = "/api/v1/nodes"


def cordon(attempt: Attempt) -> Change:
    """Marks a node as unschedulable, with our labels and a NoSchedule taint.

    The taint also keeps pods away that tolerate an unschedulable node. A node that someone else cordoned stays theirs.
    Raises ActuationError if someone un-cordoned the node during this session.
    """
    name, node = attempt.action.target.name, _node(attempt)
    if not node:
        return Change(f"node {name} no longer exists")
    keeper = keeper_of(node)
    if keeper and not is_ours(node):
        return Change(f"node {name} is left to {keeper}")
    if is_ours(node) and _is_unschedulable(node):
        return Change(f"node {name} is already cordoned")
    if _is_unschedulable(node):
        return Change(f"node {name} is already cordoned by someone else; it stays theirs")
    _check_not_undone(node, attempt.action)
    return Change(f"node {name} is cordoned", (_cordon_request(node, attempt.action),))


def uncordon(attempt: Attempt) -> Change:
    """Makes a node schedulable that this session cordoned; removes only our marks if someone else keeps it out.

    Raises ActuationError for a node that another session cordoned, and for one that exists although it was ``deleted``
    when the action was decided.
    """
    name, node = attempt.action.target.name, _node(attempt)
    if not node:
        return Change(f"node {name} no longer exists")
    if not is_ours(node):
        someone = (
            "is cordoned by someone else; it stays theirs" if _is_unschedulable(node) else "is already schedulable"
        )
        return Change(f"node {name} {someone}")
    if not is_of_session(node, attempt.action):
        raise refused(f"node {name} was cordoned by another session", "it is un-cordoned when that session ends")
    if attempt.action.params.get("deleted"):
        raise refused(f"node {name} exists; it stays cordoned", "check why monitoring does not report it")
    taints = [taint for taint in _taints(node) if taint.get("key") != TAINT]
    keeper = keeper_of(node)
    spec: dict[str, Any] = {"taints": taints or None}
    if keeper:
        return Change(f"node {name} is left to {keeper}, without our marks", (_patch(node, cleared(), spec),))
    spec["unschedulable"] = None
    return Change(f"node {name} is schedulable again", (_patch(node, cleared(), spec),))


def drain(attempt: Attempt) -> Change:
    """Cordons a node, then evicts its pods until none is left that a controller would recreate.

    Pods of DaemonSets, static and finished pods stay. Pods without a controller stay, too: nothing would recreate
    them. The eviction API honours PodDisruptionBudgets. Raises ActuationError if someone un-cordoned the node during
    this session.
    """
    name, node = attempt.action.target.name, _node(attempt)
    if not node:
        return Change(f"node {name} no longer exists")
    _check_not_undone(node, attempt.action)
    first = () if _is_unschedulable(node) else (_cordon_request(node, attempt.action),)
    pods = list(_pods_of(attempt.server, name))
    kept = [pod for pod in pods if protection_of(pod) and attempt.action.approved_by is None]
    evicted = tuple(eviction(pod) for pod in pods if is_evictable(pod) and not is_terminating(pod) and pod not in kept)
    leaving = [name_of(pod) for pod in pods if is_evictable(pod) and is_terminating(pod)]
    bare = [name_of(pod) for pod in pods if _is_bare(pod)]
    left = f"; without a controller, not evicted: {', '.join(bare)}" if bare else ""
    left += f"; protected, not evicted: {', '.join(map(name_of, kept))}" if kept else ""
    if evicted:
        return Change(
            fill("node {name}: {n} [pod is|pods are] evicted{left}", name=name, n=len(evicted), left=left),
            (*first, *evicted),
            pending=True,
        )
    if leaving:
        return Change(f"node {name}: waits for {', '.join(leaving)} to end{left}", first, pending=True)
    return Change(f"node {name} is drained{left}", first)


def _node(attempt: Attempt) -> dict[str, Any]:
    return attempt.server.get(f"{_NODES}/{attempt.action.target.name}", missing_is_empty=True)


def _check_not_undone(node: Json, action: Action) -> None:
    """Raises ActuationError if this session cordoned the node and someone has un-cordoned it since."""
    if is_of_session(node, action) and not _is_unschedulable(node):
        raise refused(
            f"node {action.target.name} was un-cordoned by someone else since; it stays as they left it",
            "cordon it by hand, or wait for the next incident",
        )


def _pods_of(server: ApiServer, node: str) -> Iterator[dict[str, Any]]:
    listed = server.get("/api/v1/pods", query=(("fieldSelector", f"spec.nodeName={node}"),))
    yield from listed.get("items", [])


def _is_bare(pod: Json) -> bool:
    return not metadata(pod).get("ownerReferences") and not is_finished(pod)


def _is_unschedulable(node: Json) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _taints(node: Json) -> list[dict[str, Any]]:
    return list(node.get("spec", {}).get("taints") or [])


def _cordon_request(node: Json, action: Action) -> ActionRequest:
    ours = {"key": TAINT, "value": "outrider", "effect": "NoSchedule"}
    taints = [taint for taint in _taints(node) if taint.get("key") != TAINT]
    return _patch(node, marks(action), {"unschedulable": True, "taints": [*taints, ours]})


def _patch(node: Json, meta: dict[str, Any], spec: dict[str, Any]) -> ActionRequest:
    """A merge patch, valid only for the version that was read: the list of taints is replaced as a whole."""
    known = metadata(node)
    body = {"metadata": {**meta, "resourceVersion": known.get("resourceVersion")}, "spec": spec}
    return ActionRequest("PATCH", f"{_NODES}/{known.get('name')}", body, MERGE_PATCH)
