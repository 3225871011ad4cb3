"""Permissions that hooks need on the API server."""

from __future__ import annotations

from outrider.model import ActionKind
from remediation.actuators.hook.nvsentinel import GROUP, RESOURCES
from remediation.actuators.kubernetes.permissions import Permission


def of_job(namespace: str) -> tuple[Permission, ...]:
    """Returns the permissions of a Job hook: its Jobs and their pods in one namespace, and the node."""
    return (
        Permission("get", "nodes"),
        Permission("create", "jobs", "batch", namespace),
        Permission("get", "jobs", "batch", namespace),
        Permission("list", "pods", "", namespace),
    )


def of_nvsentinel(kind: ActionKind) -> tuple[Permission, ...]:
    """Returns the permissions of an NVSentinel hook; none for a kind without a custom resource."""
    resource = RESOURCES.get(kind)
    if resource is None:
        return ()
    return tuple(Permission(verb, resource.plural, GROUP) for verb in ("create", "get"))
