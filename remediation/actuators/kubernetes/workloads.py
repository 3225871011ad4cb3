"""Rollback, pause and scaling of Deployments, StatefulSets and Argo Rollouts.

The decision names the workloads of a service in ``params["workloads"]``, as ``Kind/name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.model import ActionRequest
from outrider.text.i18n import fill
from remediation.actuators.api_server import FIELD_MANAGER, JSON_PATCH, MERGE_PATCH, ApiServer
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.evictions import deletion, is_ready, is_terminating
from remediation.actuators.kubernetes.ownership import (
    Json,
    annotations_of,
    cleared,
    labels_of,
    marks,
    metadata,
    reconciler_of,
)
from remediation.actuators.kubernetes.revisions import Revision, Revisions, is_observed, owned, revisions_of
from remediation.actuators.kubernetes.rollback_record import ROLLED_BACK, RollbackRecord, record_of
from remediation.actuators.replica_change import check_basis, is_reached
from remediation.actuators.replica_owner import check_not_autoscaled, managers_of, owner_of

PAUSED_BY = "outrider.io/paused-by"  # the sessions that need the pause, separated by commas
_COLLECTIONS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Rollout": ("/apis/argoproj.io/v1alpha1", "rollouts"),
}
_OWN_MANAGER = "rollouts-controller"  # of a Rollout: it writes its revision


def rollback(attempt: Attempt) -> Change:
    """Restores the pod template of the revision before the current one, for each workload of the service.

    Pods of a StatefulSet that never became ready in the bad revision are deleted: its controller waits for them
    forever (Kubernetes, "StatefulSets": forced rollback). A revision that a rollback abandoned is not restored by the
    next one.
    """
    return _joined([_rolled_back(attempt, kind, workload) for kind, workload in _workloads(attempt)])


def pause_rollout(attempt: Attempt) -> Change:
    """Stops rollouts of the service's Deployments and Argo Rollouts where they are."""
    return _joined([_paused(attempt, kind, workload) for kind, workload in _workloads(attempt)])


def resume_rollout(attempt: Attempt) -> Change:
    """Ends this session's pause of rollouts. A pause that someone else or another session needs stays."""
    return _joined([_resumed(attempt, kind, workload) for kind, workload in _workloads(attempt)])


def scale(attempt: Attempt) -> Change:
    """Sets the number of replicas, if no autoscaler and no other controller owns it.

    A number that was changed since the decision is not lowered by a scale-out, and blocks a scale-in.
    """
    workloads = list(_workloads(attempt))
    if len(workloads) != 1:
        names = ", ".join(metadata(workload)["name"] for _, workload in workloads)
        raise refused(
            f"{attempt.action.target.name} has several workloads ({names})", "name one in planner.scaling.emit"
        )
    kind, workload = workloads[0]
    path, replicas = _path(kind, workload), int(attempt.action.params["replicas"])
    check_not_autoscaled(attempt.server, workload, path, kind)
    owner = owner_of(workload, ("spec", "replicas"))
    if owner:
        raise refused(f"{path}: spec.replicas belongs to {owner}", "name that owner in planner.scaling.emit")
    current = workload.get("spec", {}).get("replicas")
    name = _name(kind, workload)
    if is_reached(attempt.action, current, replicas):
        return Change(fill("{name} already has {n} [replica|replicas]", name=name, n=current))
    check_basis(attempt.action, current, name)
    body = {"metadata": {**marks(attempt.action), **_version(workload)}, "spec": {"replicas": replicas}}
    sentence = fill("{name}: {current} -> {n} [replica|replicas]", name=name, current=current, n=replicas)
    return Change(sentence, (ActionRequest("PATCH", path, body, MERGE_PATCH),))


def _workloads(attempt: Attempt) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (kind, object) of each named workload. Raises ActuationError for none, or one of another kind."""
    names: Sequence[str] = attempt.action.params.get("workloads") or ()
    if not names:
        raise refused(f"no workload of {attempt.action.target.name} is known", "check discovery: outrider entities")
    namespace = attempt.action.target.namespace or "default"
    for name in names:
        kind, _, own = name.partition("/")
        if kind not in _COLLECTIONS:
            raise refused(f"a {kind} cannot be changed", "change it through its operator")
        yield kind, attempt.server.get(_path_of(kind, namespace, own))


def _rolled_back(attempt: Attempt, kind: str, workload: Json) -> Change:
    name, record = _name(kind, workload), record_of(workload)
    if record is not None and record.action == attempt.action.id:
        return _completed(attempt.server, kind, workload, record)
    _check_changeable(attempt, kind, workload)
    revisions = revisions_of(attempt.server, kind, workload)
    if record is not None and revisions.current is not None and revisions.current.name == record.restored:
        if record.session == attempt.action.session:
            return _completed(attempt.server, kind, workload, record)
        sentence = f"{name} was rolled back already by session {record.session}, and nothing was rolled out since"
        raise refused(sentence, "roll back further by hand: kubectl rollout undo --to-revision")
    target = revisions.before(record.abandoned if record else {})
    if target is None:
        hint = "roll back by its manifest; spec.revisionHistoryLimit keeps older revisions"
        raise refused(f"{name} has no earlier revision to restore", hint)
    record = _record(attempt, revisions, target, record)
    requests = (_template_request(attempt, kind, workload, target, record), *_deletions(attempt.server, kind, workload))
    return Change(f"{name} is rolled back to revision {target.number}", requests)


def _record(attempt: Attempt, revisions: Revisions, target: Revision, before: RollbackRecord | None) -> RollbackRecord:
    abandoned = revisions.still(before.abandoned) if before else {}
    if revisions.current is not None:
        abandoned[revisions.current.name] = revisions.current.number
    return RollbackRecord(attempt.action.id, attempt.action.session, target.name, abandoned)


def _completed(server: ApiServer, kind: str, workload: Json, record: RollbackRecord) -> Change:
    """Deletes the pods that an interrupted rollback of a StatefulSet has left in an abandoned revision."""
    name = _name(kind, workload)
    if kind == "StatefulSet" and not is_observed(workload):
        return Change(f"{name} is rolled back already; its controller has not processed it yet", pending=True)
    update = workload.get("status", {}).get("updateRevision")
    abandoned = frozenset(record.abandoned) - {update}  # someone may have rolled one out again
    left = _deletions(server, kind, workload, abandoned)
    return Change(
        f"{name} is rolled back already"
        + (fill("; {n} [stuck pod is|stuck pods are] deleted", n=len(left)) if left else ""),
        left,
    )


def _check_changeable(attempt: Attempt, kind: str, workload: Json) -> None:
    """Raises ActuationError for a workload that someone else paused, or that a controller would change back."""
    owner = reconciler_of(workload)
    if owner and (kind, owner) != ("Rollout", _OWN_MANAGER):
        raise refused(f"{_name(kind, workload)} is managed by {owner}, which would revert it", f"roll back in {owner}")
    if _is_paused(workload) and attempt.action.session not in _pausing_sessions(workload):
        raise refused(f"{_name(kind, workload)} is paused", "kubectl rollout resume, then roll back")


def _deletions(
    server: ApiServer, kind: str, workload: Json, revisions: frozenset[str] | None = None
) -> tuple[ActionRequest, ...]:
    """The deletions of a StatefulSet's pods that are not ready in these revisions, by default in the newest one."""
    if kind != "StatefulSet":
        return ()
    stuck = frozenset({workload.get("status", {}).get("updateRevision")}) if revisions is None else revisions
    return tuple(
        deletion(pod)
        for pod in owned(server, workload, "pods")
        if labels_of(pod).get("controller-revision-hash") in stuck and not is_ready(pod) and not is_terminating(pod)
    )


def _template_request(
    attempt: Attempt, kind: str, workload: Json, target: Revision, record: RollbackRecord
) -> ActionRequest:
    """A JSON patch that replaces the template as a whole, valid only for the version that was read.

    It ends a pause by this session: a paused workload keeps the pods of the bad revision.
    """
    meta, ours = metadata(workload), marks(attempt.action)
    notes = {key: value for key, value in annotations_of(workload).items() if key != PAUSED_BY}
    changed = {
        "labels": {**labels_of(workload), **ours["labels"]},
        "annotations": {**notes, **ours["annotations"], ROLLED_BACK: record.text()},
    }
    body = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},  # 409 if it changed
        {"op": "replace", "path": "/spec/template", "value": target.template},
        *([{"op": "remove", "path": "/spec/paused"}] if _is_paused(workload) else []),
        *({"op": "add", "path": f"/metadata/{part}", "value": value} for part, value in changed.items()),
    ]
    return ActionRequest("PATCH", _path(kind, workload), body, JSON_PATCH)


def _is_paused(workload: Json) -> bool:
    return bool(workload.get("spec", {}).get("paused"))


def _pausing_sessions(workload: Json) -> tuple[str, ...]:
    """Our sessions that need the pause of a workload; none of a pause that another program or person made.

    An operator may have resumed our pause and paused again: then the field has another manager.
    """
    listed = str(annotations_of(workload).get(PAUSED_BY, ""))
    ours = set(managers_of(workload, ("spec", "paused"))) <= {FIELD_MANAGER}
    return tuple(listed.split(",")) if listed and ours and _is_paused(workload) else ()


def _paused(attempt: Attempt, kind: str, workload: Json) -> Change:
    name, sessions = _name(kind, workload), _pausing_sessions(workload)
    if kind == "StatefulSet":
        raise refused(f"rollouts of a {kind} cannot be paused", "set spec.updateStrategy.rollingUpdate.partition")
    if attempt.action.session in sessions:
        return Change(f"{name} is paused already")
    if _is_paused(workload) and not sessions:
        return Change(f"{name} is paused already by someone else; the pause stays theirs")
    owner = reconciler_of(workload)
    if owner and (kind, owner) != ("Rollout", _OWN_MANAGER):
        raise refused(f"{name} is managed by {owner}, which would revert it", f"pause it in {owner}")
    ours = marks(attempt.action)
    ours["annotations"][PAUSED_BY] = ",".join((*sessions, attempt.action.session))
    return Change(f"{name}: rollout paused", (_pause_request(kind, workload, ours, paused=True),))


def _resumed(attempt: Attempt, kind: str, workload: Json) -> Change:
    """Never an error for a pause that is not this session's: nothing of it is left to undo."""
    name, sessions = _name(kind, workload), _pausing_sessions(workload)
    if kind == "StatefulSet":
        raise refused(f"rollouts of a {kind} cannot be paused", "set spec.updateStrategy.rollingUpdate.partition")
    if not _is_paused(workload):
        return Change(f"{name} is not paused already")
    others = tuple(session for session in sessions if session != attempt.action.session)
    if attempt.action.session not in sessions:
        return Change(f"{name} stays paused by {', '.join(others) or 'someone else'}")
    if others:
        ours: dict[str, Any] = {"annotations": {PAUSED_BY: ",".join(others)}}
        return Change(
            f"{name} stays paused by {', '.join(others)}", (_pause_request(kind, workload, ours, paused=True),)
        )
    unmarked: dict[str, Any] = dict(cleared())
    unmarked["annotations"] = {**unmarked["annotations"], PAUSED_BY: None}
    return Change(f"{name}: rollout resumed", (_pause_request(kind, workload, unmarked, paused=False),))


def _pause_request(kind: str, workload: Json, meta: Json, *, paused: bool) -> ActionRequest:
    body = {"metadata": {**meta, **_version(workload)}, "spec": {"paused": True if paused else None}}
    return ActionRequest("PATCH", _path(kind, workload), body, MERGE_PATCH)


def _joined(changes: Sequence[Change]) -> Change:
    return Change(
        "; ".join(change.detail for change in changes),
        tuple(request for change in changes for request in change.requests),
        any(change.pending for change in changes),
    )


def _name(kind: str, workload: Json) -> str:
    return f"{kind} {metadata(workload).get('name')}"


def _path(kind: str, workload: Json) -> str:
    meta = metadata(workload)
    return _path_of(kind, str(meta["namespace"]), str(meta["name"]))


def _path_of(kind: str, namespace: str, name: str) -> str:
    group, plural = _COLLECTIONS[kind]
    return f"{group}/namespaces/{namespace}/{plural}/{name}"


def _version(workload: Json) -> dict[str, Any]:
    return {"resourceVersion": metadata(workload).get("resourceVersion")}
