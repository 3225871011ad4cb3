"""Offline Deployments of a service: scaled to zero, and back to their exact number of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from outrider.errors import ActuationError
from outrider.model import Action, ActionRequest
from outrider.text.i18n import fill
from remediation.actuators.api_server import MERGE_PATCH, ApiServer
from remediation.actuators.kubernetes.change import Change
from remediation.actuators.kubernetes.ownership import (
    ACTION,
    INCIDENT,
    OWNER,
    SESSION,
    Json,
    is_ours,
    marks,
    metadata,
    reconciler_of,
)
from remediation.actuators.replica_owner import check_not_autoscaled, owner_of

REPLICAS = "outrider.io/paused-replicas"
SERVICE = "outrider.io/paused-for"


def changes(server: ApiServer, action: Action) -> Iterator[Change]:
    """Yields the pause of each named Deployment, and the end of each pause that the level no longer names."""
    named: list[str] = list(action.params.get("pause") or ())
    folder = f"/apis/apps/v1/namespaces/{action.target.namespace or 'default'}/deployments"
    for name in named:
        workload = server.get(f"{folder}/{name}", missing_is_empty=True)
        yield _paused(server, f"{folder}/{name}", workload, action) if workload else Change(f"no Deployment {name}")
    for workload in _held(server, folder, action.target.name):
        name = metadata(workload)["name"]
        if name not in named:
            yield _resumed(f"{folder}/{name}", workload)


def _held(server: ApiServer, folder: str, service: str) -> Iterable[dict[str, Any]]:
    """Returns the Deployments that are paused for a service."""
    listed = server.get(folder, query=(("labelSelector", f"{OWNER}=outrider"),)).get("items", [])
    return [item for item in listed if metadata(item).get("annotations", {}).get(SERVICE) == service]


def _paused(server: ApiServer, path: str, workload: Json, action: Action) -> Change:
    meta, name = metadata(workload), f"Deployment {metadata(workload)['name']}"
    current = workload.get("spec", {}).get("replicas", 1)
    if is_ours(workload) and REPLICAS in meta.get("annotations", {}):
        return Change(f"{name} is paused already")
    if not current:
        return Change(f"{name} has no replicas")
    owner = _owner(server, path, workload)
    if owner:
        return Change(f"{name} is left alone: its replicas belong to {owner}")
    ours = marks(action)
    annotations = {**ours["annotations"], REPLICAS: str(current), SERVICE: action.target.name}
    patched = {"labels": ours["labels"], "annotations": annotations, "resourceVersion": meta.get("resourceVersion")}
    request = ActionRequest("PATCH", path, {"metadata": patched, "spec": {"replicas": 0}}, MERGE_PATCH)
    return Change(fill("{name} is paused at {n} [replica|replicas]", name=name, n=current), (request,))


def _owner(server: ApiServer, path: str, workload: Json) -> str:
    try:
        check_not_autoscaled(server, workload, path)
    except ActuationError as error:
        if error.status is not None or error.retryable:
            raise
        return "an autoscaler"
    return owner_of(workload, ("spec", "replicas")) or reconciler_of(workload)


def _resumed(path: str, workload: Json) -> Change:
    """Restores the replicas; a number that someone has set meanwhile stays."""
    meta, name = metadata(workload), f"Deployment {metadata(workload)['name']}"
    before = str(meta.get("annotations", {}).get(REPLICAS, ""))
    untouched = workload.get("spec", {}).get("replicas") == 0 and before.isdigit()
    patched: dict[str, Any] = {
        "labels": dict.fromkeys((OWNER, SESSION, INCIDENT)),
        "annotations": dict.fromkeys((ACTION, REPLICAS, SERVICE)),
        "resourceVersion": meta.get("resourceVersion"),
    }
    body: dict[str, Any] = {"metadata": patched, **({"spec": {"replicas": int(before)}} if untouched else {})}
    text = "{name} is back at {n} [replica|replicas]" if untouched else "{name} keeps the replicas set by someone else"
    detail = fill(text, name=name, n=before)
    return Change(detail, (ActionRequest("PATCH", path, body, MERGE_PATCH),))
