"""Rollback, pause and scaling of Deployments, StatefulSets and Argo Rollouts.

The decision names the workloads of a service in ``params["workloads"]``, as ``Kind/name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.errors import ActuationError
from outrider.model import ActionRequest
from remediation.actuators.api_server import JSON_PATCH, MERGE_PATCH, ApiServer
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.evictions import deletion, is_ready, is_terminating
from remediation.actuators.kubernetes.ownership import (
    Json,
    annotations_of,
    cleared,
    is_of_session,
    is_ours,
    marks,
    metadata,
    performed_by,
    reconciler_of,
)
from remediation.actuators.replica_owner import check_not_autoscaled, owner_of

REVISION = "deployment.kubernetes.io/revision"
ROLLOUT_REVISION = "rollout.argoproj.io/revision"
_COLLECTIONS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Rollout": ("/apis/argoproj.io/v1alpha1", "rollouts"),
}
_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")  # set by the controllers on their ReplicaSets
_OWN_MANAGER = "rollouts-controller"  # of a Rollout: it writes its revision


def rollback(attempt: Attempt) -> Change:
    """Restores the pod template of the revision before the current one, for each workload of the service.

    Pods of a StatefulSet that never became ready in the bad revision are deleted: its controller waits for them
    forever (Kubernetes, "StatefulSets": forced rollback).
    """
    return _joined([_rolled_back(attempt, kind, workload) for kind, workload in _workloads(attempt)])


def pause_rollout(attempt: Attempt) -> Change:
    """Stops rollouts of the service's Deployments and Argo Rollouts where they are."""
    return _joined([_paused(attempt, kind, workload, pause=True) for kind, workload in _workloads(attempt)])


def resume_rollout(attempt: Attempt) -> Change:
    """Resumes rollouts that this action's owner paused."""
    return _joined([_paused(attempt, kind, workload, pause=False) for kind, workload in _workloads(attempt)])


def scale(attempt: Attempt) -> Change:
    """Sets the number of replicas, if no autoscaler and no other controller owns it."""
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
    if current == replicas:
        return Change(f"{name} already has {replicas} replicas")
    body = {"metadata": {**marks(attempt.action), **_version(workload)}, "spec": {"replicas": replicas}}
    return Change(f"{name}: {current} -> {replicas} replicas", (ActionRequest("PATCH", path, body, MERGE_PATCH),))


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
    name = _name(kind, workload)
    if performed_by(workload) == attempt.action.id:
        return Change(f"{name} is rolled back already")
    _check_changeable(attempt, kind, workload)
    template, revision = _TEMPLATES[kind](attempt.server, workload)
    requests = [_template_request(attempt, kind, workload, template)]
    if kind == "StatefulSet":
        requests += [deletion(pod) for pod in _stuck_pods(attempt.server, workload)]
    return Change(f"{name} is rolled back to revision {revision}", tuple(requests))


def _check_changeable(attempt: Attempt, kind: str, workload: Json) -> None:
    """Raises ActuationError for a workload that someone else paused, or that a controller would change back."""
    owner = reconciler_of(workload)
    if owner and (kind, owner) != ("Rollout", _OWN_MANAGER):
        raise refused(f"{_name(kind, workload)} is managed by {owner}, which would revert it", f"roll back in {owner}")
    if _is_paused(workload) and not is_of_session(workload, attempt.action):
        raise refused(f"{_name(kind, workload)} is paused", "kubectl rollout resume, then roll back")


def _deployment_template(server: ApiServer, workload: Json) -> tuple[dict[str, Any], int]:
    """Returns the pod template of the previous ReplicaSet and its revision, as ``kubectl rollout undo`` does."""
    meta = metadata(workload)
    sets = _owned(server, workload, "replicasets")
    numbered = {_revision(replica_set): replica_set for replica_set in sets}
    current = int(meta.get("annotations", {}).get(REVISION, 0))
    previous = max((revision for revision in numbered if revision < current), default=None)
    if previous is None:
        raise _no_revision("Deployment", workload)
    template = dict(numbered[previous]["spec"]["template"])
    return _without_hash(template), previous


def _without_hash(template: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in template["metadata"].get("labels", {}).items() if key not in _HASHES}
    return {**template, "metadata": {**template["metadata"], "labels": kept}}


def _rollout_template(server: ApiServer, workload: Json) -> tuple[dict[str, Any], int]:
    """Returns the pod template of the stable ReplicaSet during a rollout, else of the previous revision.

    An aborted rollout serves the stable ReplicaSet already, but starts the bad revision again when it is retried:
    restoring the template ends it (Argo Rollouts, "kubectl argo rollouts undo").
    """
    spec, status = workload.get("spec", {}), workload.get("status", {})
    reference = spec.get("workloadRef")
    if reference:
        text = f"{reference.get('kind')} {reference.get('name')}"
        raise refused(f"{_name('Rollout', workload)} takes its template from {text}", f"roll back {text}")
    numbered = {
        int(annotations_of(replica_set).get(ROLLOUT_REVISION, 0)): replica_set
        for replica_set in _owned(server, workload, "replicasets")
    }
    stable, current = status.get("stableRS"), int(annotations_of(workload).get(ROLLOUT_REVISION, 0))
    if stable and stable != status.get("currentPodHash"):
        hashes = {metadata(found).get("labels", {}).get(_HASHES[1]): number for number, found in numbered.items()}
        previous = hashes.get(stable)
    else:
        previous = max((revision for revision in numbered if revision < current), default=None)
    if previous is None:
        raise _no_revision("Rollout", workload)
    return _without_hash(dict(numbered[previous]["spec"]["template"])), previous


def _stateful_template(server: ApiServer, workload: Json) -> tuple[dict[str, Any], int]:
    """Returns the pod template of the previous ControllerRevision and its revision."""
    revisions = {int(entry["revision"]): entry for entry in _owned(server, workload, "controllerrevisions")}
    update = workload.get("status", {}).get("updateRevision")
    current = next((number for number, entry in revisions.items() if metadata(entry)["name"] == update), 0)
    previous = max((number for number in revisions if number < current), default=None)
    if previous is None:
        raise _no_revision("StatefulSet", workload)
    template = dict(revisions[previous]["data"]["spec"]["template"])
    template.pop("$patch", None)
    return template, previous


_TEMPLATES = {
    "Deployment": _deployment_template,
    "StatefulSet": _stateful_template,
    "Rollout": _rollout_template,
}


def _stuck_pods(server: ApiServer, workload: Json) -> list[dict[str, Any]]:
    """Returns the pods of the bad revision that are not ready."""
    update = workload.get("status", {}).get("updateRevision")
    return [
        pod
        for pod in _owned(server, workload, "pods")
        if metadata(pod).get("labels", {}).get("controller-revision-hash") == update
        and not is_ready(pod)
        and not is_terminating(pod)
    ]


def _owned(server: ApiServer, workload: Json, plural: str) -> list[dict[str, Any]]:
    meta = metadata(workload)
    group = "/api/v1" if plural == "pods" else "/apis/apps/v1"
    listed = server.get(f"{group}/namespaces/{meta['namespace']}/{plural}").get("items", [])
    return [
        item
        for item in listed
        if any(owner.get("uid") == meta["uid"] for owner in metadata(item).get("ownerReferences") or ())
    ]


def _revision(replica_set: Json) -> int:
    return int(metadata(replica_set).get("annotations", {}).get(REVISION, 0))


def _template_request(attempt: Attempt, kind: str, workload: Json, template: dict[str, Any]) -> ActionRequest:
    """A JSON patch that replaces the template as a whole, valid only for the version that was read.

    It ends a pause by this session: a paused workload keeps the pods of the bad revision.
    """
    meta, ours = metadata(workload), marks(attempt.action)
    body = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},  # 409 if it changed
        {"op": "replace", "path": "/spec/template", "value": template},
        *([{"op": "remove", "path": "/spec/paused"}] if _is_paused(workload) else []),
        *(
            {"op": "add", "path": f"/metadata/{part}", "value": {**meta.get(part, {}), **ours[part]}}
            for part in ("labels", "annotations")
        ),
    ]
    return ActionRequest("PATCH", _path(kind, workload), body, JSON_PATCH)


def _is_paused(workload: Json) -> bool:
    return bool(workload.get("spec", {}).get("paused"))


def _paused(attempt: Attempt, kind: str, workload: Json, *, pause: bool) -> Change:
    name = _name(kind, workload)
    if kind == "StatefulSet":
        raise refused(f"rollouts of a {kind} cannot be paused", "set spec.updateStrategy.rollingUpdate.partition")
    if _is_paused(workload) is pause:
        return Change(f"{name} is {'paused' if pause else 'not paused'} already")
    if not pause and not is_ours(workload):
        raise refused(f"{name} was paused by someone else", "kubectl rollout resume, if its owner agrees")
    owner = reconciler_of(workload) if pause else ""
    if owner and (kind, owner) != ("Rollout", _OWN_MANAGER):
        raise refused(f"{name} is managed by {owner}, which would revert it", f"pause it in {owner}")
    ours: dict[str, Any] = dict(marks(attempt.action)) if pause else dict(cleared())
    body = {"metadata": {**ours, **_version(workload)}, "spec": {"paused": True if pause else None}}
    sentence = f"{name}: rollout {'paused' if pause else 'resumed'}"
    return Change(sentence, (ActionRequest("PATCH", _path(kind, workload), body, MERGE_PATCH),))


def _joined(changes: Sequence[Change]) -> Change:
    return Change(
        "; ".join(change.detail for change in changes),
        tuple(request for change in changes for request in change.requests),
        any(change.pending for change in changes),
    )


def _no_revision(kind: str, workload: Json) -> ActuationError:
    hint = "roll back by its manifest; spec.revisionHistoryLimit keeps older revisions"
    return refused(f"{_name(kind, workload)} has no earlier revision", hint)


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
