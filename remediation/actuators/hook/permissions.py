"""Permissions that hooks need on the API server."""

from __future__ import annotations

from outrider.model import ActionKind
from remediation.actuators.hook.actuator import STOPS_PODS
from remediation.actuators.hook.nvsentinel import GROUP, RESOURCES
from remediation.actuators.kubernetes.permissions import Permission

_NODE = Permission("get", "nodes")


def of_job(namespace: str) -> tuple[Permission, ...]:
    """Returns the permissions of a Job hook: its Jobs and their pods in one namespace, and the node."""
    return (
        _NODE,
        Permission("create", "jobs", "batch", namespace),
        Permission("get", "jobs", "batch", namespace),
        Permission("list", "pods", "", namespace),
    )


def of_nvsentinel(kind: ActionKind) -> tuple[Permission, ...]:
    """Returns the permissions of an NVSentinel hook: its resources and the node; none for a kind without a resource."""
    resource = RESOURCES.get(kind)
    if resource is None:
        return ()
    return (_NODE, *(Permission(verb, resource.plural, GROUP) for verb in ("create", "get")))


def of_webhook(kind: ActionKind) -> tuple[Permission, ...]:
    """Returns the permissions of a webhook on an API server: the node, whose cordon is checked."""
    return (_NODE,) if kind in STOPS_PODS else ()
