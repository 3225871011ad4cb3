"""Permissions that each action needs, and those that the configured account lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.model import ActionKind, ActionRequest
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer
from remediation.actuators.kubernetes.actuator import SETTING

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Permission:
    """A verb on a resource, as in a ClusterRole. ``resource`` may name a subresource, as in ``pods/eviction``.

    With ``namespace`` it is needed there only, as in a Role.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""


_NODE = (Permission("get", "nodes"), Permission("patch", "nodes"))
_WORKLOAD = tuple(
    Permission(verb, resource, "apps") for verb in ("get", "patch") for resource in ("deployments", "statefulsets")
)
_ROLLOUT = (Permission("get", "rollouts", "argoproj.io"), Permission("patch", "rollouts", "argoproj.io"))
_EVICT = Permission("create", "pods/eviction")
_LEVELS = (
    *(Permission(verb, "configmaps") for verb in ("get", "create", "patch")),
    *(Permission(verb, "deployments", "apps") for verb in ("get", "list", "patch")),
    Permission("list", "horizontalpodautoscalers", "autoscaling"),
    Permission("list", "scaledobjects", "keda.sh"),
)
DEGRADE: Mapping[ActionKind, tuple[Permission, ...]] = dict.fromkeys(
    (ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE), _LEVELS
)
NEEDED: Mapping[ActionKind, tuple[Permission, ...]] = {
    ActionKind.CORDON: _NODE,
    ActionKind.UNCORDON: _NODE,
    ActionKind.DRAIN: (*_NODE, Permission("list", "pods"), _EVICT),
    ActionKind.RESTART_POD: (Permission("get", "pods"), Permission("delete", "pods"), _EVICT),
    ActionKind.DELETE_STUCK_POD: (Permission("get", "pods"), Permission("delete", "pods"), Permission("get", "nodes")),
    ActionKind.ROLLBACK: (
        *_WORKLOAD,
        *_ROLLOUT,
        Permission("list", "replicasets", "apps"),
        Permission("list", "controllerrevisions", "apps"),
        Permission("list", "pods"),
        Permission("delete", "pods"),
    ),
    ActionKind.PAUSE_ROLLOUT: (*_WORKLOAD, *_ROLLOUT),
    ActionKind.RESUME_ROLLOUT: (*_WORKLOAD, *_ROLLOUT),
    ActionKind.SCALE: (
        *_WORKLOAD,
        *_ROLLOUT,
        Permission("list", "horizontalpodautoscalers", "autoscaling"),
        Permission("list", "scaledobjects", "keda.sh"),
    ),
}


Needed = Mapping[ActionKind, tuple[Permission, ...]]


def missing(
    url: str | None, access: Access, needed: Needed = NEEDED, *, setting: str = SETTING
) -> dict[ActionKind, tuple[Permission, ...]]:
    """Returns the permissions that the account lacks for each action, as its API server reviews them.

    ``setting`` is the configuration key of ``url``.

    Raises ActuationError if the server does not answer.
    """
    distinct = sorted({each for permissions in needed.values() for each in permissions}, key=str)
    with ApiServer((url or "").rstrip("/"), access, setting=setting) as server:
        lacking = {each for each in distinct if not _is_allowed(server, each)}
    by_kind = {kind: tuple(each for each in listed if each in lacking) for kind, listed in needed.items()}
    return {kind: permissions for kind, permissions in by_kind.items() if permissions}


def _is_allowed(server: ApiServer, permission: Permission) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        **({"namespace": permission.namespace} if permission.namespace else {}),
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    reviewed = server.send(ActionRequest("POST", _REVIEWS, body), dry_run=False)
    return bool(reviewed.get("status", {}).get("allowed"))
