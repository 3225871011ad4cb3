"""Permissions of the account that performs actions on Kubernetes, for ``outrider doctor``."""

from __future__ import annotations

from typing import Any

from outrider.errors import ActuationError
from outrider.model import ActionKind
from remediation.actuators.hook import permissions as hook_permissions
from remediation.actuators.kubernetes.permissions import DEGRADE, NEEDED, Permission, missing
from remediation.actuators.traffic import permissions as traffic_permissions
from service.config.remediation_settings import RemediationSettings
from service.config.settings import Settings


def permissions(settings: Settings) -> dict[str, Any]:
    """Returns what each action on Kubernetes lacks; empty if no action needs the API server.

    ``error`` is not empty if the API server did not answer.
    """
    remediation = settings.remediation
    needed = needed_by(remediation)
    if not needed:
        return {}
    try:
        lacking = missing(*remediation.kubernetes.server(), needed)
    except ActuationError as error:
        return {"permissions": {"error": error.message, "missing": []}}
    rows = [
        {
            "action": kind.value,
            "permissions": [
                {"verb": permission.verb, "resource": permission.resource, "group": permission.group}
                for permission in permissions
            ],
        }
        for kind, permissions in lacking.items()
    ]
    return {"permissions": {"error": "", "missing": rows}}


def needed_by(remediation: RemediationSettings) -> dict[ActionKind, tuple[Permission, ...]]:
    """Returns the permissions that the configured performer of each action needs."""
    of_performer = {
        "kubernetes": NEEDED,
        "degrade": DEGRADE,
        "traffic": traffic_permissions.needed(remediation.traffic.by_service()),
    }
    result = {
        kind: needed
        for performer, by_kind in of_performer.items()
        for kind, needed in by_kind.items()
        if remediation.performer(kind) == performer
    }
    for kind, hook in remediation.hooks.items():
        if remediation.performer(kind) != "hook":
            continue
        if hook.job is not None:
            result[kind] = hook_permissions.of_job(hook.job.namespace)
        elif hook.nvsentinel is not None:
            result[kind] = hook_permissions.of_nvsentinel(kind)
    return result
