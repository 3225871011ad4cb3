"""Eviction and deletion requests of pods."""

from __future__ import annotations

from typing import Any

from outrider.model import ActionRequest
from outrider.vocabulary.cluster_peers import pod_protection
from remediation.actuators.kubernetes.ownership import Json, annotations_of, controller_of, metadata

_MIRROR = "kubernetes.io/config.mirror"  # a static pod: its kubelet recreates it on the same node


def path_of(pod: Json) -> str:
    """Returns the path of the pod on the API server."""
    meta = metadata(pod)
    return f"/api/v1/namespaces/{meta.get('namespace')}/pods/{meta.get('name')}"


def name_of(pod: Json) -> str:
    """Returns ``namespace/name``."""
    meta = metadata(pod)
    return f"{meta.get('namespace')}/{meta.get('name')}"


def eviction(pod: Json) -> ActionRequest:
    """Returns the request that evicts exactly this pod, within its PodDisruptionBudgets."""
    meta = metadata(pod)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.get("name"), "namespace": meta.get("namespace")},
        "deleteOptions": {"preconditions": {"uid": meta.get("uid")}},
    }
    return ActionRequest("POST", f"{path_of(pod)}/eviction", body)


def deletion(pod: Json, *, grace_seconds: int | None = None) -> ActionRequest:
    """Returns the request that deletes exactly this pod; ``grace_seconds`` 0 does not wait for its kubelet."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    options["preconditions"] = {"uid": metadata(pod).get("uid")}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return ActionRequest("DELETE", path_of(pod), options)


def protection_of(pod: Json) -> str:
    """Returns the annotation that forbids to disrupt a pod, as ``key=value``; empty without one."""
    return pod_protection(annotations_of(pod))


def is_evictable(pod: Json) -> bool:
    """True for a running pod that its controller would recreate on another node."""
    controller = controller_of(pod)
    mirror = _MIRROR in (metadata(pod).get("annotations") or {})
    return (
        controller is not None
        and controller.get("kind") not in ("DaemonSet", "Node")
        and not mirror
        and not is_finished(pod)
    )


def is_finished(pod: Json) -> bool:
    """True once all containers of the pod have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_terminating(pod: Json) -> bool:
    """True once the pod is being deleted."""
    return bool(metadata(pod).get("deletionTimestamp"))


def is_ready(pod: Json) -> bool:
    """True while the pod counts as ready, so that a PodDisruptionBudget counts it."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
